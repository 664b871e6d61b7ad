"""What the benchmarks share: the machine's name, honest timing, one JSON per benchmark."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import strop
from strop.files import write_json

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
