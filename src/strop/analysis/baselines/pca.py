"""Principal coefficients of equal bits: the classical transform code.

Two transforms are tried. The separable one is per-patch PCA over channels and then PCA over
locations; its d^2 + S^2 statistics need few images. The joint one is PCA of whole fields, which is
the best linear transform where there are images enough to know it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from strop.analysis.baselines.code import Code
from strop.analysis.baselines.kmeans import lloyd

MOST_BITS = 8  # per coefficient
MOST_IMAGES = 8192  # for the joint transform, whose cost grows with their number squared
MOST_COMPONENTS = 1024


@dataclass(frozen=True, eq=False)
class Transform:
    """An orthonormal map of fields (n, S, d) to coefficients (n, C), and back."""

    name: str
    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor], Tensor]


def pca(fields: Tensor, choosing: Tensor, bits: float) -> list[Code]:
    """Centred fields (n, S, d_enc) to one candidate for each transform.

    Spreads of coefficients are measured on `choosing`: on the fitted images those of the joint
    transform would come out too large.
    """
    candidates = []
    for transform in (separable(fields), joint(fields)):
        spread = transform.forward(choosing).square().mean(dim=0).sqrt()
        given = _allocate(spread.square(), int(bits))
        kept = given.nonzero().flatten()
        if len(kept):
            candidates.append(
                Code(
                    name=f"pca-{len(kept)}",
                    bits=float(given.sum()),
                    setting=f"{len(kept)} coefficients of {transform.name} PCA, 1 to "
                    f"{int(given.max())} bits each",
                    interpret=partial(
                        _interpret, transform=transform, spread=spread, given=given, kept=kept
                    ),
                )
            )
    return candidates


def _interpret(
    fields: Tensor, transform: Transform, spread: Tensor, given: Tensor, kept: Tensor
) -> Tensor:
    coefficients = transform.forward(fields)
    coded = torch.zeros_like(coefficients)
    for bits in given[kept].unique().tolist():
        which = kept[given[kept] == bits]
        levels = torch.tensor(normal_levels(bits), device=fields.device)
        value = coefficients[:, which] / spread[which]
        coded[:, which] = levels[_bucket(value, levels)] * spread[which]
    return transform.backward(coded)


def _allocate(variance: Tensor, bits: int) -> Tensor:
    """The number of bits of each coefficient: every bit goes where it reduces the error most.

    A coefficient's savings fall from bit to bit, so the largest savings of all are the answer.
    """
    errors = torch.tensor([normal_error(each) for each in range(MOST_BITS + 1)])
    savings = variance[:, None] * (errors[:-1] - errors[1:]).to(variance)
    best = savings.flatten().topk(min(bits, savings.numel())).indices
    return torch.bincount(best // MOST_BITS, minlength=len(variance))


def separable(fields: Tensor) -> Transform:
    """PCA over channels, then over locations, of centred fields (n, S, d)."""
    flat = fields.flatten(0, 1)
    channels = torch.linalg.eigh((flat.T @ flat).double())[1].flip(1).to(fields)
    across = torch.einsum("nsd,ntd->st", fields, fields)
    locations = torch.linalg.eigh(across.double())[1].flip(1).to(fields)
    shape = fields.shape[1:]
    return Transform(
        "separable",
        lambda x: (locations.T @ x @ channels).flatten(1),
        lambda c: locations @ c.unflatten(1, shape) @ channels.T,
    )


def joint(fields: Tensor) -> Transform:
    """PCA of whole centred fields (n, S, d), in at most MOST_COMPONENTS directions."""
    shape = fields.shape[1:]
    flat = fields[:MOST_IMAGES].flatten(1)
    # The n x n Gram matrix is smaller: fields have far more scalars than there are fields.
    values, vectors = torch.linalg.eigh((flat @ flat.T).double())
    sound = values > 1e-6 * values[-1]
    values, vectors = values[sound][-MOST_COMPONENTS:], vectors[:, sound][:, -MOST_COMPONENTS:]
    basis = flat.T @ (vectors / values.sqrt()).to(flat)
    return Transform(
        "joint", lambda x: x.flatten(1) @ basis, lambda c: (c @ basis.T).unflatten(1, shape)
    )


@cache
def normal_levels(bits: int) -> tuple[float, ...]:
    """The 2^bits levels that code a standard normal variable with least squared error."""
    points = _normal_points()[:, None]
    levels = lloyd(points, points.reshape(1 << bits, -1).mean(dim=1)[:, None], steps=200)
    return tuple(levels[:, 0].float().tolist())


@cache
def normal_error(bits: int) -> float:
    """Mean squared error of a standard normal variable coded by `normal_levels`."""
    points, levels = _normal_points(), torch.tensor(normal_levels(bits)).double()
    return (points - levels[_bucket(points, levels)]).square().mean().item()


def _normal_points() -> Tensor:
    """2^14 quantiles of the standard normal distribution."""
    count = 1 << 14
    share = (torch.arange(count, dtype=torch.double) + 0.5) / count
    return math.sqrt(2) * torch.erfinv(2 * share - 1)


def _bucket(values: Tensor, levels: Tensor) -> Tensor:
    """The index of the nearest of the sorted levels (L,) to each value."""
    return torch.bucketize(values.contiguous(), (levels[1:] + levels[:-1]) / 2)
