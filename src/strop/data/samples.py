"""Photographs that need no download: scikit-learn's china.jpg and flower.jpg.

They are by danielbuechele and vultilion on Flickr, CC BY 2.0.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import torch
from torch import Tensor

from strop.images import fit_square

PHOTOGRAPHS = ("china.jpg", "flower.jpg")
SIDES, PLACES = (427, 214), 3
"""`squares` are of two sizes, at most so many along each side of a photograph."""


@functools.cache
def photograph(name: str) -> Tensor:
    """One of `PHOTOGRAPHS` as uint8 `(3, 427, 640)`."""
    from sklearn.datasets import load_sample_image

    return torch.tensor(load_sample_image(name)).permute(2, 0, 1)


def square(name: str, side: int, top: int, left: int, size: int) -> Tensor:
    """A square of a photograph as uint8 `(3, size, size)`."""
    return fit_square(photograph(name)[:, top : top + side, left : left + side], size)


def squares(size: int) -> dict[str, Tensor]:
    """Squares at regular places of both photographs, by name: uint8 `(3, size, size)` each."""
    found = {}
    for name, side in itertools.product(PHOTOGRAPHS, SIDES):
        height, width = photograph(name).shape[1:]
        tops = torch.linspace(0, height - side, PLACES).int().unique().tolist()
        lefts = torch.linspace(0, width - side, PLACES).int().unique().tolist()
        for top, left in itertools.product(tops, lefts):
            key = f"{Path(name).stem}-{side}-{top}-{left}"
            found[key] = square(name, side, top, left, size)
    return found
