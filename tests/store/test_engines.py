"""The local engine replaces workers that die, and gives up only on the image that kills them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import strop
from strop.model.length_rule import LengthRule
from strop.store.corpus import Corpus
from strop.store.encode import job_of
from strop.store.engines import Part, Task, _map, encode_locally, slices_of

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
        return Part([{"key": key} for key in task[0]], [])


def rejected(index: int, how: str) -> Part:
    return Part([], [{"reason": how}])


@pytest.mark.parametrize("number", [0, 17, 59])
def test_a_worker_that_dies_loses_no_task(tmp_path, number):
    results = list(_map(Deadly(number, tmp_path / "died"), rejected, TASKS, 2))
    assert (tmp_path / "died").exists()
    assert [[row["key"] for row in result.rows] for result in results] == [
        indices for indices, _ in TASKS
    ]


@pytest.mark.parametrize("number", [0, 17, 59])
def test_an_image_that_ends_its_process_is_rejected(number):
    results = list(_map(Deadly(number), rejected, TASKS, 2))
    whole = Part.joined(results)
    assert [row["key"] for row in whole.rows] == [other for other in range(60) if other != number]
    assert [reject["reason"] for reject in whole.rejects] == ["exit code -9, SIGKILL"]


def test_reading_workers_feed_a_device(photos, model):
    """The way of a GPU: workers read, a thread encodes; rows and rejects are those of a CPU."""
    tokenizer = strop.load(model, device="cpu")
    encoding = tokenizer.encode_batches
    device = SimpleNamespace(device=torch.device("meta"), encode_batches=encoding)
    corpus = Corpus([str(photos)])
    job = job_of(corpus, tokenizer, model, LengthRule(), 4)

    def encode(where: object, workers: int, done: list[int]) -> Iterator[Part]:
        slices = slices_of(range(len(corpus)), 11)
        return encode_locally(job, where, slices, workers=workers, done=done.append)

    expected = list(encode(tokenizer, 0, []))
    for workers in (0, 2):
        done: list[int] = []
        found = list(encode(device, workers, done))
        assert [job.table(part.rows) for part in found] == [
            job.table(part.rows) for part in expected
        ]
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(job.program(ours.rows).codes, job.program(theirs.rows).codes)
        assert [part.rejects for part in found] == [part.rejects for part in expected]
        assert (sum(done), max(done)) == (30, 4)
    results = encode(device, 2, [])
    next(results)
    results.close()
    assert multiprocessing.active_children() == []
