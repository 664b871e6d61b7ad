"""The local engine replaces workers that die, and gives up only on the image that kills them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from strop.store.encoder import Part
from strop.store.engines import Task, _map

TASKS: list[Task] = [([2 * number, 2 * number + 1], None) for number in range(30)]
"""More than two workers are given at once."""


class Deadly:
    """Reads the numbers of a task, but is killed at one of them: once, or always."""

    def __init__(self, number: int, once: Path | None = None) -> None:
        self.number, self.once = number, once

    def __call__(self, task: Task) -> Part:
        if self.number in task[0] and not (self.once and self.once.exists()):
            if self.once:
                self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Part(pa.table({"key": pa.array(task[0], pa.int64())}), [])

    def rejected(self, task: Task, reason: str) -> Part:
        return Part(pa.table({"key": pa.array([], pa.int64())}), [{"reason": reason}])


@pytest.mark.parametrize("number", [0, 17, 59])
def test_a_worker_that_dies_loses_no_task(tmp_path, number):
    results = list(_map(Deadly(number, tmp_path / "died"), TASKS, 2))
    assert (tmp_path / "died").exists()
    assert [result.rows["key"].to_pylist() for result in results] == [
        indices for indices, _ in TASKS
    ]


@pytest.mark.parametrize("number", [0, 17, 59])
def test_an_image_that_ends_its_process_is_rejected(number):
    results = list(_map(Deadly(number), TASKS, 2))
    whole = Part.joined(results)
    assert whole.rows["key"].to_pylist() == [other for other in range(60) if other != number]
    assert [reject["reason"] for reject in whole.rejects] == ["exit code -9, SIGKILL"]
