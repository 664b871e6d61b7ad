"""What programs use of what they may: codes, lengths, bits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from strop.program import Program
from strop.statistics import pearson

FLOAT_BITS = 32


def codebook(program: Program) -> dict[str, float]:
    """How much of the codebook the active tokens use, and how evenly."""
    used = code_counts(program)
    perplexity = math.exp(entropy(used))
    return {
        "codebook_used": 100 * float((used > 0).double().mean()),
        "codebook_effective": 100 * perplexity / program.codebook_size,
        "perplexity": perplexity,
    }


def lengths(program: Program, fields: Tensor) -> dict[str, float]:
    """Mean, spread and range of lengths, and whether they follow the detail of fields (n, S, d)."""
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
    """K counts: how many programs have length 1, 2, ..., K."""
    counts = torch.bincount(program.lengths.cpu(), minlength=program.capacity + 1)
    return counts[1:].tolist()


def bits(program: Program, *, locations: int, width: int) -> dict[str, float]:
    """What programs cost, and what the float32 field of S locations costs in multiples of it.

    As the paper counts: codes only. The length itself would cost another log2(K).
    """
    fixed = float(program.bits.double().mean())
    most = program.capacity * math.log2(program.codebook_size)
    field = locations * width * FLOAT_BITS
    mean_length = float(program.lengths.double().mean())
    return {
        "bits_fixed_rate": fixed,
        "bits_entropy": mean_length * entropy(code_counts(program)) / math.log(2),
        "bits_most": most,
        "compression": field / fixed if fixed else math.inf,
        "compression_least": field / most if most else math.inf,
    }


def code_counts(program: Program) -> Tensor:
    """(N,) how often each code is active."""
    active = program.codes[program.active]
    return torch.bincount(active.cpu(), minlength=program.codebook_size)


def entropy(counts: Tensor) -> float:
    """Entropy in nats of the distribution that counts (N,) make."""
    share = counts.double() / counts.sum()
    return float(torch.special.entr(share).sum())
