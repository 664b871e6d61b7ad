"""How far two partitions, or the rows and columns of a table of counts, go together."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def entropy(counts: ArrayLike) -> Array:
    """Entropy in nats along the last axis of counts; zero where there are none."""
    values = np.asarray(counts, np.float64)
    total = values.sum(axis=-1, keepdims=True)
    share = np.divide(values, total, out=np.zeros_like(values), where=total > 0)
    surprise = np.log(1 / np.where(share > 0, share, 1))
    return (share * surprise).sum(axis=-1)


def gini(counts: ArrayLike) -> float:
    """How unequal `(N,)` counts are: 0 if all are the same, towards 1 if one has everything."""
    values = np.sort(np.asarray(counts, np.float64))
    if values.sum() == 0:
        return float("nan")
    rank = np.arange(1, len(values) + 1)
    return float((2 * rank - len(values) - 1) @ values / (len(values) * values.sum()))


def mutual_information(table: ArrayLike) -> float:
    """Of the row and the column of a `(R, C)` table of counts, in nats."""
    counts = np.asarray(table, np.float64)
    apart = entropy(counts.sum(axis=0)) + entropy(counts.sum(axis=1))
    return float(apart - entropy(counts.reshape(-1)))


def cramers_v(table: ArrayLike) -> float:
    """Cramér's V of a `(R, C)` table of counts: 0 for independence, 1 if one tells the other.

    Empty rows and columns are left out; NaN if fewer than two of either are left.
    """
    counts = np.asarray(table, np.float64)
    counts = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    if min(counts.shape) < 2:
        return float("nan")
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    chi2 = ((counts - expected) ** 2 / expected).sum()
    return float(np.sqrt(chi2 / counts.sum() / (min(counts.shape) - 1)))


def purity(table: ArrayLike) -> float:
    """The share of counts in a `(R, C)` table that lie in the largest column of their row."""
    counts = np.asarray(table, np.float64)
    return float(counts.max(axis=1).sum() / counts.sum()) if counts.sum() else float("nan")


def adjusted_rand(tables: ArrayLike) -> Array:
    """Adjusted Rand index `(...,)` of partitions, each pair given as a table `(..., R, C)`."""
    counts = np.asarray(tables, np.float64)

    def pairs(n: Array) -> Array:
        return n * (n - 1) / 2

    both = pairs(counts).sum(axis=(-1, -2))
    rows, columns = pairs(counts.sum(axis=-1)).sum(-1), pairs(counts.sum(axis=-2)).sum(-1)
    every = pairs(counts.sum(axis=(-1, -2)))
    expected = np.divide(rows * columns, every, out=np.zeros_like(every), where=every > 0)
    room = (rows + columns) / 2 - expected
    # Two partitions without room above chance are both trivial, and so the same.
    return np.divide(both - expected, room, out=np.ones_like(room), where=room > 0)


def overlap(tables: ArrayLike) -> Array:
    """Best intersection over union `(..., C)` that any row reaches with each column.

    NaN for columns of tables `(..., R, C)` that hold nothing.
    """
    counts = np.asarray(tables, np.float64)
    rows, columns = counts.sum(axis=-1, keepdims=True), counts.sum(axis=-2, keepdims=True)
    union = rows + columns - counts
    iou = np.divide(counts, union, out=np.zeros_like(counts), where=union > 0)
    return np.where(columns[..., 0, :] > 0, iou.max(axis=-2), np.nan)
