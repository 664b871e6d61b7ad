"""The images of a distillation, from one or more datasets, decoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strop.data.loader import checked_images, image_batches
from strop.data.record import Dataset
from strop.data.spec import open_dataset
from strop.errors import TrainingError
from strop.images import Fit
from strop.training import draws
from strop.training.sources import split, to_device

Watch = Callable[[float, str], None]
"""Called now and then with the share of the run that is done, and what it is at."""

RESIDENT_SHARE = 0.5
"""Of the GPU's free memory that images may take."""


def whole_batches(count: int, batch: int) -> tuple[Tensor, ...]:
    """The rows of `count` images in batches of exactly `batch`, the last filled up from the start.

    Compiled networks know no other size.
    """
    return (torch.arange(-(-count // batch) * batch) % count).split(batch)


@dataclass(frozen=True)
class Pool:
    """The images of a run, decoded, at its largest size.

    images    (n, 3, H, H) uint8, the datasets' one after another
    counts    how many of them each dataset has
    shares    how much of a batch each dataset makes up
    held_out  (m, 3, H, H) uint8
    """

    images: Tensor
    counts: tuple[int, ...]
    shares: tuple[float, ...]
    held_out: Tensor

    def rows(self, seed: int, purpose: str, step: int, count: int) -> Tensor:
        """(count,) int64: images drawn at random, from each dataset by its share."""
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


def read_pool(
    data: Sequence[str | Dataset | Tensor],
    *,
    size: int,
    batch: int,
    held_out: int,
    shares: Sequence[float] | None,
    validation: str | Dataset | Tensor | None,
    device: torch.device,
    loading_workers: int,
    watch: Watch,
) -> Pool:
    """Decode all images once; they lie on the device if they fit there.

    held_out  how many to keep from training, unless `validation` names others to measure on
    batch     how many there must be at least
    """
    images, measured = [], []
    for number, each in enumerate(data):
        watch(0, f"reading images, {number + 1} of {len(data)}")
        read = _read(each, size, device, loading_workers)
        wanted = 0 if validation is not None else held_out // len(data)
        kept, held = split(len(read), wanted)
        images.append(read[kept])
        measured.append(read[held])
    if validation is not None:
        measured = [_read(validation, size, device, loading_workers)]
    whole = torch.cat(images)
    if len(whole) < batch:
        raise TrainingError(
            f"There are {len(whole)} images to train on, fewer than one batch of {batch}.",
            "Use more data or a smaller batch.",
        )
    if not sum(map(len, measured)):
        raise TrainingError(
            "There is no image to measure on.", "Use more data, or name some with --val."
        )
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if whole.nbytes < RESIDENT_SHARE * free:
            whole = whole.to(device)
    counts = tuple(map(len, images))
    given = shares or counts
    return Pool(
        whole,
        counts,
        tuple(share / sum(given) for share in given),
        torch.cat(measured).to(device),
    )


def _read(
    data: str | Dataset | Tensor, size: int, device: torch.device, loading_workers: int
) -> Tensor:
    """All images of a dataset, (n, 3, size, size) uint8 on the CPU."""
    if isinstance(data, Tensor):
        return checked_images(data, size).cpu()
    dataset = open_dataset(data) if isinstance(data, str) else data
    fit: Fit = getattr(dataset, "fit", None) or "squash"
    batches = image_batches(
        dataset, size=size, fit=fit, resize="fast", device=device, workers=loading_workers
    )
    return torch.cat([images.cpu() for images in batches])
