"""Metrics on held-out fields: R² in both definitions, cosine, lengths and codes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from strop.agreement import agree
from strop.model.interpreter import prefix_mask
from strop.model.tokenizer import Tokenizer
from strop.statistics import entropy, pearson

FORCED = (8, 16, 32, 64)
"""Forced lengths at which models are measured, up to their K."""


@torch.no_grad()
def validate(tokenizer: Tokenizer, fields: Tensor, *, batch: int = 64) -> dict[str, float]:
    """Metrics of a model on fields (V, S, d_enc) in the teacher's scale, at its own precision.

    `r2` takes the total about one scalar mean of all fields, `r2_centred` about the mean of each
    channel. Both, and `cosine`, are at the predicted length; names with `@L` are at forced length
    L. Names with `_mean_field` are those of the mean of each location over all images, which needs
    no tokens; it is left out for a single image, whose mean field is its own.
    """
    k = tokenizer.config.max_length
    parts = fields.split(batch)
    encodings = (tokenizer.analyse_field(part, batch=batch) for part in parts)
    codes, chosen = zip(*((each.codes, each.lengths) for each in encodings), strict=True)

    def interpreted(forced: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        for part, row, lengths in zip(parts, codes, chosen, strict=True):
            at = lengths if forced is None else torch.full_like(lengths, forced)
            yield tokenizer.interpret_codes(row, prefix_mask(at, k)), part.to(row.device)

    metrics = agree(interpreted(None)).scores()
    for length in sorted({length for length in FORCED if length < k} | {k}):
        metrics |= _named(f"@{length}", agree(interpreted(length)).scores())
    if len(fields) > 1:
        mean_field = fields.mean(dim=0, dtype=torch.double)
        same = agree((mean_field.expand(part.shape), part) for part in parts)
        metrics |= _named("_mean_field", same.scores())
    lengths, every = torch.cat(chosen).cpu().double(), torch.cat(codes)
    detail = torch.cat([part.float().var(dim=1).sum(-1) for part in parts])
    active = every[prefix_mask(torch.cat(chosen), k)].cpu()
    used = torch.bincount(active, minlength=tokenizer.config.quantizer.codes)
    return metrics | {
        "length_mean": lengths.mean().item(),
        "length_spread": lengths.std(correction=0).item(),
        "length_least": lengths.min().item(),
        "length_most": lengths.max().item(),
        "length_detail_correlation": correlation(lengths, detail.cpu().double()),
        "codes_used": (used > 0).double().mean().item(),
        "perplexity": math.exp(entropy(used)),
    }


def correlation(x: Tensor, y: Tensor) -> float:
    """Pearson's correlation; 0 instead of NaN if a sample is constant."""
    found = pearson(x.numpy(), y.numpy())
    return 0.0 if math.isnan(found) else found


def _named(suffix: str, scores: dict[str, float]) -> dict[str, float]:
    return {f"{name}{suffix}": score for name, score in scores.items() if name != "rmse"}
