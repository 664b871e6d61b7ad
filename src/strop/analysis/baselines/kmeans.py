"""A VQ grid of equal bits: blocks of locations, each encoded with k-means codebooks.

At few bits a location cannot have a code of its own. The grid then has larger blocks: at 640 bits
and 16 x 16 locations, say, 2 x 2 locations share one of 1024 codes.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from strop.analysis.baselines.code import Code
from strop.random import seeded

MOST_CODES = 1024  # per codebook; further bits go to a codebook of the residual
MOST_CODEBOOKS = 4
SAMPLES_PER_CODE = 8
MOST_SAMPLES = 1 << 15
MOST_WIDTH = 256  # principal components in which blocks are clustered
STEPS = 20


def kmeans(fields: Tensor, bits: float, *, seed: int) -> list[Code]:
    """Centred fields (n, S, d_enc) to one candidate for each size of block."""
    grid = math.isqrt(fields.shape[1])
    generator = torch.Generator(device=fields.device).manual_seed(seed)
    candidates = []
    for side in (side for side in range(1, grid + 1) if grid % side == 0):
        count = (grid // side) ** 2
        layout = _layout(bits / count, samples=len(fields) * count)
        if layout is None:
            continue
        codebooks, codes = layout
        blocks = to_blocks(fields, side)
        drawn = torch.randperm(len(blocks), generator=generator, device=blocks.device)
        blocks = blocks[drawn[:MOST_SAMPLES]]
        with seeded(seed):
            basis = torch.svd_lowrank(blocks, min(MOST_WIDTH, *blocks.shape))[2]
        fitted = _fit(blocks @ basis, codebooks, codes, generator)
        candidates.append(
            Code(
                name="kmeans",
                bits=count * codebooks * math.log2(codes),
                setting=f"{count} blocks of {side} x {side} locations, each "
                f"{codebooks} of {codes} codes",
                interpret=partial(_interpret, side=side, basis=basis, codebooks=fitted),
            )
        )
    return candidates


def _layout(bits: float, samples: int) -> tuple[int, int] | None:
    """The number of codebooks, and of codes in each, for a block of `bits`.

    None if there are too few bits for two codes, or more than the codebooks can use.
    """
    most = min(MOST_CODES, samples // SAMPLES_PER_CODE)
    if bits < 1 or most < 2:
        return None
    codebooks = math.ceil(bits / math.log2(most) - 1e-9)
    return (codebooks, int(2 ** (bits / codebooks) + 1e-9)) if codebooks <= MOST_CODEBOOKS else None


def _interpret(fields: Tensor, side: int, basis: Tensor, codebooks: list[Tensor]) -> Tensor:
    blocks = to_blocks(fields, side) @ basis
    left = blocks.clone()
    for codebook in codebooks:
        left -= codebook[nearest_centre(left, codebook)]
    return from_blocks((blocks - left) @ basis.T, side, fields)


def _fit(blocks: Tensor, codebooks: int, codes: int, generator: torch.Generator) -> list[Tensor]:
    """Codebooks (codes, D), each fitted to the residual of those before it on blocks (N, D)."""
    left, fitted = blocks.clone(), []
    for _ in range(codebooks):
        codebook = cluster(left, codes, generator)
        left -= codebook[nearest_centre(left, codebook)]
        fitted.append(codebook)
    return fitted


def cluster(points: Tensor, codes: int, generator: torch.Generator) -> Tensor:
    """k-means of points (N, D) from random ones: centres (codes, D)."""
    order = torch.randperm(len(points), generator=generator, device=points.device)
    return lloyd(points, points[order[:codes]], STEPS)


def lloyd(points: Tensor, centres: Tensor, steps: int) -> Tensor:
    """Lloyd's algorithm on points (N, D) from `centres` (codes, D); empty ones stay."""
    for _ in range(steps):
        nearest = nearest_centre(points, centres)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        size = torch.bincount(nearest, minlength=len(centres))[:, None]
        moved = torch.where(size > 0, sums / size.clamp(min=1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def nearest_centre(points: Tensor, centres: Tensor) -> Tensor:
    """(N,) the index of the centre nearest to each point."""
    half = centres.square().sum(dim=1) / 2
    return torch.cat([(part @ centres.T - half).argmax(dim=1) for part in points.split(8192)])


def to_blocks(fields: Tensor, side: int) -> Tensor:
    """Fields (n, S, d) to blocks of side x side locations: (n * S / side^2, side^2 * d)."""
    n, locations, width = fields.shape
    across = math.isqrt(locations) // side
    split = fields.reshape(n, across, side, across, side, width)
    return split.transpose(2, 3).reshape(n * across**2, side**2 * width)


def from_blocks(blocks: Tensor, side: int, like: Tensor) -> Tensor:
    """The inverse of `to_blocks`, for fields of the shape of `like`."""
    n, locations, width = like.shape
    across = math.isqrt(locations) // side
    split = blocks.reshape(n, across, across, side, side, width)
    return split.transpose(2, 3).reshape(n, locations, width)
