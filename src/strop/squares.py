"""Read image files into squares in worker processes, in order and in bounded memory."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.errors import ImageError
from strop.images import Fit, read_square
from strop.pool import Pool, cores, default_context

Source = str | os.PathLike[str] | bytes
"""A path, or the bytes of a file."""

MAX_WORKERS = 16
_CHUNK = 4  # files in one task: enough to hide the pipe
_FILES_PER_WORKER = 8  # with fewer, starting a worker takes longer than it saves


def reading_workers(files: int) -> int:
    """How many worker processes read this many files best; 0 means this process."""
    if multiprocessing.current_process().daemon:  # a worker itself, which cannot have any
        return 0
    count = cores()
    return min(count, MAX_WORKERS, files // _FILES_PER_WORKER) if count > 1 else 0


def read_squares(
    sources: Iterable[Source],
    size: int,
    fit: Fit = "squash",
    *,
    workers: int = 0,
    ahead: int = 64,
) -> Iterator[tuple[str, Tensor | ImageError]]:
    """The name of each file with its square `(3, size, size)` uint8, or with its error, in order.

    workers  processes that read, decode and resize; 0 does it in this process. Squares are equal
    ahead    how many squares may be ready before they are taken. Sources are drawn as late
    """
    slots = max(2 * workers, -(-ahead // _CHUNK)) if workers else 1
    context = default_context()
    shape = (slots, _CHUNK, 3, size, size)
    count = int(np.prod(shape))
    memory = context.RawArray("B", count) if workers else bytearray(count)
    reader = _Reader(memory, shape, size, fit)
    pool = Pool(reader, workers, context)
    try:
        for read in pool.map(_tasks(sources, slots), slots):
            for text in read.warned:
                warnings.warn(text, stacklevel=2)
            squares = reader.squares(read.slot)
            for row, (name, error) in enumerate(zip(read.names, read.errors, strict=True)):
                yield name, error or squares[row].clone()
    finally:
        pool.close()


_Task = tuple[int, list[Source]]


def _tasks(sources: Iterable[Source], slots: int) -> Iterator[_Task]:
    """Chunks of sources with their slots. `Pool.map` draws a task after the result of the one
    `slots` ago was taken, so its slot is free."""
    chunk: list[Source] = []
    given = 0
    for source in sources:
        chunk.append(source)
        if len(chunk) == _CHUNK:
            yield given % slots, chunk
            chunk, given = [], given + 1
    if chunk:
        yield given % slots, chunk


@dataclass(frozen=True, slots=True)
class _Read:
    """What a worker read. The squares are in the shared slot."""

    slot: int
    names: list[str]
    errors: list[ImageError | None]
    warned: list[str]


class _Reader:
    """The job of a worker: read files and write their squares to a slot of shared memory."""

    def __init__(self, memory: Any, shape: tuple[int, ...], size: int, fit: Fit) -> None:
        self._memory, self._shape = memory, shape
        self._size, self._fit = size, fit

    def squares(self, slot: int) -> Tensor:
        """The squares of a slot: (chunk, 3, size, size) uint8, in place."""
        flat = torch.from_numpy(np.frombuffer(self._memory, dtype=np.uint8))
        return flat.view(self._shape)[slot]

    def __call__(self, task: _Task) -> _Read:
        slot, sources = task
        squares = self.squares(slot)
        errors: list[ImageError | None] = []
        # The standard error of a worker would cut through a progress bar.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            for row, source in enumerate(sources):
                try:
                    squares[row] = read_square(source, self._size, self._fit)
                except ImageError as error:
                    errors.append(error)
                else:
                    errors.append(None)
        names = ["the image" if isinstance(each, bytes) else str(each) for each in sources]
        return _Read(slot, names, errors, [str(each.message) for each in caught])
