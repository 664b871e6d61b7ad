"""Load batches of a dataset in worker processes, in a reproducible order.

The order is a pure function of (seed, epoch) and does not depend on the number of workers or
processes, so a run resumed from `state()` loads exactly the records of an uninterrupted run.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from strop.config import in_range, typed
from strop.data.record import Batch, Dataset, Record, check_dataset, concat, stack
from strop.data.rendered import ScenesDataset
from strop.data.transforms import Resize, fit_record
from strop.errors import DataError, StropError
from strop.images import Fit, check_square
from strop.pool import map_ahead
from strop.random import mix
from strop.squares import map_squares

_CHUNK = 16  # records in one task at most: enough to hide the pipe
_PREFETCH = 2  # batches
MAX_SIZE = 8192  # pixels along a side of a batch


def epoch_order(length: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch: a permutation `(length,)` int64, a pure function of its arguments.

    Records are sorted by a hash of (seed, epoch, index) in integer arithmetic, so the order does
    not depend on library versions.
    """
    key = mix(np.array([seed], dtype=np.int64).view(np.uint64))
    key = mix(key + np.uint64(epoch))
    return np.argsort(mix(np.arange(length, dtype=np.uint64) + key), kind="stable")


class _Step(NamedTuple):
    """The records of one batch, and the state of the loader after it."""

    indices: np.ndarray
    epoch: int
    position: int


class Loader:
    """Iterates over a dataset in batches of `size` by `size`.

    batch_size   records in a batch of this process
    shuffle      a new order in each epoch; otherwise the order of the dataset
    drop_last    only full batches, of a fixed shape, for training. Another record of the batch
                 replaces a broken one. Without it, a batch with a broken record is shorter
    workers      worker processes that decode; 0 decodes in this process. They stop with the
                 iteration. Packed files do not need workers: with any, a thread prefetches
    rank, world  index and number of processes. The batches of all processes in one step form the
                 batch of a single process
    resize       "fast" resizes bytes; "exact" gives the same pixels as encoding the file
    pin_memory   page-locked batches; by default if CUDA is available
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        size: int,
        fit: Fit = "squash",
        resize: Resize = "fast",
        seed: int = 0,
        shuffle: bool = False,
        drop_last: bool = False,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        pin_memory: bool | None = None,
        context: BaseContext | None = None,
    ) -> None:
        check_dataset(dataset)
        size = in_range(size, "size", 1, MAX_SIZE)
        check_square(size, fit)
        typed(Resize, resize, "resize")
        batch_size = in_range(batch_size, "batch_size", 1)
        workers = in_range(workers, "workers", 0)
        in_range(world, "world", 1)
        in_range(rank, "rank", 0, world - 1)
        if drop_last and len(dataset) < batch_size * world:
            raise DataError(
                f"{dataset.name} has {len(dataset)} records, not one full batch of "
                f"{batch_size} x {world}.",
                "Use a smaller batch or more data.",
            )
        held = getattr(dataset, "fit", None)
        if held is not None and held != fit:
            raise DataError(
                f"{dataset.name} was packed with fit {held!r}, not {fit!r}.",
                f"Pack it again with --fit {fit}, or use {held!r}.",
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.size = size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.rank = rank
        self.world = world
        self.epoch = 0
        self.position = 0
        self.broken: dict[int, str] = {}
        self._pin = torch.cuda.is_available() if pin_memory is None else pin_memory
        self._workers = workers
        self._context = context
        self._fill = partial(_read_records, dataset=dataset, size=size, fit=fit, resize=resize)
        self._running: object = None  # the iteration that moves the position

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        full, rest = divmod(len(self.dataset), self.batch_size * self.world)
        return full + (not self.drop_last and rest > self.rank)

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current epoch. Afterwards the loader is at the start of the next."""
        epoch = self.epoch
        yield from self._run(self._steps(epochs=1))
        # The last step may be too short to have records for this process.
        self.epoch, self.position = epoch + 1, 0

    def forever(self) -> Iterator[Batch]:
        """All epochs from the current position, without end. Prefetching crosses epochs."""
        return self._run(self._steps())

    def state(self) -> dict[str, int]:
        """The position after the batches that were yielded; prefetched batches do not count."""
        return {"epoch": self.epoch, "position": self.position, "records": len(self.dataset)}

    def restore(self, state: Mapping[str, int]) -> None:
        """Resume from `state`, with any number of workers or processes and any batch size."""
        try:
            epoch, position, records = state["epoch"], state["position"], state["records"]
        except KeyError as error:
            raise DataError(
                f"The loader state has no {error}.", "Restore what `state` returned."
            ) from error
        if records != len(self.dataset):
            raise DataError(
                f"The state is of a dataset of {records} records; "
                f"{self.dataset.name} has {len(self.dataset)}.",
                "Resume with the same data, or start a new run.",
            )
        if epoch < 0 or not 0 <= position <= records:
            raise DataError(
                f"Position {position} of epoch {epoch} is outside the data.",
                "Restore what `state` returned.",
            )
        self.epoch, self.position = epoch, position

    def report(self, limit: int = 10) -> str | None:
        """The broken records so far, as text; None if there are none."""
        problems = [*getattr(self.dataset, "problems", ()), *self.broken.values()]
        if not problems:
            return None
        more = [f"... and {len(problems) - limit} more"] if len(problems) > limit else []
        head = f"{len(self.broken)} of {len(self.dataset)} records were skipped as broken:"
        return "\n  ".join([head, *problems[:limit], *more])

    def _steps(self, epochs: int | None = None) -> Iterator[_Step]:
        total, position = len(self.dataset), self.position
        stride = self.batch_size * self.world
        for epoch in islice(count(self.epoch), epochs):
            order = epoch_order(total, self.seed, epoch) if self.shuffle else np.arange(total)
            end = position + (total - position) // stride * stride if self.drop_last else total
            for start in range(position, end, stride):
                mine = np.array_split(order[start : start + stride], self.world)[self.rank]
                after = start + stride
                if len(mine):
                    yield _Step(mine, *((epoch, after) if after < end else (epoch + 1, 0)))
            position = 0

    def _run(self, steps: Iterator[_Step]) -> Iterator[Batch]:
        running = self._running = object()
        whole = hasattr(self.dataset, "batch") and getattr(self.dataset, "size", 0) == self.size
        good = 0
        for step, batch in self._read_batches(steps) if whole else self._read_records(steps):
            if self._running is not running:
                raise DataError(
                    "A newer iteration over the same loader has started.",
                    "Finish one iteration before the next, or use two loaders.",
                )
            self.epoch, self.position = step.epoch, step.position
            if batch is None:
                continue
            good += len(batch)
            yield batch.pin_memory() if self._pin else batch
        if not good and self.broken:
            raise DataError(
                f"No record of {self.dataset.name} could be read. "
                f"The first: {next(iter(self.broken.values()))}",
                "Run `strop data check` on it.",
            )

    def _read_batches(self, steps: Iterator[_Step]) -> Iterator[tuple[_Step, Batch]]:
        """Load the steps of a dataset that gives whole batches."""

        def read(step: _Step) -> tuple[_Step, Batch]:
            batch = self.dataset.batch(step.indices.tolist())  # type: ignore[attr-defined]
            return step, batch.pin_memory() if self._pin else batch

        return map_ahead(read, steps, _PREFETCH) if self._workers else map(read, steps)

    def _read_records(self, steps: Iterator[_Step]) -> Iterator[tuple[_Step, Batch | None]]:
        """Load the steps of a dataset of single records, which workers read in chunks."""
        # Records in one task: all workers share a batch.
        chunk = max(1, min(_CHUNK, -(-self.batch_size // max(1, self._workers))))
        given: deque[_Step] = deque()

        def chunks() -> Iterator[list[int]]:
            for step in steps:
                given.append(step)
                for start in range(0, len(step.indices), chunk):
                    yield step.indices[start : start + chunk].tolist()

        loaded = map_squares(
            self._fill,
            chunks(),
            size=self.size,
            chunk=chunk,
            ahead=_PREFETCH * self.batch_size,
            workers=self._workers,
            context=self._context,
        )
        for first in loaded:
            step = given.popleft()
            whole, filled = len(step.indices), 0
            shape = (whole, 3, self.size, self.size)
            images = torch.empty(shape, dtype=torch.uint8, pin_memory=self._pin)
            parts: list[Batch] = []
            for (part, broken), squares in chain([first], islice(loaded, (whole - 1) // chunk)):
                self.broken |= broken
                if part is not None:
                    images[filled : filled + len(part)] = squares[: len(part)]
                    filled += len(part)
                    parts.append(part.map(torch.from_numpy))
            yield step, self._join(parts, images[:filled], step.indices)

    def _join(self, parts: list[Batch], images: Tensor, indices: np.ndarray) -> Batch | None:
        """The batch of one step, of full length if `drop_last`; None if no record could be read."""
        if parts:
            batch = replace(concat(parts), images=images)
            if self.drop_last and len(batch) < len(indices):
                batch = batch.take([row % len(batch) for row in range(len(indices))])
            return batch
        if self.drop_last:
            raise DataError(
                f"None of the {len(indices)} records of a batch could be read. "
                f"The first: {self.broken[int(indices[0])]}",
                "Check that the disk is mounted, and run `strop data check` on the dataset.",
            )
        return None


def _read_records(
    indices: Sequence[int],
    squares: Tensor,
    *,
    dataset: Dataset,
    size: int,
    fit: Fit,
    resize: Resize,
) -> tuple[Batch | None, dict[int, str]]:
    """Read and resize records, and write the images of those that are not broken.

    Returns a batch of them without images, as arrays (torch would send each tensor as a file of
    shared memory), and the errors of the broken ones by index.
    """
    records: dict[int, Record] = {}
    broken: dict[int, str] = {}
    together = getattr(dataset, "records", None)
    ready = together(indices) if together else None
    for row, index in enumerate(indices):
        try:
            record = ready[row] if ready else dataset[index]
            record = fit_record(record, size, fit, resize)
        except (StropError, OSError) as error:
            broken[index] = str(error)
            continue
        squares[len(records)] = record.image
        records[index] = replace(record, image=record.image[:0])
    if not records:
        return None, broken
    return stack(list(records.values()), list(records)).map(Tensor.numpy), broken


def record_batches(
    dataset: Dataset,
    *,
    size: int,
    fit: Fit,
    batch: int = 32,
    resize: Resize = "exact",
    device: torch.device | str = "cpu",
    workers: int = 0,
    report: Callable[[str], None] | None = warnings.warn,
) -> Iterator[Batch]:
    """Batches of all records in order, on the CPU, once.

    Broken records are skipped and passed to `report` at the end, in one message. `device` is where
    the records will be used: rendered scenes are rendered there.
    """
    if not len(dataset):
        raise DataError(f"{dataset.name} holds no image.", "Name a dataset that holds some.")
    device = torch.device(device)
    if _renders_on(dataset, size, device):
        for first in range(0, len(dataset), batch):
            rows = range(first, min(first + batch, len(dataset)))
            yield stack(dataset.records(rows, device), rows).to("cpu")
        return
    loader = Loader(
        dataset,
        batch_size=batch,
        size=size,
        fit=fit,
        resize=resize,
        workers=workers,
        pin_memory=False,
    )
    yield from loader
    if report is not None and (problems := loader.report()):
        report(problems)


def image_batches(
    dataset: Dataset | Tensor,
    *,
    size: int,
    device: torch.device | str = "cpu",
    batch: int = 64,
    **options: Any,
) -> Iterator[Tensor]:
    """The images alone, (b, 3, size, size) uint8 on `device`; `options` as in `record_batches`.

    `dataset` may also be the images themselves, (n, 3, size, size) uint8.
    """
    device = torch.device(device)
    if isinstance(dataset, Tensor):
        for part in checked_images(dataset, size).split(batch):
            yield part.to(device)
        return
    if _renders_on(dataset, size, device) and len(dataset):
        yield from dataset.batches(batch, device)
        return
    for records in record_batches(dataset, size=size, batch=batch, device=device, **options):
        yield records.images.to(device, non_blocking=True)


def checked_images(images: Tensor, size: int) -> Tensor:
    """`images` if they are a tensor as `image_batches` yields them; `DataError` otherwise."""
    if images.dtype != torch.uint8 or images.shape[1:] != (3, size, size) or not len(images):
        raise DataError(
            f"The images are {tuple(images.shape)} of {images.dtype}.",
            f"Give uint8 of shape (n, 3, {size}, {size}), at least one.",
        )
    return images


def _renders_on(dataset: Dataset, size: int, device: torch.device) -> TypeGuard[ScenesDataset]:
    """Whether `dataset` renders on this GPU, which is far faster than worker processes."""
    return isinstance(dataset, ScenesDataset) and dataset.size == size and device.type == "cuda"
