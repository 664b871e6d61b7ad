"""Where the batches of a run come from: fields in memory or in a cache, or the teacher online.

A loader yields the batches of this process from a given step on, on the device, and turns a batch
into its field inside the step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from strop.data.loader import Loader
from strop.data.record import Dataset
from strop.errors import TrainingError
from strop.images import Fit
from strop.model.teacher import Teacher
from strop.training.config import TrainingConfig
from strop.training.distributed import Workers
from strop.training.draws import Order, generator, versions
from strop.training.views import draw_versions, version_images

Loaded = tuple[Tensor, ...]
Read = TypeVar("Read")

AHEAD = 3
"""Batches read from disk before they are needed."""


class FieldLoader(Protocol):
    """Endless batches of fields, as a pure function of the step."""

    images: int

    def batches(self, step: int) -> Iterator[Loaded]:
        """This process's part of the batches of `step`, `step + 1`, ..., on the device."""
        ...

    def field_of(self, loaded: Loaded) -> Tensor:
        """The field (B, S, d_enc), in the teacher's scale, of one of those batches."""
        ...

    def report(self) -> str | None:
        """A sentence that names the broken images met so far; None if there were none."""
        ...


class CachedFieldLoader:
    """Fields (n, m, S, d_enc), in memory or mapped: one of the m versions of an image at a time.

    On the training device they stay where they are and the step picks rows; otherwise a thread
    copies batches to it ahead of time. `kept` are the images to train on, by default all.
    """

    def __init__(
        self,
        fields: Tensor,
        training: TrainingConfig,
        workers: Workers,
        *,
        device: torch.device,
        kept: Tensor | None = None,
    ) -> None:
        self.kept = torch.arange(len(fields)) if kept is None else kept
        self.images = len(self.kept)
        self.versions = fields.shape[1]
        self.fields = fields.flatten(0, 1)
        self.device = device
        self.training, self.workers = training, workers
        self.order = Order(self.images, training.batch, seed=training.seed)
        self.resident = fields.device.type == device.type and device.type != "cpu"
        check_images(self.images, training)

    def rows(self, step: int) -> Tensor:
        """(B,) int64: the rows of the flattened fields that make up this process's batch."""
        training = self.training
        rows = self.kept[self.order.rows(step)] * self.versions
        rows = rows + versions(training.seed, step, training.batch, self.versions)
        return rows[self.workers.share(training.batch)]

    def batches(self, step: int) -> Iterator[Loaded]:
        """See `FieldLoader`."""
        if self.resident:
            while True:
                yield (to_device(self.rows(step), self.device),)
                step += 1
        elif self.device.type == "cpu":
            while True:
                yield (self.fields[self.rows(step)],)
                step += 1
        # The thread only gathers and pins: device work from two threads could meet in a recording.
        for fields in ahead(lambda step: self.fields[self.rows(step)].pin_memory(), step):
            yield (fields.to(self.device, non_blocking=True),)

    def field_of(self, loaded: Loaded) -> Tensor:
        """See `FieldLoader`."""
        return self.fields[loaded[0]] if self.resident else loaded[0]

    def report(self) -> None:
        """See `FieldLoader`: broken images have no fields."""


class OnlineFieldLoader:
    """Images of a dataset; the teacher runs in the step."""

    def __init__(
        self,
        dataset: Dataset,
        teacher: Callable[[Tensor], Tensor],
        training: TrainingConfig,
        workers: Workers,
        *,
        size: int,
        fit: Fit,
        device: torch.device,
        loading_workers: int = 0,
    ) -> None:
        self.images = len(dataset)
        check_images(self.images, training)
        self.teacher, self.device = teacher, device
        self.training, self.workers = training, workers
        self.order = Order(self.images, training.batch, seed=training.seed)
        self.loader = Loader(
            dataset,
            batch_size=training.batch // workers.world,
            size=size,
            fit=fit,
            seed=training.seed,
            shuffle=True,
            drop_last=True,
            workers=loading_workers,
            rank=workers.rank,
            world=workers.world,
            pin_memory=device.type == "cuda",
        )

    def batches(self, step: int) -> Iterator[Loaded]:
        """See `FieldLoader`."""
        epoch, position = self.order.place(step)
        self.loader.restore({"epoch": epoch, "position": position, "records": self.images})
        share = self.workers.share(self.training.batch)
        for batch in self.loader.forever():
            drawn = draw_versions(self.training, step)[share]
            yield to_device(batch.images, self.device), to_device(drawn, self.device)
            step += 1

    def field_of(self, loaded: Loaded) -> Tensor:
        """See `FieldLoader`."""
        images, drawn = loaded
        return online_field(self.teacher, images, drawn, self.training)

    def report(self) -> str | None:
        """See `FieldLoader`."""
        return self.loader.report()


@torch.no_grad()
def online_field(
    teacher: Callable[[Tensor], Tensor], images: Tensor, drawn: Tensor, training: TrainingConfig
) -> Tensor:
    """The field of uint8 images (B, 3, H, H), each in the version drawn for it; bf16 on a GPU."""
    device = images.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return teacher(version_images(images, drawn, training))


def split(images: int, held_out: int) -> tuple[Tensor, Tensor]:
    """Indices to train on, and `held_out` to keep from training (at most a tenth).

    The same for every seed of a run, so that runs of a sweep are measured on the same images.
    """
    held_out = min(held_out, images // 10)
    order = torch.randperm(images, generator=generator(0, "held out", images))
    return order[held_out:].sort().values, order[:held_out].sort().values


def compiled_teacher(teacher: Teacher, compiled: bool) -> Callable[..., Tensor]:
    """The teacher as a function, optionally compiled."""
    return torch.compile(teacher, dynamic=False) if compiled else teacher


def check_images(images: int, training: TrainingConfig) -> None:
    """Refuse a dataset that does not fill one batch."""
    if images < training.batch:
        raise TrainingError(
            f"There are {images} images to train on, fewer than one batch of {training.batch}.",
            "Use more data or a smaller training.batch.",
        )


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """`value` on `device`, copied from pinned memory without waiting for the copy."""
    if device.type != "cuda":
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)


def ahead(load: Callable[[int], Read], step: int) -> Iterator[Read]:
    """`load(step)`, `load(step + 1)`, ... with `AHEAD` of them in progress in a thread."""
    with ThreadPoolExecutor(1, thread_name_prefix="strop-fields") as thread:
        waiting = deque(thread.submit(load, step + n) for n in range(AHEAD))
        step += AHEAD
        try:
            while True:
                yield waiting.popleft().result()
                waiting.append(thread.submit(load, step))
                step += 1
        finally:
            for future in waiting:
                future.cancel()
