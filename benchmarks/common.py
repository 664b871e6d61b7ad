"""Shared by the benchmarks: device, timing, and one JSON per benchmark with the machine."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from strop.device import choose_device, describe_machine
from strop.files import read_json, write_json
from strop.pool import cores

RESULTS = Path(__file__).parent / "results"


def device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    return torch.device(choose_device(None))


def machine() -> dict[str, Any]:
    """Device, cores and versions."""
    return describe_machine(device())


def save(name: str, result: dict[str, Any]) -> Path:
    """Write `results/NAME.json` with a description of the machine."""
    path = RESULTS / f"{name}.json"
    write_json(path, "benchmark", 1, {"machine": machine(), **result})
    return path


@contextmanager
def _lock(kind: int, name: str) -> Iterator[None]:
    with (Path(tempfile.gettempdir()) / f"strop-benchmark-{name}.lock").open("w") as file:
        fcntl.flock(file, kind)
        yield  # closing the file releases the lock


def preparing() -> Any:
    """Shared lock for compiling and warming up: concurrent benchmarks may do so together."""
    return _lock(fcntl.LOCK_SH, "device")


def alone() -> Any:
    """Exclusive lock for timing: one benchmark at a time, while none is preparing."""
    return _lock(fcntl.LOCK_EX, "device")


def save_rows(
    name: str, rows: list[dict[str, Any]], keys: tuple[str, ...], **others: Any
) -> list[dict[str, Any]]:
    """Merge `rows` into `results/NAME.json` and return all its rows.

    Rows with the same `keys` are replaced. Rows of another machine are dropped.
    """
    path = RESULTS / f"{name}.json"
    with _lock(fcntl.LOCK_EX, name):
        earlier = read_json(path, "benchmark", 1) if path.is_file() else {}
        kept = earlier.get("rows", []) if earlier.get("machine") == machine() else []
        new = {tuple(row[key] for key in keys) for row in rows}
        rows = [row for row in kept if tuple(row[key] for key in keys) not in new] + rows
        rows.sort(key=lambda row: [str(row[key]).zfill(8) for key in keys])
        save(name, {**others, "rows": rows})
    return rows


def seconds(call: Callable[[], Any], *, repeat: int = 5, at_least: float = 0.3) -> float:
    """Median time of one call after a warm-up; each sample takes at least `at_least` seconds."""
    samples = side_by_side({"": call}, repeat=repeat, at_least=at_least)[""]
    return sorted(samples)[repeat // 2]


def side_by_side(
    calls: dict[str, Callable[[], Any]], *, repeat: int = 5, at_least: float = 0.3
) -> dict[str, list[float]]:
    """Times of one call of each function, in alternation, so that other load affects all alike."""
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


def in_processes(work: Callable[[int], Any], count: int) -> None:
    """Call `work` with each number below `count` in forked processes, one for each core."""
    children = []
    for part in range(cores()):
        child = os.fork()
        if child == 0:
            for index in range(part, count, cores()):
                work(index)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
