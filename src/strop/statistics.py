"""Correlation, association, bootstrap intervals and permutation tests. Seeded, in float64."""

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


def mean_interval(values: ArrayLike, *, draws: int = 1000, seed: int = 0) -> Interval:
    """Mean over the rows (images) of `values` with its bootstrap interval.

    values  (N,) or (N, ...). The finite values of a row are averaged first; rows without any are
            left out. All three numbers are NaN if no row remains.
    """
    rows = np.asarray(values, np.float64)
    rows = rows.reshape(len(rows), int(np.prod(rows.shape[1:])))
    rows = rows[np.isfinite(rows).any(axis=1)]
    if not len(rows):
        return Interval(*[float("nan")] * 3)
    return bootstrap(np.mean, np.nanmean(rows, axis=1), draws=draws, seed=seed)


def null_p(value: float, null: ArrayLike, slack: float = 1e-12) -> float:
    """One-sided p-value of a statistic, given draws (N,) of it under the null hypothesis.

    The observed value counts as one of the draws, so p is never zero. Differences up to `slack`,
    due to rounding, count as ties.
    """
    draws = np.asarray(null, np.float64)
    return (1 + int((draws >= value - slack).sum())) / (1 + len(draws))


def permutation_p(
    statistic: Statistic, x: ArrayLike, y: ArrayLike, *, draws: int = 1000, seed: int = 0
) -> float:
    """The one-sided p-value of `statistic(x, y)` when y is shuffled against x; NaN if it is NaN."""
    a, b = np.asarray(x), np.asarray(y)
    generator = np.random.default_rng(seed)
    observed = statistic(a, b)
    if np.isnan(observed):
        return float("nan")
    return null_p(observed, [statistic(a, generator.permutation(b)) for _ in range(draws)])


def sign_flip_p(differences: ArrayLike, *, draws: int = 1000, seed: int = 0) -> float:
    """The p-value of the mean of paired (N,) differences under random signs.

    One-sided, for differences that are symmetric about zero under the null hypothesis. NaN without
    differences.
    """
    values = np.asarray(differences, np.float64)
    if not len(values):
        return float("nan")
    generator = np.random.default_rng(seed)
    signs = generator.integers(0, 2, (draws, len(values))) * 2 - 1
    return null_p(values.sum(), signs @ values, slack=1e-12 * float(np.abs(values).sum()))


def paired_test(
    first: ArrayLike, second: ArrayLike, *, draws: int = 1000, seed: int = 0
) -> dict[str, float]:
    """Means, Cohen's d and the sign-flip p-value of paired (N,) samples, and their number.

    Pairs with a NaN are left out; without any pair, all but `images` are NaN.
    """
    pairs = np.stack([np.asarray(first, np.float64), np.asarray(second, np.float64)])
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    one, two = pairs.mean(axis=1).tolist() if pairs.size else [float("nan")] * 2
    return {
        "first": one,
        "second": two,
        "d": cohens_d(pairs[0] - pairs[1]),
        "p": sign_flip_p(pairs[0] - pairs[1], draws=draws, seed=seed),
        "images": pairs.shape[1],
    }


def cohens_d(differences: ArrayLike) -> float:
    """Effect size of paired (N,) differences: their mean in units of their spread."""
    values = np.asarray(differences, np.float64)
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return float(values.mean()) / spread if spread > 0 else float("nan")


def entropy(counts: ArrayLike) -> Array:
    """Entropy in nats along the last axis of counts; zero where there are none."""
    values = np.asarray(counts, np.float64)
    total = values.sum(axis=-1, keepdims=True)
    share = np.divide(values, total, out=np.zeros_like(values), where=total > 0)
    surprise = np.log(1 / np.where(share > 0, share, 1))
    return (share * surprise).sum(axis=-1)


def gini(counts: ArrayLike) -> float:
    """Gini coefficient of (N,) counts: 0 if all are equal, close to 1 if one holds everything."""
    values = np.sort(np.asarray(counts, np.float64))
    if values.sum() == 0:
        return float("nan")
    rank = np.arange(1, len(values) + 1)
    return float((2 * rank - len(values) - 1) @ values / (len(values) * values.sum()))


def mutual_information(table: ArrayLike) -> float:
    """Mutual information of the rows and columns of a (R, C) table of counts, in nats."""
    counts = np.asarray(table, np.float64)
    marginals = entropy(counts.sum(axis=0)) + entropy(counts.sum(axis=1))
    return float(marginals - entropy(counts.reshape(-1)))


def purity(table: ArrayLike) -> float:
    """Share of the counts of a (R, C) table that lie in the largest column of their row."""
    counts = np.asarray(table, np.float64)
    return float(counts.max(axis=1).sum() / counts.sum()) if counts.sum() else float("nan")


def adjusted_rand(tables: ArrayLike) -> Array:
    """Adjusted Rand index (...) of pairs of partitions, given as tables (..., R, C) of counts."""
    counts = np.asarray(tables, np.float64)

    def pairs(n: Array) -> Array:
        return n * (n - 1) / 2

    both = pairs(counts).sum(axis=(-1, -2))
    rows, columns = pairs(counts.sum(axis=-1)).sum(-1), pairs(counts.sum(axis=-2)).sum(-1)
    every = pairs(counts.sum(axis=(-1, -2)))
    expected = np.divide(rows * columns, every, out=np.zeros_like(every), where=every > 0)
    room = (rows + columns) / 2 - expected
    # Without room above chance both partitions are trivial, hence equal.
    return np.divide(both - expected, room, out=np.ones_like(room), where=room > 0)


def best_iou(tables: ArrayLike) -> Array:
    """Best intersection over union (..., C) of any row with each column of tables (..., R, C).

    NaN for empty columns.
    """
    counts = np.asarray(tables, np.float64)
    rows, columns = counts.sum(axis=-1, keepdims=True), counts.sum(axis=-2, keepdims=True)
    union = rows + columns - counts
    iou = np.divide(counts, union, out=np.zeros_like(counts), where=union > 0)
    return np.where(columns[..., 0, :] > 0, iou.max(axis=-2), np.nan)
