"""The images of a distillation: decoded once, and optionally cached as views with their fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.data.loader import checked_images, image_batches
from strop.data.record import Dataset
from strop.data.spec import open_dataset
from strop.device import fits_on, to_device, to_device_if_fits
from strop.errors import TrainingError
from strop.images import Fit
from strop.progress import Progress
from strop.training import draws
from strop.training.run_data import split
from strop.training.views import NUMBERS, random_views


def full_batches(count: int, batch: int) -> tuple[Tensor, ...]:
    """The rows of `count` images in batches of exactly `batch`; the last one wraps around.

    Compiled networks accept one batch size only.
    """
    return (torch.arange(-(-count // batch) * batch) % count).split(batch)


def resized(view: Tensor, size: int) -> Tensor:
    """Images (B, 3, H, H) from 0 to 255 at `size` by `size`, float32."""
    if view.shape[-1] == size:
        return view.float()
    small = F.interpolate(view.float(), (size, size), mode="bicubic", antialias=True)
    return small.clamp(0, 255)


@dataclass(frozen=True)
class ImagePool:
    """The decoded images of a run, at its largest size.

    images    (n, 3, H, H) uint8, the concatenated datasets
    counts    number of images of each dataset
    shares    share of a batch that each dataset makes up
    held_out  (m, 3, H, H) uint8
    """

    images: Tensor
    counts: tuple[int, ...]
    shares: tuple[float, ...]
    held_out: Tensor

    def rows(self, seed: int, purpose: str, step: int, count: int) -> Tensor:
        """(count,) int64: rows of random images, from each dataset by its share."""
        which, where = draws.uniform(seed, purpose, step, 2, count)
        ends = torch.tensor(self.shares).cumsum(0)[:-1]
        dataset = torch.bucketize(which, ends, right=True)
        counts = torch.tensor(self.counts)
        starts = counts.cumsum(0) - counts
        return starts[dataset] + (where.double() * counts[dataset]).long()

    def batch(self, rows: Tensor, device: torch.device) -> Tensor:
        """The images at `rows` (B,), on the device."""
        if self.images.device.type == "cpu":
            return to_device(self.images[rows], device)
        return self.images[to_device(rows, device)]


def read_images(
    data: Sequence[str | Dataset | Tensor],
    *,
    size: int,
    batch: int,
    held_out: int,
    shares: Sequence[float] | None,
    validation: str | Dataset | Tensor | None,
    device: torch.device,
    workers: int,
    progress: Progress,
) -> ImagePool:
    """Decode all images, and move them to the device if they fit there.

    batch     lower bound on the number of images
    held_out  number of images to hold out of `data` if there is no `validation`
    """
    images, measured = [], []
    for number, each in enumerate(data):
        progress("reading images", number, len(data))
        read = _read(each, size, device, workers)
        kept, held = split(len(read), 0 if validation is not None else held_out // len(data))
        images.append(read[kept])
        measured.append(read[held])
    if validation is not None:
        measured = [_read(validation, size, device, workers)]
    joined = torch.cat(images)
    if len(joined) < batch:
        raise TrainingError(
            f"There are {len(joined)} images to train on, fewer than one batch of {batch}.",
            "Use more data or a smaller batch.",
        )
    if not sum(map(len, measured)):
        raise TrainingError("There are no held-out images.", "Use more data, or give --val.")
    counts = tuple(map(len, images))
    weights = shares or counts
    return ImagePool(
        to_device_if_fits(joined, device),
        counts,
        tuple(weight / sum(weights) for weight in weights),
        torch.cat(measured).to(device),
    )


def _read(data: str | Dataset | Tensor, size: int, device: torch.device, workers: int) -> Tensor:
    """All images of a dataset, (n, 3, size, size) uint8 on the CPU."""
    if isinstance(data, Tensor):
        return checked_images(data, size).cpu()
    dataset = open_dataset(data) if isinstance(data, str) else data
    fit: Fit = getattr(dataset, "fit", None) or "squash"
    batches = image_batches(
        dataset, size=size, fit=fit, resize="fast", device=device, workers=workers
    )
    return torch.cat([images.cpu() for images in batches])


@dataclass(frozen=True)
class ViewCache:
    """`each` random views of every image, with the fields of all networks; grouped by image.

    views   (n * each, 3, H, H) uint8
    fields  one tensor per network, (n * each, S, d) bf16
    """

    views: Tensor
    fields: list[Tensor]
    each: int

    def batch(self, rows: Tensor, uniform: Tensor) -> tuple[Tensor, list[Tensor]]:
        """One view of each image at `rows` (B,), and its fields, by `uniform` (B, 2) in [0, 1).

        Half of the views are mirrored together with their fields.
        """
        index = rows * self.each + (uniform[:, 0] * self.each).long()
        mirror = uniform[:, 1] < 0.5
        views = self.views[index].float()
        return (
            torch.where(mirror[:, None, None, None], views.flip(-1), views),
            [_mirrored(field[index], mirror) for field in self.fields],
        )


@torch.no_grad()
def cache_views(
    pool: ImagePool,
    fields_of: Callable[[Tensor], Sequence[Tensor]],
    *,
    each: int,
    batch: int,
    seed: int,
    smallest: float,
    device: torch.device,
    progress: Progress,
) -> ViewCache:
    """Make `each` views of every image and compute their fields.

    fields_of  from views (batch, 3, H, H) in 0 to 255 to the fields of all networks
    smallest   smallest share of an image's area in a view
    """
    count = len(pool.images)
    views: Tensor | None = None
    fields: list[Tensor] = []
    for number in range(each):
        progress("computing fields of views", number, each)
        for step, rows in enumerate(full_batches(count, batch)):
            uniform = draws.uniform(seed, f"bank {number}", step, batch, NUMBERS)
            images = pool.batch(rows, device)
            view = random_views(images, to_device(uniform, device), smallest=smallest)
            view = view.round().to(torch.uint8)
            found = fields_of(view.float())
            if views is None:
                _check_memory(count * each, view, found, device)
                views = view.new_empty(count * each, *view.shape[1:])
                fields = [
                    field.new_empty(count * each, *field.shape[1:], dtype=torch.bfloat16)
                    for field in found
                ]
            index = to_device(rows * each + number, device)
            views[index] = view
            for cached, field in zip(fields, found, strict=True):
                cached[index] = field.bfloat16()
    assert views is not None
    return ViewCache(views, fields, each)


def _mirrored(field: Tensor, mirror: Tensor) -> Tensor:
    """A field (B, S, d), flipped horizontally where `mirror` (B,) is true."""
    side = round(field.shape[1] ** 0.5)
    flipped = field.unflatten(1, (side, side)).flip(2).flatten(1, 2)
    return torch.where(mirror[:, None, None], flipped, field)


def _check_memory(count: int, view: Tensor, fields: Sequence[Tensor], device: torch.device) -> None:
    needed = count * (view[0].numel() + sum(2 * field[0].numel() for field in fields))
    if not fits_on(device, needed):
        raise TrainingError(
            f"The views and their fields take {needed / 2**30:.0f} GiB, too much for the GPU.",
            "Use fewer --views, or 0 for new views in every step.",
        )
