"""Resize and flip records: image, masks, depth and the pixel coordinates of the scene."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from strop.data.decode import nearest
from strop.data.record import VOID, Record
from strop.images import PAD_COLOUR, Fit, content_box, fit_square, interpolate, source_box

Resize = Literal["exact", "fast"]


def fit_record(record: Record, size: int, fit: Fit = "squash", resize: Resize = "exact") -> Record:
    """The record at `size` by `size`. Masks and depth take the nearest pixel.

    `exact` gives the same pixels as `strop.images.fit_square`, and so as encoding the file. `fast`
    resizes in bytes, which is several times as fast; on photographs the difference is seldom more
    than one grey level. With `pad`, `valid` is False in the padding, where masks are `VOID`,
    instances 0 and depth 0.
    """
    height, width = record.image.shape[1:]
    if (height, width) == (size, size):
        if fit == "pad" and record.valid is None:
            return replace(record, valid=torch.ones(size, size, dtype=torch.bool))
        return record
    left, top, right, bottom = source_box(width, height, fit)
    x0, y0, x1, y1 = content_box(width, height, size, fit)

    def window(part: Tensor | None, padding: float) -> Tensor | None:
        if part is None:
            return None
        kept = nearest(part[top:bottom, left:right], y1 - y0, x1 - x0)
        if kept.shape == (size, size):
            return kept
        square = torch.full((size, size), padding, dtype=part.dtype)
        square[y0:y1, x0:x1] = kept
        return square

    def move(x: float, y: float) -> tuple[float, float]:
        # Pixels are counted from 0 at their centres.
        return (
            (x - left + 0.5) * (x1 - x0) / (right - left) - 0.5 + x0,
            (y - top + 0.5) * (y1 - y0) / (bottom - top) - 0.5 + y0,
        )

    if resize == "fast":
        picture = interpolate(record.image[:, top:bottom, left:right], y1 - y0, x1 - x0)
        image = picture
        if fit == "pad":
            image = torch.tensor(PAD_COLOUR, dtype=torch.uint8)[:, None, None].repeat(1, size, size)
            image[:, y0:y1, x0:x1] = picture
    else:
        image = fit_square(record.image, size, fit)
    valid = record.valid
    if fit == "pad" and valid is None:
        valid = torch.ones(height, width, dtype=torch.bool)
    return replace(
        record,
        image=image,
        semantic=window(record.semantic, VOID),
        instance=window(record.instance, 0),
        depth=window(record.depth, 0),
        valid=window(valid, False),
        scene=_move_pixels(record.scene, move),
    )


def flip(record: Record) -> Record:
    """The record mirrored left to right. In its scene, left and right are exchanged."""

    def mirror(part: Tensor | None) -> Tensor | None:
        return None if part is None else part.flip(-1)

    width = record.image.shape[-1]
    scene = _move_pixels(record.scene, lambda x, y: (width - 1 - x, y))
    if scene is not None:
        swap = {"left": "right", "right": "left"}
        scene = dict(scene)
        for field in ("directions", "relationships"):
            if isinstance(scene.get(field), Mapping):
                # The order of keys is kept, so that flipping twice is the identity.
                scene[field] = {key: scene[field][swap.get(key, key)] for key in scene[field]}
    return replace(
        record,
        image=record.image.flip(-1),
        semantic=mirror(record.semantic),
        instance=mirror(record.instance),
        depth=mirror(record.depth),
        valid=mirror(record.valid),
        scene=scene,
    )


def _move_pixels(
    scene: Mapping[str, Any] | None, move: Callable[[float, float], tuple[float, float]]
) -> Mapping[str, Any] | None:
    """The scene with the `pixel_coords` (x, y, distance) of its objects moved."""
    if scene is None or "objects" not in scene:
        return scene
    objects = []
    for entry in scene["objects"]:
        if "pixel_coords" in entry:
            x, y, *rest = entry["pixel_coords"]
            entry = {**entry, "pixel_coords": [*move(x, y), *rest]}
        objects.append(entry)
    return {**scene, "objects": objects}
