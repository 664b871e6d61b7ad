"""Loaders of fields: from memory, from a cache, or from the teacher in each step."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from strop.data.loader import Loader
from strop.data.record import Dataset
from strop.device import to_device
from strop.errors import TrainingError
from strop.images import Fit
from strop.model.teacher import Teacher
from strop.pool import map_ahead
from strop.training.distributed import Workers
from strop.training.draws import Order, generator, versions
from strop.training.preset import TrainingConfig
from strop.training.views import draw_versions, version_images

Loaded = tuple[Tensor, ...]

AHEAD = 3
"""Number of batches that are read in advance."""


class FieldLoader(ABC):
    """Endless batches of fields of `images` images, as a pure function of the step."""

    def __init__(
        self, images: int, training: TrainingConfig, workers: Workers, device: torch.device
    ) -> None:
        check_images(images, training.batch)
        self.images, self.training = images, training
        self.workers, self.device = workers, device
        self.order = Order(images, training.batch, seed=training.seed)

    @abstractmethod
    def batches(self, step: int) -> Iterator[Loaded]:
        """This process's part of the batches of `step`, `step + 1`, ..., on the device."""

    @abstractmethod
    def field_of(self, loaded: Loaded) -> Tensor:
        """The field (B, S, d_enc), in the teacher's scale, of one of those batches."""

    def report(self) -> str | None:
        """A message that names the broken images so far; None if there are none."""
        return None


class CachedFieldLoader(FieldLoader):
    """Batches of fields (n, m, S, d_enc) in memory or mapped, one random version of each image.

    The step gathers fields that are on its device. Otherwise a thread reads batches in advance.
    `kept` are the training images, by default all.
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
        super().__init__(len(self.kept), training, workers, device)
        self.versions = fields.shape[1]
        self.fields = fields.flatten(0, 1)
        self.resident = fields.device.type == device.type

    def rows(self, step: int) -> Tensor:
        """(B,) int64: the rows of this process's batch in the flattened fields."""
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
        # The thread does no device work, which could interfere with the recording of a CUDA graph.
        read = map_ahead(
            lambda step: self.fields[self.rows(step)].pin_memory(), itertools.count(step), AHEAD
        )
        for fields in read:
            yield (fields.to(self.device, non_blocking=True),)

    def field_of(self, loaded: Loaded) -> Tensor:
        """See `FieldLoader`."""
        return self.fields[loaded[0]] if self.resident else loaded[0]


class OnlineFieldLoader(FieldLoader):
    """Batches of images; the teacher runs in the step."""

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
        super().__init__(len(dataset), training, workers, device)
        self.teacher = teacher
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
    """The field of uint8 images (B, 3, H, H) in the versions `drawn`."""
    return teacher_field(teacher, version_images(images, drawn, training))


def teacher_field(teacher: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """The field of uint8 images (B, 3, H, H); bf16 on a GPU."""
    device = images.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return teacher(images)


def split(images: int, held_out: int) -> tuple[Tensor, Tensor]:
    """Training indices, and up to `held_out` validation indices (at most a tenth of `images`).

    They do not depend on the seed, so that all runs of a sweep have the same validation images.
    """
    held_out = min(held_out, images // 10)
    order = torch.randperm(images, generator=generator(0, "held out", images))
    return order[held_out:].sort().values, order[:held_out].sort().values


def compiled_teacher(teacher: Teacher, compiled: bool, *sizes: int) -> Callable[..., Tensor]:
    """The teacher as a function, optionally compiled, of images with these sides."""
    if not compiled:
        return teacher
    for size in sizes:  # it keeps what depends on the size alone
        teacher(torch.zeros(1, 3, size, size, dtype=torch.uint8, device=teacher.mean.device))
    return torch.compile(teacher, dynamic=False)


def check_images(images: int, batch: int) -> None:
    """Raise if the images do not fill one batch."""
    if images < batch:
        raise TrainingError(
            f"There are {images} images to train on, fewer than one batch of {batch}.",
            "Use more data or a smaller batch.",
        )
