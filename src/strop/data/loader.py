"""Load batches of a dataset in worker processes, in a reproducible order.

The order is a pure function of (seed, epoch) and does not depend on the number of workers or
processes, so a run resumed from `state()` loads exactly the records of an uninterrupted run.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from strop.config import typed
from strop.data.record import PARTS, Batch, BatchDataset, Dataset, Record, check_dataset, stack
from strop.data.rendered import ScenesDataset
from strop.data.transforms import Resize, fit_record
from strop.errors import DataError, StropError
from strop.images import Fit, check_square
from strop.prefetch import map_ahead
from strop.random import mix
from strop.squares import SquarePool

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
        check_dataset(dataset)
        check_square(size, fit)
        typed(Resize, resize, "resize")
        for what, value, least in (
            ("batch_size", batch_size, 1),
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
        self._context = context
        self._fill = partial(_read_records, dataset=dataset, size=size, fit=fit, resize=resize)
        # Records in one task: all workers share a batch.
        self._chunk = max(1, min(_CHUNK, -(-batch_size // max(1, workers))))
        self._pool: SquarePool[int, _Chunk] | None = None

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        full, rest = divmod(len(self.dataset), self.batch_size * self.world)
        return full + (not self.drop_last and rest > self.rank)

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current epoch. Afterwards the loader is at the start of the next."""
        epoch = self.epoch
        yield from self._run(self._epoch_steps(epoch, self.position))
        # The last step may be too short to have records for this process.
        self.epoch, self.position = epoch + 1, 0

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

        def make(step: _Step) -> tuple[_Step, Batch]:
            batch = self.dataset.batch(step.indices.tolist())  # type: ignore[attr-defined]
            return step, batch.pin_memory() if self._pin else batch

        yield from map_ahead(make, steps, _PREFETCH) if self._workers else map(make, steps)

    def _read(self, steps: Iterator[_Step]) -> Iterator[tuple[_Step, Batch | None]]:
        """Load the steps of a dataset of single records, which workers decode in chunks."""
        if self._pool is None:
            self._pool = SquarePool(
                self._fill,
                size=self.size,
                chunk=self._chunk,
                ahead=_PREFETCH * self.batch_size,
                workers=self._workers,
                context=self._context,
            )
        given: deque[_Step] = deque()

        def chunks() -> Iterator[list[int]]:
            for step in steps:
                given.append(step)
                for start in range(0, len(step.indices), self._chunk):
                    yield step.indices[start : start + self._chunk].tolist()

        read: list[_Chunk] = []
        try:
            for chunk, squares in self._pool.map(chunks()):
                count = len(given[0].indices)
                if not read:
                    shape = (count, 3, self.size, self.size)
                    images = torch.empty(shape, dtype=torch.uint8, pin_memory=self._pin)
                filled = sum(len(each.indices) for each in read)
                images[filled : filled + len(chunk.indices)] = squares[: len(chunk.indices)]
                read.append(chunk)
                if sum(len(each.indices) + len(each.broken) for each in read) == count:
                    yield given.popleft(), self._join(read, images)
                    read = []
        except DataError:
            self.close()
            raise

    def _join(self, chunks: list[_Chunk], images: Tensor) -> Batch | None:
        """The batch of one step, of full length if `drop_last`; None if no record could be read."""
        broken = {index: why for chunk in chunks for index, why in chunk.broken.items()}
        self.broken.update(broken)
        indices = [index for chunk in chunks for index in chunk.indices]
        if not indices:
            if self.drop_last:
                raise DataError(
                    f"None of the {len(images)} records of a batch could be read. "
                    f"The first: {next(iter(broken.values()))}",
                    "Check that the disk is mounted, and run `strop data check` on the dataset.",
                )
            return None
        chunks = [chunk for chunk in chunks if chunk.indices]
        parts: dict[str, Tensor] = {}
        for name in PARTS:
            if all(name in chunk.parts for chunk in chunks):
                joined = np.concatenate([chunk.parts[name] for chunk in chunks])
                if name in {"semantic", "instance"}:
                    joined = joined.astype(np.int64)
                parts[name] = torch.from_numpy(joined)
        scenes = tuple(scene for chunk in chunks for scene in chunk.scenes)
        batch = Batch(
            images=images[: len(indices)],
            names=tuple(name for chunk in chunks for name in chunk.names),
            indices=torch.tensor(indices),
            scenes=scenes if len(scenes) == len(indices) else None,
            **parts,
        )
        if self.drop_last and len(batch) < len(images):
            batch = batch.take([row % len(batch) for row in range(len(images))])
        return batch.pin_memory() if self._pin else batch


class _Chunk(NamedTuple):
    """Records that a worker read, without their images."""

    indices: list[int]
    names: list[str]
    parts: dict[str, np.ndarray]
    scenes: list[Mapping[str, Any]]
    broken: dict[int, str]


def _read_records(
    indices: Sequence[int],
    images: Tensor,
    *,
    dataset: Dataset,
    size: int,
    fit: Fit,
    resize: Resize,
) -> _Chunk:
    """Read and resize records, and write the images of those that are not broken."""
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
        images[len(records)] = record.image
        records[index] = record
    return _Chunk(
        indices=list(records),
        names=[record.name for record in records.values()],
        parts={
            name: part for name in PARTS if (part := _stack(records.values(), name)) is not None
        },
        scenes=[record.scene for record in records.values() if record.scene is not None],
        broken=broken,
    )


def _stack(records: Iterable[Record], name: str) -> np.ndarray | None:
    values = [getattr(record, name) for record in records]
    if not values or any(value is None for value in values):
        return None
    stacked: np.ndarray = torch.stack(values).numpy()
    if stacked.dtype == np.int64:  # small ids, which take fewer bytes in the pipe
        stacked = stacked.astype(np.uint8 if stacked.max() < 256 else np.int32)
    return stacked


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
