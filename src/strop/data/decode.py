"""Decode images, masks of ids and depth maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.data.record import VOID
from strop.errors import DataError, ImageError, parsing
from strop.images import open_image, read_image

UNKNOWN = -1
"""Marks ids that the dataset does not define, in a table of ids."""


Source = tuple[str | bytes, str]
"""A path or the bytes of a file, and the name that errors give it."""


def read_parts(
    image: Source,
    semantic: Source | None = None,
    instance: Source | None = None,
    depth: Source | None = None,
    *,
    table: np.ndarray | None = None,
) -> dict[str, Any]:
    """Read the image of a record, and its masks and depth at the size of the image.

    `table` maps the raw ids of the semantic mask to class ids.
    """
    picture = read_image(*image)
    parts: dict[str, Any] = {"image": picture}
    if semantic is not None and table is not None:
        mask = parts["semantic"] = look_up(read_ids(*semantic), table, semantic[1])
        check_size(mask, picture, semantic[1], "mask")
    if instance is not None:
        mask = parts["instance"] = torch.from_numpy(read_ids(*instance).astype(np.int64))
        check_size(mask, picture, instance[1], "mask")
    if depth is not None:
        parts["depth"] = match_depth(read_depth(*depth), picture, depth[1])
    return parts


def read_ids(source: str | bytes, name: str) -> np.ndarray:
    """A mask's raw ids `(H, W)`: grey values or palette indices, never palette colours."""
    values = _read_single_channel(source, name, "mask")
    if values.dtype.kind not in "biu":
        raise DataError(
            f"{name} is a mask of {values.dtype}, expected integers.", "Save it as a grey PNG."
        )
    return values


def read_depth(source: str | bytes, name: str) -> Tensor:
    """Depth `(H, W)` float32 in metres from a 16-bit PNG in millimetres."""
    values = _read_single_channel(source, name, "depth map")
    return torch.from_numpy(values.astype(np.float32) / np.float32(1000))


def make_table(ids: Mapping[int, int], length: int = 256) -> np.ndarray:
    """A table `(length,)` int64 from raw ids to class ids; ids not in `ids` are `UNKNOWN`."""
    table = np.full(length, UNKNOWN, dtype=np.int64)
    for raw, class_id in ids.items():
        table[raw] = class_id
    return table


def identity_table(classes: int) -> np.ndarray:
    """A table for masks that hold class ids, and `VOID` for unlabelled pixels."""
    return make_table({**{i: i for i in range(classes)}, VOID: VOID})


def look_up(ids: np.ndarray, table: np.ndarray, name: str) -> Tensor:
    """Map raw ids `(H, W)` to class ids `(H, W)` int64; `DataError` for ids not in the table."""
    # Counting is far cheaper than sorting, but only safe where ids cannot be huge.
    small = ids.dtype.itemsize == 1
    seen = np.flatnonzero(np.bincount(ids.ravel())) if small else np.unique(ids)
    strange = [i for i in seen.tolist() if not 0 <= i < len(table) or table[i] == UNKNOWN]
    if strange:
        known = np.flatnonzero(table != UNKNOWN).tolist()
        raise DataError(
            f"{name} holds label ids that are not in this dataset: {_few(strange)}.",
            f"Known ids are {_few(known)}. Is this the right kind of mask?",
        )
    return torch.from_numpy(table[ids.astype(np.intp)])


def check_size(part: Tensor | np.ndarray, image: Tensor, name: str, what: str) -> None:
    """Raise `DataError` if a mask or depth map `(H, W)` differs in size from its image."""
    if tuple(part.shape) != tuple(image.shape[1:]):
        height, width = image.shape[1:]
        raise DataError(
            f"The {what} {name} is {part.shape[1]} x {part.shape[0]}, "
            f"but its image is {width} x {height}.",
            "An image and its mask must have one size; check that neither was resized or rotated.",
        )


def match_depth(depth: Tensor, image: Tensor, name: str) -> Tensor:
    """`depth` resized to the image. Sensors are often coarser; the aspect ratio must agree."""
    height, width = image.shape[1:]
    if tuple(depth.shape) == (height, width):
        return depth
    if abs(depth.shape[1] * height - depth.shape[0] * width) > 0.03 * depth.shape[0] * width:
        check_size(depth, image, name, "depth map")
    return nearest(depth, height, width)


def nearest(part: Tensor, height: int, width: int) -> Tensor:
    """Resize `(H, W)` to `(height, width)` by the nearest pixel."""
    rows = ((torch.arange(height) * 2 + 1) * part.shape[0]).div(2 * height, rounding_mode="floor")
    columns = ((torch.arange(width) * 2 + 1) * part.shape[1]).div(2 * width, rounding_mode="floor")
    return part[rows[:, None], columns]


def labels_of(ids: Tensor, classes: Sequence[str], label_names: Sequence[str]) -> Tensor:
    """Whether each label, a class by name, occurs in a mask of class ids: `(C,)` bool."""
    present = torch.bincount(ids.flatten(), minlength=len(classes)) > 0
    return present[[classes.index(name) for name in label_names]]


def _read_single_channel(source: str | bytes, name: str, what: str) -> np.ndarray:
    damaged = f"The {what} {name} is damaged or cut short"
    try:
        with open_image(source, name) as image, parsing(DataError, damaged, "Download it again."):
            if image.mode not in {"L", "P", "1", "I", "I;16", "I;16B", "I;16L", "F"}:
                raise DataError(
                    f"The {what} {name} has mode {image.mode}, expected a single channel.",
                    "A colour rendering is not a mask of ids; use the file that holds the ids.",
                )
            return np.array(image)
    except ImageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise DataError(f"The {what} {name} is missing.", "Check the download.") from error
        raise DataError(f"The {what} {error.problem}", error.remedy) from error


def _few(values: list[int], limit: int = 12) -> str:
    spans: list[str] = []
    for _, run in groupby(enumerate(values), lambda each: each[1] - each[0]):
        ids = [value for _, value in run]
        spans.append(f"{ids[0]}-{ids[-1]}" if len(ids) > 1 else f"{ids[0]}")
    return ", ".join(spans[:limit]) + (", ..." if len(spans) > limit else "")
