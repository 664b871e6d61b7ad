"""Regions of the field: which token owns a location, and what the masks say is there."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.data.record import VOID

Array = NDArray[np.float64]

NOBODY = -1
"""The owner of a location that no token changes."""
_NOTHING = 1e-6  # a change no greater than rounding


def owners(maps: Tensor) -> Tensor:
    """The token each location depends on most: erasure maps `(B, K, h, w)` to `(B, S)`.

    `NOBODY` where no token makes a difference, or where a program has only one.
    """
    most, token = maps.flatten(2).max(dim=1)
    return torch.where(most > _NOTHING, token, NOBODY)


def patch_shares(mask: Tensor, grid: int, ids: int) -> Tensor:
    """The share of each location's pixels that has each id: a mask `(B, H, W)` to `(B, S, ids)`.

    Pixels of other ids, such as those without a label, belong to none. Shares, and not the most
    frequent id, so that objects smaller than a location count for what they cover.
    """
    side = mask.shape[-1] // grid
    patches = mask.unfold(1, side, side).unfold(2, side, side).reshape(len(mask), grid**2, -1)
    known = torch.where((patches >= 0) & (patches < ids), patches, ids)
    shares = torch.zeros(*known.shape[:2], ids + 1, dtype=torch.double, device=mask.device)
    one = torch.full_like(shares[:, :, :1], 1 / known.shape[2]).expand_as(known)
    return shares.scatter_add_(2, known, one)[..., :ids]


def mask_ids(mask: Tensor) -> int:
    """How many ids a mask uses: one more than the largest, pixels without a label left out."""
    return int(torch.where(mask == VOID, 0, mask).max()) + 1


def tables(regions: Tensor, shares: Tensor) -> Array:
    """How many locations of each image lie in a region and have an id: `(B, R, C)`, in parts.

    regions `(B, S)`, those that are `NOBODY`'s last; shares `(B, S, C)`, from `patch_shares`.
    """
    last = int(regions.max()) + 1
    rows = torch.where(regions == NOBODY, last, regions)[..., None].expand_as(shares)
    joint = torch.zeros(len(shares), last + 1, shares.shape[2], dtype=torch.double)
    return joint.scatter_add_(1, rows, shares).numpy()
