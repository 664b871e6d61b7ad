"""Fields as pictures: principal components as colours, and clusters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.analysis.readouts import k_means


@dataclass(frozen=True)
class Basis:
    """A projection of field vectors to red, green and blue.

    centre      (d,)
    directions  (d, 3), one for each colour
    low, high   (3,), the coordinates that become 0 and 255
    """

    centre: Tensor
    directions: Tensor
    low: Tensor
    high: Tensor

    @staticmethod
    def of(field: Tensor) -> Basis:
        """The first three principal components of a field `(S, d)`."""
        centre = field.mean(dim=0)
        centred = field - centre
        # There are fewer locations than channels, so the Gram matrix is the smaller problem.
        _, vectors = torch.linalg.eigh(centred @ centred.T)
        directions = F.normalize(centred.T @ vectors[:, -3:].flip(-1), dim=0)
        # The sign of an eigenvector is arbitrary: fix it, so that colours are reproducible.
        largest = directions.abs().argmax(dim=0, keepdim=True)
        directions = directions * directions.gather(0, largest).sign()
        coordinates = centred @ directions
        # Quantiles, because a few outliers would make everything else grey.
        quantiles = torch.tensor([0.02, 0.98], device=field.device)
        low, high = coordinates.quantile(quantiles, dim=0)
        return Basis(centre, directions, low, high)

    def colours(self, field: Tensor) -> Tensor:
        """A field `(S, d)` to uint8 colours `(3, h, w)`."""
        coordinates = (field - self.centre) @ self.directions
        spread = (self.high - self.low).clamp(min=1e-12)
        shares = ((coordinates - self.low) / spread).clamp(0, 1)
        side = round(len(field) ** 0.5)
        return (shares * 255).round().to(torch.uint8).T.unflatten(-1, (side, side))


def clusters(field: Tensor, other: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """k-means of a field `(S, d)`: the nearest cluster of each location `(S,)`, for both fields.

    Vectors are normalised first, because erasure compares directions too.
    """
    points, others = (F.normalize(each.cpu(), dim=-1) for each in (field, other))
    centres = k_means(points, k)
    nearest, other_nearest = (torch.cdist(each, centres).argmin(dim=1) for each in (points, others))
    return nearest, other_nearest
