"""Training of a prior: in floating point, then rounded to integers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.analysis.network_training import StepProgress, train_network
from strop.analysis.prior import MOST_CODES, STEPS, TABLE_STEPS, Prior, from_triangle
from strop.errors import ConfigError
from strop.program import Program
from strop.random import seeded

WIDTH = 4
LEARNING_RATE = 5e-3
_SMOOTHING = 500  # programs of uniform codes that are added to the counts of each position
_RIDGE = 100.0
_FLOOR = 0.1  # of the variance of coordinates, which is 1 over all codes
_LEAST_ROWS = 100
_MOST = 127  # of int8


class PriorNetwork(nn.Module):
    """The tensors of a `Prior` in floating point; logits in nats.

    `embed` and `out` begin as the principal coordinates of `vectors` (N, D), the codebook, each of
    unit variance; without them, as random ones. `mix` and `table` begin as `gaussian_start`.
    """

    def __init__(self, program: Program, width: int, vectors: Tensor | None = None) -> None:
        super().__init__()
        if vectors is None:
            vectors = torch.randn(program.codebook_size, width)
        start = principal_coordinates(vectors, width)
        table, mix = gaussian_start(program, start)
        self.table, self.mix = nn.Parameter(table), nn.Parameter(mix)
        self.embed, self.out = nn.Parameter(start), nn.Parameter(start.clone())

    def forward(self, codes: Tensor) -> Tensor:
        """Codes `(B, K)` to logits `(B, K, N)`, each position given those before it."""
        mix = from_triangle(self.mix, codes.shape[1])
        context = torch.einsum("kjed,bjd->bke", mix, self.embed[codes])
        return self.table + context @ self.out.T


def principal_coordinates(vectors: Tensor, width: int) -> Tensor:
    """Vectors (N, D) to their first `width` principal coordinates, each of unit variance."""
    centred = vectors.detach().cpu().double()
    centred = centred - centred.mean(0)
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    kept = values > 1e-6 * values[0]
    return (left[:, kept][:, :width] * math.sqrt(len(vectors))).float()


def train_prior(
    program: Program,
    *,
    epochs: float,
    width: int = WIDTH,
    vectors: Tensor | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: StepProgress | None = None,
) -> Prior:
    """A prior over programs, trained to minimise the bits per code.

    epochs   passes over the programs; 0 for the start alone, which takes seconds
    vectors  (N, D) the codebook, which helps where programs are few
    """
    program = program.as_batch()
    if not 1 <= program.codebook_size <= MOST_CODES:
        raise ConfigError(
            f"A prior cannot have {program.codebook_size:,} codes.", f"{MOST_CODES:,} is the most."
        )
    with seeded(seed):
        network = PriorNetwork(program.to("cpu"), width, vectors).to(device)
    codes, active = program.codes.to(device), program.active.to(device)

    def loss(rows: Tensor) -> Tensor:
        inside = active[rows]
        return F.cross_entropy(network(codes[rows])[inside].float(), codes[rows][inside])

    if epochs:
        train_network(
            network,
            loss,
            len(program),
            epochs=epochs,
            seed=seed,
            learning_rate=LEARNING_RATE,
            progress=progress,
        )
    return to_integers(network.cpu(), program.to("cpu"))


def gaussian_start(program: Program, coordinates: Tensor) -> tuple[Tensor, Tensor]:
    """The table and the mix that are right if coordinates are jointly normal.

    coordinates  (N, d) of the codes

    At each position, ridge regression on the coordinates of all codes before gives a mean and a
    residual covariance S1. The logit of a code is that of its frequency, times the ratio of the
    normal densities after and before the past is known, where the covariance is S0.
    """
    values = coordinates.double()[program.codes]
    width, active = coordinates.shape[1], program.active
    table = log_frequencies(program).double()
    mix = torch.zeros(program.capacity, program.capacity, width, width, dtype=torch.double)
    unit = torch.eye(width, dtype=torch.double)
    for k in range(1, program.capacity):
        rows = active[:, k]
        if int(rows.sum()) < _LEAST_ROWS:
            continue
        past, target = values[rows, :k].flatten(1), values[rows, k]
        means, mean = past.mean(0), target.mean(0)
        past, target = past - means, target - mean
        ridge = _RIDGE * torch.eye(past.shape[1], dtype=torch.double)
        weights = torch.linalg.solve(past.T @ past + ridge, past.T @ target)
        left = target - past @ weights
        before, after = (
            torch.linalg.inv(each.T @ each / len(each) + _FLOOR * unit) for each in (target, left)
        )
        mix[k, :k] = (weights @ after).unflatten(0, (k, width)).transpose(1, 2)
        away = coordinates.double() - mean
        table[k] += ((away @ (before - after)) * away).sum(1) / 2
        table[k] -= coordinates.double() @ (means @ weights @ after)
    lower = torch.tril_indices(program.capacity, program.capacity, -1)
    return table.log_softmax(1).float(), mix[lower[0], lower[1]].float()


def log_frequencies(program: Program) -> Tensor:
    """(K, N) logarithms of the frequency of each code at each position, smoothed."""
    codes, capacity = program.codebook_size, program.capacity
    place = torch.arange(capacity).expand_as(program.codes)
    cells = (place * codes + program.codes)[program.active]
    counts = torch.bincount(cells, minlength=capacity * codes).view(capacity, codes).float()
    smooth = counts + _SMOOTHING / codes
    return (smooth / smooth.sum(1, keepdim=True)).log()


@torch.no_grad()
def to_integers(network: PriorNetwork, program: Program) -> Prior:
    """The nearest integers.

    Each column of `embed` and `out`, and `mix` at each position, use the whole range of int8.
    """
    bits = network.table / math.log(2)
    table = _MOST + TABLE_STEPS * (bits - bits.amax(1, keepdim=True))
    embed, of_embed = _rounded(network.embed)
    out, of_out = _rounded(network.out)
    scaled = network.mix * of_out[:, None] * of_embed
    position = torch.tril_indices(program.capacity, program.capacity, -1)[0]
    most = scaled.new_zeros(program.capacity)
    most = most.scatter_reduce(0, position, scaled.abs().amax((1, 2)), "amax").clamp(min=1e-12)
    mix = (_MOST * scaled / most[position, None, None]).round().to(torch.int8)
    return Prior(
        table=table.round().clamp(-_MOST, _MOST).to(torch.int8),
        embed=embed,
        mix=mix,
        out=out,
        factor=(most / _MOST).double() * STEPS / math.log(2),
        lengths=torch.bincount(program.lengths, minlength=program.capacity + 1)[1:],
        model=program.model,
    )


def _rounded(values: Tensor) -> tuple[Tensor, Tensor]:
    """int8 of `values`, and the factor of each column."""
    factor = values.abs().amax(0).clamp(min=1e-12) / _MOST
    return (values / factor).round().to(torch.int8), factor
