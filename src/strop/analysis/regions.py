"""Regions of the field: the token that owns each location, and what masks show there.

Section 4, "Program structure".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.analysis.counterfactual import Edit, Removal, erasure
from strop.analysis.frame import Sampling
from strop.analysis.subject import Subject
from strop.data.record import VOID
from strop.program import Program
from strop.statistics import Array

NOBODY = -1
"""The owner of a location that no token changes."""
_ROUNDING = 1e-6  # a smaller change of the field is rounding
_PROGRAMS = 16  # between two reports of progress

REMOVALS: dict[Edit, str] = {
    "erase": "Tokens are erased: a hole stays, and all other tokens keep their positions.",
    "delete": "Tokens are deleted: all later tokens move up by one position, so that a map also "
    "holds the effect of their new positions.",
    "replace": "Tokens are replaced by a random other code, which adds content of its own.",
}
"""What each edit changes besides the token itself."""


@dataclass(frozen=True, kw_only=True)
class RemovalOptions(Sampling):
    """Options of analyses that remove tokens.

    edit  how a token is removed: erase (leaves a hole) or delete (closes the gap)
    """

    edit: Removal = "erase"


def erasure_maps(subject: Subject, *, edit: Edit = "erase", seed: int = 0) -> Tensor:
    """Erasure maps `(B, K, h, w)` of all programs of a subject, on the CPU."""
    parts = []
    for start in range(0, len(subject), _PROGRAMS):
        programs = subject.program[start : start + _PROGRAMS]
        parts.append(erasure(subject.tokenizer, programs, edit=edit, seed=seed + start).cpu())
        subject.progress(f"maps by {edit}", start + len(programs), len(subject))
    return torch.cat(parts)


def owners(maps: Tensor) -> Tensor:
    """The token that each location depends on most: erasure maps `(B, K, h, w)` to `(B, S)`.

    `NOBODY` where no token makes a difference, or where a program has only one.
    """
    most, token = maps.flatten(2).max(dim=1)
    return torch.where(most > _ROUNDING, token, NOBODY)


def owned_codes(program: Program, owned: Tensor) -> Tensor:
    """The code of the token that owns each location: `(B, S)`, `NOBODY` where none does."""
    codes = program.codes.gather(1, owned.clamp(min=0))
    return torch.where(owned == NOBODY, NOBODY, codes)


def patch_shares(mask: Tensor, grid: int, ids: int | None = None) -> Tensor:
    """The share of each location's pixels that has each id: a mask `(B, H, W)` to `(B, S, ids)`.

    Pixels of other ids, such as unlabelled ones, are not counted. `ids` defaults to one more than
    the largest in the mask. Shares rather than the most frequent id, because objects smaller than
    a location must count.
    """
    mask = mask.long()  # a subject keeps masks in smaller types
    if ids is None:
        ids = int(torch.where(mask == VOID, 0, mask).max()) + 1
    side = mask.shape[-1] // grid
    patches = mask.unfold(1, side, side).unfold(2, side, side).reshape(len(mask), grid**2, -1)
    known = torch.where((patches >= 0) & (patches < ids), patches, ids)
    shares = torch.zeros(*known.shape[:2], ids + 1, dtype=torch.double, device=mask.device)
    one = torch.full_like(shares[:, :, :1], 1 / known.shape[2]).expand_as(known)
    return shares.scatter_add_(2, known, one)[..., :ids]


def image_tables(regions: Tensor, shares: Tensor) -> Array:
    """Contingency tables `(B, R, C)` of regions and ids, one for each image.

    regions  (B, S), `NOBODY` becomes the last row
    shares   (B, S, C), from `patch_shares`
    """
    last = int(regions.max()) + 1
    rows = torch.where(regions == NOBODY, last, regions)[..., None].expand_as(shares)
    joint = torch.zeros(len(shares), last + 1, shares.shape[2], dtype=torch.double)
    return joint.scatter_add_(1, rows, shares).numpy()


def pooled_table(regions: Tensor, shares: Tensor, rows: int) -> Array:
    """One contingency table `(rows, C)` of all images; locations of `NOBODY` are not counted.

    regions  (B, S), each less than `rows`
    shares   (B, S, C), from `patch_shares`
    """
    known = regions != NOBODY
    joint = torch.zeros(rows, shares.shape[2], dtype=torch.double)
    return joint.index_add_(0, regions[known], shares[known]).numpy()
