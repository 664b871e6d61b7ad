"""What the benchmarks share: the machine's name, honest timing, one JSON per benchmark."""

from __future__ import annotations

import fcntl
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import strop
from strop.files import read_json, write_json

RESULTS = Path(__file__).parent / "results"


def device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def machine() -> dict[str, Any]:
    """What a reader needs to know to judge a number."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "device": gpu or "CPU",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "strop": strop.__version__,
    }


def save(name: str, result: dict[str, Any]) -> Path:
    """Write `results/NAME.json`, with the machine."""
    path = RESULTS / f"{name}.json"
    write_json(path, "benchmark", 1, {"machine": machine(), **result})
    return path


@contextmanager
def _turn(kind: int, name: str) -> Iterator[None]:
    with (Path(tempfile.gettempdir()) / f"strop-benchmark-{name}.lock").open("w") as file:
        fcntl.flock(file, kind)
        yield  # closing the file gives the turn up


def preparing() -> Any:
    """Compile and warm up in here: benchmarks started side by side may do so together ..."""
    return _turn(fcntl.LOCK_SH, "device")


def alone() -> Any:
    """... and take times in here: one at a time, while none is preparing."""
    return _turn(fcntl.LOCK_EX, "device")


def save_rows(
    name: str, rows: list[dict[str, Any]], keys: tuple[str, ...], **others: Any
) -> list[dict[str, Any]]:
    """Put `rows` into `results/NAME.json` beside those of earlier runs on the same machine, or in
    place of those with the same `keys`; all the rows then in it."""
    path = RESULTS / f"{name}.json"
    with _turn(fcntl.LOCK_EX, name):
        earlier = read_json(path, "benchmark", 1) if path.is_file() else {}
        kept = earlier.get("rows", []) if earlier.get("machine") == machine() else []
        new = {tuple(row[key] for key in keys) for row in rows}
        rows = [row for row in kept if tuple(row[key] for key in keys) not in new] + rows
        rows.sort(key=lambda row: [str(row[key]).zfill(8) for key in keys])
        save(name, {**others, "rows": rows})
    return rows


def seconds(call: Callable[[], Any], *, repeat: int = 5, at_least: float = 0.3) -> float:
    """Median time of one call after a warm-up; each sample is at least `at_least` seconds long."""
    samples = side_by_side({"": call}, repeat=repeat, at_least=at_least)[""]
    return sorted(samples)[repeat // 2]


def side_by_side(
    calls: dict[str, Callable[[], Any]], *, repeat: int = 5, at_least: float = 0.3
) -> dict[str, list[float]]:
    """Times of one call of each, taken in turns, so that a busy moment falls on all of them."""
    numbers = {name: _calls_for(call, at_least) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            samples[name].append(_timed(call, numbers[name]) / numbers[name])
    return samples


def _calls_for(call: Callable[[], Any], at_least: float) -> int:
    call()
    calls, elapsed = 1, _timed(call, 1)
    while elapsed < at_least:
        calls = max(calls + 1, int(1.2 * calls * at_least / max(elapsed, 1e-6)))
        elapsed = _timed(call, calls)
    return calls


def _timed(call: Callable[[], Any], calls: int) -> float:
    _synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    _synchronize()
    return time.perf_counter() - start


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
