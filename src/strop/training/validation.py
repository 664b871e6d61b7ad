"""Metrics on held-out fields: R² in both definitions, cosine, lengths and codes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.model.interpreter import prefix_mask
from strop.model.tokenizer import Tokenizer
from strop.statistics import pearson

FORCED = (8, 16, 32, 64)
"""Forced lengths at which models are measured, up to their K."""


@torch.no_grad()
def validate(tokenizer: Tokenizer, fields: Tensor, *, batch: int = 64) -> dict[str, float]:
    """Metrics of a model on fields (V, S, d_enc) in the teacher's scale, at its own precision.

    `r2` takes the total about one scalar mean of all fields, `r2_centred` about the mean of each
    channel. Both, and `cosine`, are at the predicted length; names with `@L` are at forced length
    L. Names with `_mean_field` are those of the mean field, which needs no tokens; it is left out
    for a single image, whose mean field is its own.
    """
    k, device = tokenizer.config.max_length, tokenizer.device
    forced = sorted({length for length in FORCED if length < k} | {k})
    names = ["", *(f"@{length}" for length in forced)]
    squares = dict.fromkeys(names, 0.0)
    cosines = dict.fromkeys(names, 0.0)
    lengths: list[Tensor] = []
    detail: list[Tensor] = []
    used = torch.zeros(tokenizer.config.quantizer.codes, dtype=torch.double)
    for chunk in fields.split(batch):
        field = chunk.to(device).float()
        encoding = tokenizer.analyse_field(field, batch=batch)
        chosen = encoding.lengths
        for name, length in zip(names, [None, *forced], strict=True):
            at = chosen if length is None else torch.full_like(chosen, length)
            seen = tokenizer.interpret_codes(encoding.codes, prefix_mask(at, k))
            squares[name] += (seen - field).square().sum(dtype=torch.double).item()
            cosines[name] += F.cosine_similarity(seen, field, dim=-1).sum().item()
        lengths.append(chosen.cpu())
        detail.append(field.var(dim=1).sum(-1).cpu())
        codes = encoding.codes[prefix_mask(chosen, k)].cpu()
        used += torch.bincount(codes, minlength=len(used))
    total, centred, floor = _floor(fields)
    locations = fields.shape[0] * fields.shape[1]
    metrics: dict[str, float] = {}
    for name in names:
        metrics[f"r2{name}"] = 1 - squares[name] / total
        metrics[f"r2_centred{name}"] = 1 - squares[name] / centred
        metrics[f"cosine{name}"] = cosines[name] / locations
    chosen = torch.cat(lengths).double()
    share = used / used.sum()
    metrics |= {
        "rmse": math.sqrt(squares[""] / fields.numel()),
        **(floor if len(fields) > 1 else {}),
        "length_mean": chosen.mean().item(),
        "length_spread": chosen.std(correction=0).item(),
        "length_least": chosen.min().item(),
        "length_most": chosen.max().item(),
        "length_detail_correlation": correlation(chosen, torch.cat(detail).double()),
        "codes_used": (used > 0).double().mean().item(),
        "perplexity": torch.special.entr(share).sum().exp().item(),
    }
    return metrics


def correlation(x: Tensor, y: Tensor) -> float:
    """Pearson's correlation; 0 instead of NaN if a sample is constant."""
    found = pearson(x.numpy(), y.numpy())
    return 0.0 if math.isnan(found) else found


def _floor(fields: Tensor) -> tuple[float, float, dict[str, float]]:
    """Totals about the scalar mean and about the channels' means, and metrics of the mean field.

    The mean field is the mean of each location over all images.
    """
    mean_field = torch.zeros(fields.shape[1:], dtype=torch.double, device=fields.device)
    square = 0.0
    for chunk in fields.split(64):
        mean_field += chunk.sum(0, dtype=torch.double)
        square += chunk.double().square().sum().item()
    mean_field /= len(fields)
    total = square - fields.numel() * mean_field.mean().item() ** 2
    channels = mean_field.mean(dim=0)
    centred = square - fields.shape[0] * fields.shape[1] * channels.square().sum().item()
    residual = square - len(fields) * mean_field.square().sum().item()
    cosine = sum(
        F.cosine_similarity(chunk.float(), mean_field.float(), dim=-1).sum().item()
        for chunk in fields.split(64)
    )
    return (
        total,
        centred,
        {
            "r2_mean_field": 1 - residual / total,
            "r2_centred_mean_field": 1 - residual / centred,
            "cosine_mean_field": cosine / (fields.shape[0] * fields.shape[1]),
        },
    )
