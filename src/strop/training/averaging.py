"""Weights averaged over the last steps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def averaging_share(step: int, spans: int, least: float = 0.0) -> float:
    """The share by which the average moves to the weights after `step` (from 0 on).

    It is `spans / (spans + 1 + step)`, at least `least`: the average spans about the last
    `1 / spans` of the steps so far. A fixed share would keep the random start in short runs.
    """
    return max(least, spans / (spans + 1 + step))


@torch.no_grad()
def follow(averaged: Iterable[Tensor], weights: Iterable[Tensor], share: Tensor) -> None:
    """Move the average to the weights by a share, a 0-dim tensor that a CUDA graph can record."""
    kept = list(averaged)
    lead = list(torch._foreach_sub(list(weights), kept))
    torch._foreach_mul_(lead, share)
    torch._foreach_add_(kept, lead)
