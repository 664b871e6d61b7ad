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

WIDTH = 8
LEARNING_RATE = 5e-3
_SMOOTHING = 500  # programs of uniform codes that are added to the counts of each position
_MOST = 127  # of int8


class PriorNetwork(nn.Module):
    """The tensors of a `Prior` in floating point; logits in nats.

    With `vectors` (N, D) of the codes, `embed` and `out` begin as their principal coordinates, each
    of unit variance: similar codes are then followed by similar codes from the start.
    """

    def __init__(self, program: Program, width: int, vectors: Tensor | None = None) -> None:
        super().__init__()
        codes, capacity = program.codebook_size, program.capacity
        if vectors is None:
            vectors = torch.randn(codes, width)
        start = principal_coordinates(vectors, width)
        self.table = nn.Parameter(log_frequencies(program))
        self.embed, self.out = nn.Parameter(start), nn.Parameter(start.clone())
        pairs = capacity * (capacity - 1) // 2
        self.mix = nn.Parameter(torch.zeros(pairs, start.shape[1], start.shape[1]))

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
    """The nearest integers. Each column of `embed` uses the whole range of int8."""
    bits = network.table / math.log(2)
    table = _MOST + TABLE_STEPS * (bits - bits.amax(1, keepdim=True))
    embed, of_embed = _rounded(network.embed, 0)
    mix, of_mix = _rounded(network.mix * of_embed, None)
    out, of_out = _rounded(network.out, None)
    return Prior(
        table=table.round().clamp(-_MOST, _MOST).to(torch.int8),
        embed=embed,
        mix=mix,
        out=out,
        factor=(of_out * of_mix).double() * STEPS / math.log(2),
        lengths=torch.bincount(program.lengths, minlength=program.capacity + 1)[1:],
        model=program.model,
    )


def _rounded(values: Tensor, axis: int | None) -> tuple[Tensor, Tensor]:
    """int8 of `values`, and the factor of each column, or of all."""
    most = values.abs().amax() if axis is None else values.abs().amax(axis)
    factor = (most if len(values) else torch.ones(values.shape[1:])).clamp(min=1e-12) / _MOST
    return (values / factor).round().to(torch.int8), factor
