"""Rate control: lengths for a batch that meet a budget, or for each image that meet a quality."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from strop.errors import ProgramError

_SHARE_LOOKED_AT = 0.25
"""The share of the K tokens at which every image is interpreted first, whatever the quality."""

_DOUBT, _DOUBT_PER_OCTAVE = 0.03, 0.07
"""How far the log error may be from a curve that was measured at one length: there, and for each
doubling or halving of the length more."""


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


def allocated_lengths(squared_error: Tensor, mean_length: float) -> Tensor:
    """Squared errors at every length `(B, K)` to the lengths `(B,)` of that mean with least error.

    Each further token goes to the image where it saves the most, along the lower convex hull of
    the image's curve. So a larger mean never gives a shorter program. The sum is the budget, to
    the nearest whole token.
    """
    images, capacity = squared_error.shape
    check_mean_length(mean_length, capacity)
    savings = hull_savings(squared_error.double()).flatten()
    tokens = round((mean_length - 1) * images)
    bought = torch.zeros_like(savings, dtype=torch.int64)
    bought[savings.argsort(descending=True, stable=True)[:tokens]] = 1
    return 1 + bought.view(images, capacity - 1).sum(dim=1)


def hull_savings(errors: Tensor) -> Tensor:
    """`(B, K - 1)`: what each further token saves along the lower convex hulls of errors `(B, K)`.

    Savings fall along each row.
    """
    images, capacity = errors.shape
    savings = errors.new_empty(images, capacity - 1)
    vertex = errors.new_zeros(images, dtype=torch.int64)
    for k in range(capacity - 1):
        ahead = torch.arange(1, capacity - k, device=errors.device)
        most, at = ((errors[:, k, None] - errors[:, k + 1 :]) / ahead).max(dim=1)
        here = vertex == k
        savings[:, k] = torch.where(here, most, savings[:, max(k - 1, 0)])
        vertex = torch.where(here, k + 1 + at, vertex)
    return savings


def verified_lengths(
    log_error: Tensor, quality: float, measure: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Lengths `(B,)` int64 at which the measured quality reaches `quality`, and it, `(B,)` float32.

    log_error  (B, K) predicted logarithm of the cosine error, falling
    measure    rows (n,) and lengths (n,) to the cosine similarities (n,) that they reach

    Each image is measured once at a fixed length, which shifts its predicted curve. A bisection
    follows, which measures only where the shifted curve leaves doubt. Its end is measured as well;
    from there the length grows until the quality is reached, or is K where it never is. Which
    lengths the bisection may look at does not depend on the quality, and each of its decisions is
    monotone in the quality: so a higher quality never gives a shorter program.
    """
    images, capacity = log_error.shape
    rows = torch.arange(images, device=log_error.device)
    known = log_error.new_full((images, capacity), torch.nan)

    def look(at: Tensor, lengths: Tensor) -> Tensor:
        new = known[at, lengths - 1].isnan()
        if new.any():
            known[at[new], lengths[new] - 1] = measure(at[new], lengths[new]).float()
        return known[at, lengths - 1]

    first = math.ceil(_SHARE_LOOKED_AT * capacity)
    found = look(rows, torch.full_like(rows, first))
    shift = (1 - found).clamp(min=1e-6).log() - log_error[:, first - 1]
    expected = log_error + shift[:, None]
    octaves = (torch.arange(1, capacity + 1, device=log_error.device) / first).log2().abs()
    doubt = _DOUBT + _DOUBT_PER_OCTAVE * octaves
    wanted = math.log(1 - quality)
    low, high = torch.zeros_like(rows), torch.full_like(rows, capacity)
    while (unsettled := high - low > 1).any():
        middle = ((low + high) // 2).clamp(min=1)
        excess = expected[rows, middle - 1] - wanted
        enough = excess <= 0
        unsure = unsettled & (excess.abs() <= doubt[middle - 1])
        enough[unsure] = look(rows[unsure], middle[unsure]) >= quality
        high = torch.where(unsettled & enough, middle, high)
        low = torch.where(unsettled & ~enough, middle, low)
    reached = look(rows, high)
    while (short := (reached < quality) & (high < capacity)).any():
        high = high + short.long()
        reached[short] = look(rows[short], high[short])
    return high, reached
