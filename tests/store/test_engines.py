"""The local engine replaces workers that die, and gives up only on the image that kills them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from strop.store.encoder import Squares
from strop.store.engines import Task, _map

TASKS: list[Task] = [([2 * number, 2 * number + 1], None) for number in range(30)]
"""More than two workers are given at once."""


class Deadly:
    """Reads the numbers of a task, but is killed at one of them: once, or always."""

    def __init__(self, number: int, once: Path | None = None) -> None:
        self.number, self.once = number, once

    def __call__(self, task: Task) -> Squares:
        if self.number in task[0] and not (self.once and self.once.exists()):
            if self.once:
                self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Squares(np.array(task[0]), {"key": task[0]}, [])

    def rejected(self, task: Task, reason: str) -> Squares:
        return Squares(np.array([], dtype=int), {"key": []}, [{"reason": reason}])


@pytest.mark.parametrize("number", [0, 17, 59])
def test_a_worker_that_dies_loses_no_task(tmp_path, number):
    results = list(_map(Deadly(number, tmp_path / "died"), TASKS, 2))
    assert (tmp_path / "died").exists()
    assert [result.about["key"] for result in results] == [indices for indices, _ in TASKS]


@pytest.mark.parametrize("number", [0, 17, 59])
def test_an_image_that_ends_its_process_is_rejected(number):
    results = list(_map(Deadly(number), TASKS, 2))
    whole = Squares.joined(results)
    assert whole.about["key"] == [other for other in range(60) if other != number]
    assert [reject["reason"] for reject in whole.rejects] == ["exit code -9, SIGKILL"]
