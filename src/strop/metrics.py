"""How well one field reproduces another. R² has two definitions, and both are always given."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def r2(predicted: Tensor, target: Tensor) -> Tensor:
    """R² of fields `(B, S, d)`, the total taken about one scalar mean: the paper's figures."""
    residual = (predicted - target).double().square().sum()
    total = (target.double() - target.double().mean()).square().sum()
    return 1 - residual / total


def r2_centred(predicted: Tensor, target: Tensor) -> Tensor:
    """R² of fields `(B, S, d)`, the total taken about each channel's mean: the harder one."""
    residual = (predicted - target).double().square().sum()
    total = (target.double() - target.double().mean(dim=(0, 1))).square().sum()
    return 1 - residual / total


def cosine(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean cosine similarity over all locations of fields `(B, S, d)`."""
    return F.cosine_similarity(predicted, target, dim=-1).double().mean()
