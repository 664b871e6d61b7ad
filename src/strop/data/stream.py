"""All images of a dataset, in order, a batch at a time on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from strop.data.loader import Loader
from strop.data.record import Dataset
from strop.data.scenes import ScenesDataset
from strop.data.transforms import Resize
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
    """(b, 3, size, size) uint8 on `device`, once through the dataset.

    Broken images are left out; `report` is told of them at the end. Scenes for a GPU are rendered
    there, hundreds of times as fast as by `workers`.
    """
    device = torch.device(device)
    if isinstance(dataset, ScenesDataset) and dataset.size == size and device.type == "cuda":
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
