"""Geometry on whole records: image, masks, depth and the scene's pixels move together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.data.decode import nearest
from strop.data.record import Record
from strop.images import Fit, fit_square

Resize = Literal["exact", "fast"]


def squash(record: Record, size: int) -> Record:
    """The whole picture at `size` by `size`; its aspect is given up."""
    return fit_record(record, size, "squash")


def crop(record: Record, size: int) -> Record:
    """The centre of the picture, its short side scaled to `size`."""
    return fit_record(record, size, "crop")


def fit_record(record: Record, size: int, fit: Fit = "squash", resize: Resize = "exact") -> Record:
    """The record at `size` by `size`. Masks and depth take the nearest pixel, never a mixture.

    `exact` gives the same pixels as `strop.images.fit_square`, and so as encoding the file;
    `fast` resizes in bytes, which is several times as fast and, on photographs, seldom more than a
    grey level away.
    """
    height, width = record.image.shape[1:]
    if (height, width) == (size, size):
        return record
    side = min(height, width)
    top, left = ((height - side) // 2, (width - side) // 2) if fit == "crop" else (0, 0)
    high, wide = (side, side) if fit == "crop" else (height, width)

    def window(part: Tensor | None) -> Tensor | None:
        if part is None:
            return None
        return nearest(part[top : top + high, left : left + wide], size, size)

    def move(x: float, y: float) -> tuple[float, float]:
        # Pixels are counted from 0 at their centres.
        return (x - left + 0.5) * size / wide - 0.5, (y - top + 0.5) * size / high - 0.5

    if resize == "fast":
        image = _resize_bytes(record.image[:, top : top + high, left : left + wide], size)
    else:
        image = fit_square(record.image, size, fit)
    return replace(
        record,
        image=image,
        semantic=window(record.semantic),
        instance=window(record.instance),
        depth=window(record.depth),
        scene=_move_pixels(record.scene, move),
    )


def flip(record: Record) -> Record:
    """The record mirrored left to right; in its scene, left and right change places."""

    def mirror(part: Tensor | None) -> Tensor | None:
        return None if part is None else part.flip(-1)

    width = record.image.shape[-1]
    scene = _move_pixels(record.scene, lambda x, y: (width - 1 - x, y))
    if scene is not None:
        swap = {"left": "right", "right": "left"}
        scene = dict(scene)
        for field in ("directions", "relationships"):
            if isinstance(scene.get(field), Mapping):
                # In the order of the original, so that flipping twice changes nothing.
                scene[field] = {key: scene[field][swap.get(key, key)] for key in scene[field]}
    return replace(
        record,
        image=record.image.flip(-1),
        semantic=mirror(record.semantic),
        instance=mirror(record.instance),
        depth=mirror(record.depth),
        scene=scene,
    )


def _resize_bytes(image: Tensor, size: int) -> Tensor:
    if image.shape[1:] == (size, size):
        return image
    return F.interpolate(image.to(torch.uint8)[None], (size, size), mode="bicubic", antialias=True)[
        0
    ]


def _move_pixels(
    scene: Mapping[str, Any] | None, move: Callable[[float, float], tuple[float, float]]
) -> Mapping[str, Any] | None:
    """The scene with `pixel_coords` (x, y, distance) of its objects moved; the rest as it was."""
    if scene is None or "objects" not in scene:
        return scene
    objects = []
    for thing in scene["objects"]:
        if "pixel_coords" in thing:
            x, y, *rest = thing["pixel_coords"]
            thing = {**thing, "pixel_coords": [*move(x, y), *rest]}
        objects.append(thing)
    return {**scene, "objects": objects}
