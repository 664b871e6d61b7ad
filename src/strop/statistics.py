"""Correlations, intervals by bootstrap, and p-values by permutation. Seeded, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Statistic = Callable[..., float]


class Interval(NamedTuple):
    """An estimate and its confidence interval."""

    value: float
    low: float
    high: float


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Correlation of two (N,) samples; NaN where one of them is constant."""
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else float("nan")


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Correlation of the ranks of two (N,) samples; ties share their mean rank."""
    return pearson(ranks(x), ranks(y))


def ranks(x: ArrayLike) -> Array:
    """(N,) ranks from 1, ties sharing the mean of theirs."""
    values = np.asarray(x, np.float64)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return ((last - counts + 1 + last) / 2)[inverse]


def bootstrap(
    statistic: Statistic,
    *samples: ArrayLike,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """`statistic(*samples)` with its percentile interval over resamples of the rows.

    The samples share their first axis, the images; rows are drawn together. Draws whose statistic
    is not finite (a resample without positives, say) are left out.
    """
    arrays = [np.asarray(sample) for sample in samples]
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(draws):
        rows = generator.integers(0, len(arrays[0]), len(arrays[0]))
        drawn.append(statistic(*(array[rows] for array in arrays)))
    finite = np.asarray([value for value in drawn if np.isfinite(value)])
    value = float(statistic(*arrays))
    if not len(finite):
        return Interval(value, float("nan"), float("nan"))
    tail = (1 - confidence) / 2
    return Interval(value, float(np.quantile(finite, tail)), float(np.quantile(finite, 1 - tail)))


def permutation_p(
    statistic: Statistic, x: ArrayLike, y: ArrayLike, *, draws: int = 1000, seed: int = 0
) -> float:
    """How often `statistic(x, y)` is reached or passed when y is shuffled against x: one-sided.

    The arrangement that was seen counts as one of the draws, so that p is never zero.
    """
    a, b = np.asarray(x), np.asarray(y)
    generator = np.random.default_rng(seed)
    seen = statistic(a, b)
    if np.isnan(seen):
        return float("nan")
    reached = sum(statistic(a, generator.permutation(b)) >= seen for _ in range(draws))
    return (1 + reached) / (1 + draws)


def sign_flip_p(differences: ArrayLike, *, draws: int = 1000, seed: int = 0) -> float:
    """The p-value of the mean of paired (N,) differences under random signs.

    One-sided, for differences that are symmetric about zero if nothing is there. The signs that
    were seen count as one of the draws. NaN without differences.
    """
    values = np.asarray(differences, np.float64)
    if not len(values):
        return float("nan")
    generator = np.random.default_rng(seed)
    # Rounding must not decide between sums that are equal.
    slack = 1e-12 * float(np.abs(values).sum())
    signs = generator.integers(0, 2, (draws, len(values))) * 2 - 1
    reached = int((signs @ values >= values.sum() - slack).sum())
    return (1 + reached) / (1 + draws)


def cohens_d(differences: ArrayLike) -> float:
    """Effect size of paired (N,) differences: their mean in units of their spread."""
    values = np.asarray(differences, np.float64)
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return float(values.mean()) / spread if spread > 0 else float("nan")
