"""Regions of the field: which token owns a location, and what the masks say is there."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.data.record import VOID

Counts = NDArray[np.int64]

NOBODY = -1
"""The owner of a location that no token changes, and the id of one without a label."""
_NOTHING = 1e-6  # a change no greater than rounding


def owners(maps: Tensor) -> Tensor:
    """The token each location depends on most: erasure maps `(B, K, h, w)` to `(B, S)`.

    `NOBODY` where no token makes a difference, or where a program has only one.
    """
    most, token = maps.flatten(2).max(dim=1)
    return torch.where(most > _NOTHING, token, NOBODY)


def patch_counts(mask: Tensor, grid: int, ids: int) -> Tensor:
    """How many pixels of each id lie at each location: a mask `(B, H, W)` to `(B, S, ids)`.

    Pixels of other ids, such as those without a label, are not counted.
    """
    side = mask.shape[-1] // grid
    patches = mask.unfold(1, side, side).unfold(2, side, side).reshape(len(mask), grid**2, -1)
    known = torch.where((patches >= 0) & (patches < ids), patches, ids)
    counts = torch.zeros(*known.shape[:2], ids + 1, dtype=torch.int64, device=mask.device)
    return counts.scatter_add_(2, known, torch.ones_like(known))[..., :ids]


def patch_ids(mask: Tensor, grid: int, ids: int) -> Tensor:
    """The most frequent id at each location: `(B, H, W)` to `(B, S)`; `NOBODY` without any."""
    most, found = patch_counts(mask, grid, ids).max(dim=2)
    return torch.where(most > 0, found, NOBODY)


def mask_ids(mask: Tensor) -> int:
    """How many ids a mask uses: one more than the largest, pixels without a label left out."""
    return int(torch.where(mask == VOID, 0, mask).max()) + 1


def tables(rows: Tensor, columns: Tensor) -> Counts:
    """Joint counts `(B, R, C)` of two partitions `(B, S)` of each image.

    Locations whose column is `NOBODY` are left out; rows that are `NOBODY` are a region of their
    own, the last.
    """
    count, r, c = len(rows), int(rows.max()) + 2, int(columns.max()) + 1
    row = torch.where(rows == NOBODY, r - 1, rows)
    image = torch.arange(count, device=rows.device)[:, None]
    index = ((image * r + row) * c + columns)[columns != NOBODY]
    return torch.bincount(index, minlength=count * r * c).view(count, r, c).cpu().numpy()
