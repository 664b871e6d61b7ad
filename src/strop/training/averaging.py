"""Weights averaged over the last steps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def averaging_share(step: int, spans: int, least: float = 0.0) -> float:
    """How far the average moves to the weights that the update of `step`, from 0 on, has made.

    `spans / (spans + 1 + step)`, never below `least`: the steps so far are about so many spans of
    the average long. One fixed share would drag the random start along through a short run.
    """
    return max(least, spans / (spans + 1 + step))


@torch.no_grad()
def follow(averaged: Iterable[Tensor], weights: Iterable[Tensor], share: Tensor) -> None:
    """Move the average to the weights by a share, a 0-dim tensor: a step may be recorded."""
    kept = list(averaged)
    lead = list(torch._foreach_sub(list(weights), kept))
    torch._foreach_mul_(lead, share)
    torch._foreach_add_(kept, lead)
