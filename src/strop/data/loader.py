"""Load batches of a dataset in worker processes, in a reproducible order.

The order is a pure function of (seed, epoch) and does not depend on the number of workers or
processes, so a run resumed from `state()` loads exactly the records of an uninterrupted run.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from strop.data.record import PARTS, Batch, BatchDataset, Dataset, Record, stack
from strop.data.rendered import ScenesDataset
from strop.data.transforms import Resize, fit_record
from strop.errors import DataError, StropError
from strop.images import Fit
from strop.pool import Pool, default_context
from strop.prefetch import map_ahead
from strop.random import mix

_CHUNK = 16  # records in one task: large enough to hide the pipe, small enough to split a batch
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


@dataclass(frozen=True, slots=True)
class _Step:
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
    workers      worker processes that decode; 0 decodes in this process. A `BatchDataset` (packed
                 files) does not need workers; with any, it prefetches in a thread instead
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
        for what, value, least in (
            ("batch_size", batch_size, 1),
            ("size", size, 1),
            ("workers", workers, 0),
            ("world", world, 1),
        ):
            if value < least:
                raise DataError(f"{what} is {value}.", f"It must be at least {least}.")
        if size > MAX_SIZE:
            raise DataError(f"size is {size}.", f"It must be at most {MAX_SIZE}.")
        if not 0 <= rank < world:
            raise DataError(f"rank is {rank} of {world}.", f"It must be 0 to {world - 1}.")
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
        self._context = context or default_context()
        self._reader = _Reader(dataset, size, fit, resize)
        self._pool: Pool[_Task, _Chunk] | None = None
        self._slots = 1

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        full, rest = divmod(len(self.dataset), self.batch_size * self.world)
        return full + (not self.drop_last and rest > self.rank)

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current epoch. Afterwards the loader is at the start of the next."""
        yield from self._run(self._epoch_steps(self.epoch, self.position))

    def forever(self) -> Iterator[Batch]:
        """All epochs from the current position, without end. Prefetching crosses epochs."""

        def steps() -> Iterator[_Step]:
            epoch, position = self.epoch, self.position
            while True:
                yield from self._epoch_steps(epoch, position)
                epoch, position = epoch + 1, 0

        yield from self._run(steps())

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

    def close(self) -> None:
        """Stop the workers. They also stop when the loader is collected."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _epoch_steps(self, epoch: int, position: int) -> Iterator[_Step]:
        total = len(self.dataset)
        order = epoch_order(total, self.seed, epoch) if self.shuffle else np.arange(total)
        stride = self.batch_size * self.world
        end = position + (total - position) // stride * stride if self.drop_last else total
        for start in range(position, end, stride):
            block = order[start : start + stride]
            mine = np.array_split(block, self.world)[self.rank]
            after = start + stride
            state = (epoch, after) if after < end else (epoch + 1, 0)
            if len(mine):
                yield _Step(mine, *state)
        # Ends the epoch also in a process without records in the last, short step.
        yield _Step(order[:0], epoch + 1, 0)

    def _run(self, steps: Iterator[_Step]) -> Iterator[Batch]:
        batched = isinstance(self.dataset, BatchDataset) and self.dataset.size == self.size
        good = 0
        for step, batch in self._read_batches(steps) if batched else self._read(steps):
            self.epoch, self.position = step.epoch, step.position
            if batch is None:
                continue
            good += len(batch)
            yield batch
        if not good and self.broken:
            raise DataError(
                f"No record of {self.dataset.name} could be read. "
                f"The first: {next(iter(self.broken.values()))}",
                "Run `strop data check` on it.",
            )

    def _read_batches(self, steps: Iterator[_Step]) -> Iterator[tuple[_Step, Batch | None]]:
        """Load the steps of a `BatchDataset`."""

        def make(step: _Step) -> tuple[_Step, Batch | None]:
            if not len(step.indices):
                return step, None
            batch = self.dataset.batch(step.indices.tolist())  # type: ignore[attr-defined]
            return step, batch.pin_memory() if self._pin else batch

        yield from map_ahead(make, steps, _PREFETCH) if self._workers else map(make, steps)

    def _read(self, steps: Iterator[_Step]) -> Iterator[tuple[_Step, Batch | None]]:
        """Load the steps of a dataset of single records, which workers decode in chunks."""
        chunk = max(1, min(_CHUNK, -(-self.batch_size // max(1, self._workers))))
        pool = self._start(chunk)
        slots = self._slots
        given: deque[_Step] = deque()

        def tasks() -> Iterator[_Task]:
            count = 0
            for step in steps:
                given.append(step)
                for start in range(0, len(step.indices), chunk):
                    # Results arrive in order and at most `slots` tasks are pending, so the slot
                    # of the task `slots` ago is free.
                    yield count % slots, step.indices[start : start + chunk].tolist()
                    count += 1

        try:
            results = pool.map(tasks(), slots)
            while True:
                first = next(results, None)
                while given and not len(given[0].indices):
                    yield given.popleft(), None  # the end of an epoch, which has no chunk
                if first is None:
                    return
                step = given.popleft()
                draft = _Draft(len(step.indices), self.size, self._pin)
                draft.add(first, self._reader.slot(first.slot))
                while draft.seen < len(step.indices):
                    more = next(results)
                    draft.add(more, self._reader.slot(more.slot))
                self.broken.update(draft.broken)
                yield step, draft.finish(self.drop_last)
        except DataError:
            self.close()
            raise

    def _start(self, chunk: int) -> Pool[_Task, _Chunk]:
        if self._pool is None:
            in_batches = _PREFETCH * -(-self.batch_size // chunk)
            self._slots = max(2 * self._workers, in_batches) if self._workers else 1
            self._reader.allocate(self._slots, chunk, self._context if self._workers else None)
            self._pool = Pool(self._reader, self._workers, self._context)
        return self._pool


_Task = tuple[int, list[int]]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Records that a worker read. Their images are in the shared slot."""

    slot: int
    count: int
    indices: list[int]
    names: list[str]
    parts: dict[str, np.ndarray]
    scenes: list[Mapping[str, Any]] | None
    broken: dict[int, str]


class _Reader:
    """The job of a worker: read and resize records, and write their images to a shared slot."""

    def __init__(self, dataset: Dataset, size: int, fit: Fit, resize: Resize) -> None:
        self._dataset = dataset
        self._size = size
        self._fit = fit
        self._resize = resize
        self._memory: Any = None
        self._shape = (0, 0, 3, size, size)

    def allocate(self, slots: int, chunk: int, context: BaseContext | None) -> None:
        """Allocate `slots` chunks, shared with the processes of `context` if there is one."""
        self._shape = (slots, chunk, 3, self._size, self._size)
        count = int(np.prod(self._shape))
        self._memory = context.RawArray("B", count) if context else bytearray(count)

    def slot(self, number: int) -> Tensor:
        """The images of slot `number`: (chunk, 3, S, S) uint8, in place."""
        flat = torch.from_numpy(np.frombuffer(self._memory, dtype=np.uint8))
        return flat.view(self._shape)[number]

    def __call__(self, task: _Task) -> _Chunk:
        number, indices = task
        images = self.slot(number)
        kept: list[int] = []
        records: list[Record] = []
        broken: dict[int, str] = {}
        together = getattr(self._dataset, "records", None)
        ready = together(indices) if together else None
        for row, index in enumerate(indices):
            try:
                record = ready[row] if ready else self._dataset[index]
                record = fit_record(record, self._size, self._fit, self._resize)
            except (StropError, OSError) as error:
                broken[index] = str(error)
                continue
            images[len(kept)] = record.image
            kept.append(index)
            records.append(record)
        scenes = [record.scene for record in records if record.scene is not None]
        return _Chunk(
            slot=number,
            count=len(indices),
            indices=kept,
            names=[record.name for record in records],
            parts={name: part for name in PARTS if (part := _stack(records, name)) is not None},
            scenes=scenes if len(scenes) == len(records) else None,
            broken=broken,
        )


def _stack(records: list[Record], name: str) -> np.ndarray | None:
    values = [getattr(record, name) for record in records]
    if not values or any(value is None for value in values):
        return None
    stacked: np.ndarray = torch.stack(values).numpy()
    if stacked.dtype == np.int64:  # small ids, which take fewer bytes in the pipe
        stacked = stacked.astype(np.uint8 if stacked.max() < 256 else np.int32)
    return stacked


class _Draft:
    """A batch that is being assembled."""

    def __init__(self, count: int, size: int, pin: bool) -> None:
        self.seen = 0
        self.broken: dict[int, str] = {}
        self._images = torch.empty((count, 3, size, size), dtype=torch.uint8, pin_memory=pin)
        self._chunks: list[_Chunk] = []
        self._filled = 0
        self._pin = pin

    def add(self, chunk: _Chunk, images: Tensor) -> None:
        count = len(chunk.indices)
        self._images[self._filled : self._filled + count] = images[:count]
        self._filled += count
        self.seen += chunk.count
        self.broken.update(chunk.broken)
        if count:
            self._chunks.append(chunk)

    def finish(self, fixed: bool) -> Batch | None:
        """The batch, of full length if `fixed`; None if no record could be read."""
        count, filled = len(self._images), self._filled
        if not filled:
            if fixed:
                raise DataError(
                    f"None of the {count} records of a batch could be read. "
                    f"The first: {next(iter(self.broken.values()))}",
                    "Check that the disk is mounted, and run `strop data check` on the dataset.",
                )
            return None
        chunks = self._chunks
        parts: dict[str, Tensor] = {}
        for name in PARTS:
            if all(name in chunk.parts for chunk in chunks):
                joined = np.concatenate([chunk.parts[name] for chunk in chunks])
                if name in {"semantic", "instance"}:
                    joined = joined.astype(np.int64)
                parts[name] = torch.from_numpy(joined)
        scenes: tuple[Mapping[str, Any], ...] | None = None
        if all(chunk.scenes is not None for chunk in chunks):
            scenes = tuple(scene for chunk in chunks for scene in chunk.scenes or ())
        batch = Batch(
            images=self._images[:filled],
            names=tuple(name for chunk in chunks for name in chunk.names),
            indices=torch.tensor([index for chunk in chunks for index in chunk.indices]),
            scenes=scenes,
            **parts,
        )
        if filled < count and fixed:
            batch = batch.take([row % filled for row in range(count)])
        return batch.pin_memory() if self._pin else batch


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
    with Loader(
        dataset,
        batch_size=batch,
        size=size,
        fit=fit,
        resize=resize,
        workers=workers,
        pin_memory=False,
    ) as loader:
        yield from loader
        problems = loader.report()
    if problems and report is not None:
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
        yield from dataset.batches(batch, device, drop_last=False)
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
