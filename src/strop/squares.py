"""Squares of images from worker processes, through shared memory of a fixed size, in order."""

from __future__ import annotations

import math
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from strop.errors import ImageError
from strop.images import Fit, read_square
from strop.pool import Pool, cores, default_context

Item = TypeVar("Item")
About = TypeVar("About")

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


def map_squares(
    fill: Callable[[Sequence[Item], Tensor], About],
    chunks: Iterable[Sequence[Item]],
    *,
    size: int,
    chunk: int,
    ahead: int,
    workers: int,
    context: BaseContext | None = None,
) -> Iterator[tuple[About, Tensor]]:
    """What `fill` returns for each chunk, with the squares, which hold until the next one.

    fill     called with up to `chunk` items and with the squares to write, (chunk, 3, size, size)
             in shared memory. It returns what else is known of these items
    ahead    how many squares may be ready before they are taken. Items are drawn as late
    workers  processes that run `fill`; with 0 it runs in this process
    """
    context = context or default_context()
    slots = max(2 * workers, -(-ahead // chunk)) if workers else 1
    shape = (slots, chunk, 3, size, size)
    memory = context.RawArray("B", math.prod(shape)) if workers else bytearray(math.prod(shape))
    job = partial(_fill_slot, fill=fill, memory=memory, shape=shape)
    with Pool(job, workers, context) as pool:
        # A task is drawn after the result of the one `slots` before it was taken, so that its slot
        # is free.
        for slot, about in pool.map(zip(cycle(range(slots)), chunks, strict=False), slots):
            yield about, _squares(memory, shape, slot)


def _fill_slot(
    task: tuple[int, Sequence[Item]],
    fill: Callable[[Sequence[Item], Tensor], About],
    memory: Any,
    shape: tuple[int, ...],
) -> tuple[int, About]:
    """The job of a worker: fill a slot of shared memory, an array of `shape`."""
    slot, items = task
    return slot, fill(items, _squares(memory, shape, slot))


def _squares(memory: Any, shape: tuple[int, ...], slot: int) -> Tensor:
    """The squares of a slot: (chunk, 3, size, size) uint8, in place."""
    return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8)).view(shape)[slot]


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
    read = partial(_read_files, size=size, fit=fit)
    remaining = iter(sources)
    chunks = iter(lambda: [*islice(remaining, _CHUNK)], [])
    for (files, warned), squares in map_squares(
        read, chunks, size=size, chunk=_CHUNK, ahead=ahead, workers=workers
    ):
        for text in warned:
            warnings.warn(text, stacklevel=2)
        for (name, error), square in zip(files, squares, strict=False):
            yield name, error or square.clone()


def _read_files(
    sources: Sequence[Source], squares: Tensor, *, size: int, fit: Fit
) -> tuple[list[tuple[str, ImageError | None]], list[str]]:
    """Write the squares of files. Returns their names and errors, and the text of warnings."""
    files: list[tuple[str, ImageError | None]] = []
    # The standard error of a worker would cut through a progress bar.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        for source, square in zip(sources, squares, strict=False):
            failed = None
            try:
                square.copy_(read_square(source, size, fit))
            except ImageError as error:
                failed = error
            files.append(("the image" if isinstance(source, bytes) else str(source), failed))
    return files, [str(each.message) for each in caught]
