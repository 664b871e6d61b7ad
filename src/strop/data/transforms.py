"""Resize records: image, masks, depth and the pixel coordinates of the scene."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from strop.config import typed
from strop.data.decode import nearest
from strop.data.record import VOID, Record
from strop.errors import DataError, expect
from strop.images import Fit, check_square, content_box, fit_square, source_box

Resize = Literal["exact", "fast"]


def fit_record(record: Record, size: int, fit: Fit = "squash", resize: Resize = "exact") -> Record:
    """The record at `size` by `size`. Masks and depth take the nearest pixel.

    `exact` gives the same pixels as `strop.images.fit_square`, and so as encoding the file. `fast`
    resizes in bytes, which is several times as fast; on photographs the difference is seldom more
    than one grey level. With `pad`, `valid` is False in the padding, where masks are `VOID`,
    instances 0 and depth 0.
    """
    expect(record, Record, "a record", DataError, "`strop.images.fit_square` takes pixels.")
    check_square(size, fit)
    typed(Resize, resize, "resize")
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

    def move(entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """An object of the scene, with its `pixel_coords` (x, y, distance) moved."""
        if "pixel_coords" not in entry:
            return entry
        x, y, *rest = entry["pixel_coords"]
        # Pixels are counted from 0 at their centres.
        x = (x - left + 0.5) * (x1 - x0) / (right - left) - 0.5 + x0
        y = (y - top + 0.5) * (y1 - y0) / (bottom - top) - 0.5 + y0
        return {**entry, "pixel_coords": [x, y, *rest]}

    valid = record.valid
    if fit == "pad" and valid is None:
        valid = torch.ones(height, width, dtype=torch.bool)
    scene = record.scene
    if scene is not None and "objects" in scene:
        scene = {**scene, "objects": [move(entry) for entry in scene["objects"]]}
    return replace(
        record,
        image=fit_square(record.image, size, fit, in_bytes=resize == "fast"),
        semantic=window(record.semantic, VOID),
        instance=window(record.instance, 0),
        depth=window(record.depth, 0),
        valid=window(valid, False),
        scene=scene,
    )
