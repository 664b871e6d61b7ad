"""What users give to a model as images, as batches of the model's size on its device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.errors import ImageError
from strop.images import Fit, ImageLike, fit_square, read_square, tensor_to_bytes


def square_batches(
    images: ImageLike | Sequence[ImageLike],
    *,
    size: int,
    fit: Fit,
    batch: int,
    device: torch.device,
) -> Iterator[Tensor]:
    """Any images as uint8 `(b, 3, size, size)` on `device`, at most `batch` at a time.

    On a CPU they go one by one, so that a result never depends on the other images of a batch.
    """
    batch = 1 if device.type == "cpu" else batch
    if isinstance(images, Tensor) and images.ndim == 4:
        if images.shape[1] != 3:
            raise ImageError(
                f"A tensor of shape {tuple(images.shape)} is not a batch of RGB images.",
                "Give it as (B, 3, H, W).",
            )
        for part in tensor_to_bytes(images).split(batch):
            yield fit_square(part.to(device), size, fit)
        return
    listed = _listed(images)
    if not listed:
        raise ImageError("There are no images to encode.", "Give at least one.")
    for start in range(0, len(listed), batch):
        squares = [read_square(each, size, fit) for each in listed[start : start + batch]]
        yield torch.stack([square.to(device) for square in squares])


def names_of(images: Any) -> tuple[str, ...]:
    """The names of images given as paths, or none if any is not a path."""
    listed = _listed(images)
    if all(isinstance(image, str | Path) for image in listed):
        return tuple(str(image) for image in listed)
    return ()


def _listed(images: Any) -> Sequence[Any]:
    return images if isinstance(images, list | tuple) else [images]
