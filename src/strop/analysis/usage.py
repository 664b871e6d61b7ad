"""Usage of the codebook, lengths and bits of programs.

Section 5.2, "Compression", and the columns CB and Eff. of Tables 1 and 7.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from strop.program import Program
from strop.statistics import entropy, pearson

FLOAT_BITS = 32


def codebook(program: Program) -> dict[str, float]:
    """The share of the codebook that active tokens use, and the perplexity of their codes."""
    used = code_counts(program)
    perplexity = math.exp(float(entropy(used)))
    return {
        "codebook_used": 100 * float((used > 0).double().mean()),
        "codebook_effective": 100 * perplexity / program.codebook_size,
        "perplexity": perplexity,
    }


def lengths(program: Program, fields: Tensor) -> dict[str, float]:
    """Mean, spread and range of lengths, and their correlation with the variance of fields."""
    chosen = program.lengths.double().cpu().numpy()
    detail = torch.cat([part.float().var(dim=1).sum(-1) for part in fields.split(256)])
    return {
        "length_mean": float(chosen.mean()),
        "length_spread": float(chosen.std()),
        "length_least": float(chosen.min()),
        "length_most": float(chosen.max()),
        "length_detail_correlation": pearson(chosen, detail.cpu().numpy()),
    }


def histogram(program: Program) -> list[int]:
    """K counts: the number of programs of length 1, 2, ..., K."""
    counts = torch.bincount(program.lengths.cpu(), minlength=program.capacity + 1)
    return counts[1:].tolist()


def bits(program: Program, *, locations: int, width: int) -> dict[str, float]:
    """Bits per program, and the compression of the float32 field of S locations.

    As in the paper, only codes count. The length would take another log2(K) bits.
    """
    fixed = float(program.bits.double().mean())
    most = program.capacity * math.log2(program.codebook_size)
    field = locations * width * FLOAT_BITS
    mean_length = float(program.lengths.double().mean())
    return {
        "bits_fixed_rate": fixed,
        "bits_entropy": mean_length * float(entropy(code_counts(program))) / math.log(2),
        "bits_most": most,
        "compression": field / fixed if fixed else math.inf,
        "compression_least": field / most if most else math.inf,
    }


def code_counts(program: Program) -> Tensor:
    """(N,) the number of active tokens of each code."""
    active = program.codes[program.active]
    return torch.bincount(active.cpu(), minlength=program.codebook_size)
