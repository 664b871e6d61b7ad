"""A whole dataset, in order, a batch at a time; scenes for a GPU are rendered there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TypeGuard

import torch
from torch import Tensor

from strop.data.loader import Loader
from strop.data.record import Batch, Dataset, stack
from strop.data.rendered import ScenesDataset
from strop.data.transforms import Resize
from strop.errors import DataError
from strop.images import Fit


def image_batches(
    dataset: Dataset,
    *,
    size: int,
    fit: Fit,
    batch: int = 64,
    resize: Resize = "exact",
    device: torch.device | str = "cpu",
    workers: int = 0,
    report: Callable[[str], None] | None = None,
) -> Iterator[Tensor]:
    """Images (b, 3, size, size) uint8 on `device`, once through the dataset.

    Broken images are left out; `report` is told of them at the end.
    """
    if not len(dataset):
        raise DataError(f"{dataset.name} holds no image.", "Name a dataset that holds some.")
    device = torch.device(device)
    if _rendered_there(dataset, size, device):
        yield from dataset.batches(batch, device, drop_last=False)
        return
    with Loader(
        dataset, batch_size=batch, size=size, fit=fit, resize=resize, workers=workers
    ) as loader:
        for records in loader:
            yield records.images.to(device, non_blocking=True)
        problems = loader.report()
    if problems and report is not None:
        report(problems)


def checked_images(images: Tensor, size: int) -> Tensor:
    """Images that are given as a tensor, if they are what `image_batches` would yield."""
    if images.dtype != torch.uint8 or images.shape[1:] != (3, size, size) or not len(images):
        raise DataError(
            f"The images are {tuple(images.shape)} of {images.dtype}.",
            f"Give uint8 of shape (n, 3, {size}, {size}), at least one.",
        )
    return images


def record_batches(
    dataset: Dataset,
    *,
    size: int,
    fit: Fit,
    batch: int = 32,
    device: torch.device | str = "cpu",
    workers: int = 0,
) -> Iterator[Batch]:
    """Whole records on the CPU, once through the dataset.

    Broken ones are left out, and a warning names them at the end. `device` is where the records
    are going to be used.
    """
    device = torch.device(device)
    if _rendered_there(dataset, size, device):
        for first in range(0, len(dataset), batch):
            rows = range(first, min(first + batch, len(dataset)))
            yield stack(dataset.records(rows, device), list(rows)).to("cpu")
        return
    with Loader(
        dataset,
        batch_size=batch,
        size=size,
        fit=fit,
        resize="exact",
        workers=workers,
        pin_memory=False,
    ) as loader:
        yield from loader
        problems = loader.report()
    if problems:
        warnings.warn(problems, stacklevel=2)


def _rendered_there(dataset: Dataset, size: int, device: torch.device) -> TypeGuard[ScenesDataset]:
    """Hundreds of times as fast as a few processes; what is rendered depends on nothing else."""
    return isinstance(dataset, ScenesDataset) and dataset.size == size and device.type == "cuda"
