"""Fields to look at: principal components as colours, and clusters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.analysis.readouts import k_means


@dataclass(frozen=True)
class Basis:
    """Three directions that stand for red, green and blue, and what counts as none and all of it.

    centre (d,), directions (d, 3), low and high (3,)
    """

    centre: Tensor
    directions: Tensor
    low: Tensor
    high: Tensor

    @staticmethod
    def of(field: Tensor) -> Basis:
        """The first three principal components of a field `(S, d)`."""
        centre = field.mean(dim=0)
        rest = field - centre
        # Locations are fewer than channels, so their products are the smaller problem.
        _, vectors = torch.linalg.eigh(rest @ rest.T)
        directions = F.normalize(rest.T @ vectors[:, -3:].flip(-1), dim=0)
        # An eigenvector is one up to its sign: fix it, so that a picture is always the same.
        largest = directions.abs().argmax(dim=0, keepdim=True)
        directions = directions * directions.gather(0, largest).sign()
        along = rest @ directions
        # A few outliers would leave everything else grey.
        low, high = along.quantile(torch.tensor([0.02, 0.98], device=along.device), dim=0)
        return Basis(centre, directions, low, high)

    def colours(self, field: Tensor) -> Tensor:
        """A field `(S, d)` to uint8 colours `(3, h, w)`."""
        along = (field - self.centre) @ self.directions
        spread = (self.high - self.low).clamp(min=1e-12)
        shares = ((along - self.low) / spread).clamp(0, 1)
        side = round(len(field) ** 0.5)
        return (shares * 255).round().to(torch.uint8).T.unflatten(-1, (side, side))


def clusters(field: Tensor, others: list[Tensor], k: int) -> list[Tensor]:
    """k-means of a field `(S, d)`: the cluster of each location there and in `others`, each `(S,)`.

    Directions are compared, not lengths, as everywhere in erasure.
    """
    points = [F.normalize(each.cpu(), dim=-1) for each in (field, *others)]
    centres = k_means(points[0], k)
    return [torch.cdist(each, centres).argmin(dim=1) for each in points]
