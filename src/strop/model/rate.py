"""Rate control: lengths for a batch that meet a budget, or for each image that meet a quality."""

from __future__ import annotations

import torch
from torch import Tensor

from strop.errors import ProgramError


def check_mean_length(mean_length: float, capacity: int) -> None:
    """Refuse a mean that no lengths in [1, K] can have."""
    if not 1 <= mean_length <= capacity:
        raise ProgramError(
            f"A mean length of {mean_length} is outside [1, {capacity}].",
            f"Give a mean length from 1 to {capacity}.",
        )


def lengths_for_mean(predicted: Tensor, mean_length: float, capacity: int) -> Tensor:
    """Predicted lengths `(B,)` shifted so that they average `mean_length`: int64 in [1, K].

    The shift is added to the length head's logit, so that the order of the images by length is
    kept and no length leaves (0, K). Rounding goes to the largest remainders, so that the sum is
    the budget, to the nearest whole token.
    """
    check_mean_length(mean_length, capacity)
    logit = torch.logit((predicted.double() / capacity).clamp(1e-9, 1 - 1e-9))
    low, high = torch.full((), -50.0), torch.full((), 50.0)
    for _ in range(60):
        middle = (low + high) / 2
        too_long = _shifted(logit, middle, capacity).mean() > mean_length
        low, high = torch.where(too_long, low, middle), torch.where(too_long, middle, high)
    wanted = _shifted(logit, (low + high) / 2, capacity)
    whole = wanted.floor()
    spare = round(mean_length * len(wanted)) - int(whole.sum())
    by_remainder = (wanted - whole).argsort(descending=True, stable=True)
    whole[by_remainder[: max(spare, 0)]] += 1
    return whole.clamp(1, capacity).long()


def _shifted(logit: Tensor, shift: Tensor, capacity: int) -> Tensor:
    return (capacity * torch.sigmoid(logit + shift.to(logit))).clamp(1, capacity)


def shortest_within(errors: Tensor, tolerance: float) -> Tensor:
    """Errors at every length `(B, K)` to the shortest lengths `(B,)` near each row's best.

    Near is an error of at most the row's smallest plus `tolerance`. Errors need not fall with
    length, so the whole curve is looked at.
    """
    good = errors <= errors.amin(dim=1, keepdim=True) + tolerance
    return 1 + good.int().argmax(dim=1)
