"""How well one field reproduces another, and how much there is in one.

R² has two definitions, and both are always given.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.errors import ModelError, expect


def r2(predicted: Tensor, target: Tensor) -> Tensor:
    """R² of fields `(B, S, d)`, the total taken about one scalar mean: the paper's figures."""
    return _explained(predicted, target, None)


def r2_centred(predicted: Tensor, target: Tensor) -> Tensor:
    """R² of fields `(B, S, d)`, the total taken about each channel's mean: the harder one."""
    return _explained(predicted, target, (0, 1))


def cosine(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean cosine similarity over all locations of fields `(B, S, d)`."""
    _check_same_shape(predicted, target)
    return F.cosine_similarity(predicted, target, dim=-1).double().mean()


def _explained(predicted: Tensor, target: Tensor, averaged: tuple[int, ...] | None) -> Tensor:
    _check_same_shape(predicted, target)
    mean = target.double().mean(dim=averaged)
    residual = (predicted - target).double().square().sum()
    return 1 - residual / (target.double() - mean).square().sum()


def _check_same_shape(predicted: Tensor, target: Tensor) -> None:
    for field in (predicted, target):
        expect(field, Tensor, "a field", ModelError, "Compare what `interpret` and `field` return.")
    if predicted.shape != target.shape:
        raise ModelError(
            f"Fields of shapes {tuple(predicted.shape)} and {tuple(target.shape)} were compared.",
            "Give two fields of the same images, both (B, S, d_enc).",
        )


def effective_rank(fields: Tensor) -> float:
    """exp of the entropy of the normalised singular values of all centred patches of (n, S, d)."""
    width = fields.shape[-1]
    total = torch.zeros(width, dtype=torch.double, device=fields.device)
    gram = torch.zeros(width, width, dtype=torch.double, device=fields.device)
    for part in fields.split(256):
        patches = part.flatten(0, 1).double()
        total += patches.sum(dim=0)
        gram += patches.T @ patches
    count = fields.shape[0] * fields.shape[1]
    centred = gram - torch.outer(total, total) / count
    values = torch.linalg.eigvalsh(centred).clamp(min=0)
    # What rounding leaves of a dimension that is not there counts for nothing.
    singular = torch.where(values > 1e-10 * gram.diagonal().sum(), values, 0).sqrt()
    if not singular.any():
        return float("nan")
    share = singular / singular.sum()
    return float(torch.special.entr(share).sum().exp())
