"""Metrics of probes, computed from sums per image, so that images can be resampled.

Functions of one metric return shares and metres; the `*_scores` return the metrics that
`strop.analysis.metric_info` lists, in its units: shares in per cent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.data.record import VOID
from strop.statistics import Array, Statistic, bootstrap

Statistics = Mapping[str, tuple[Statistic, float]]
"""Functions of sums, one row per image, and the factors that give their units."""

Scores = Callable[..., dict[str, Any]]
"""Sums and a `seed` to all metrics, with intervals by bootstrap over images."""


def with_intervals(
    statistics: Statistics, *sums: Array, seed: int, draws: int = 1000
) -> dict[str, Any]:
    """Statistics of sums, each times a factor, with bootstrap intervals over images."""
    values, intervals = {}, {}
    for name, (statistic, factor) in statistics.items():
        found = bootstrap(statistic, *sums, seed=seed, draws=draws)
        values[name] = factor * found.value
        intervals[name] = [factor * found.low, factor * found.high]
    return {"values": values, "intervals": intervals}


def difference(
    statistics: Statistics, first: Array, second: Array, *, seed: int = 0
) -> dict[str, Any]:
    """Statistics of some sums less those of others, the images drawn together."""

    def less(statistic: Statistic) -> Statistic:
        return lambda one, other: statistic(one) - statistic(other)

    pairs = {name: (less(statistic), factor) for name, (statistic, factor) in statistics.items()}
    return with_intervals(pairs, first, second, seed=seed)


# Segmentation.


def count_pixels(predicted: Tensor, truth: Tensor, classes: int) -> Array:
    """Pixels of each image and class (B, 3, C): correct ones, in the truth, in the prediction.

    From class ids (B, H, W); pixels whose truth is `VOID` are ignored.
    """
    rows = torch.arange(len(truth), device=truth.device).view(-1, 1, 1).expand_as(truth) * classes
    known = truth != VOID

    def count(ids: Tensor, where: Tensor) -> Array:
        index = (rows + ids)[where]
        counts = torch.bincount(index, minlength=len(truth) * classes)
        return counts.view(-1, classes).cpu().numpy().astype(np.float64)

    truth, predicted = truth.long(), predicted.long()
    correct = count(truth, known & (truth == predicted))
    return np.stack([correct, count(truth, known), count(predicted, known)], axis=1)


def class_iou(counts: Array) -> Array:
    """(C,) intersection over union of dataset totals; NaN for classes that do not occur."""
    hit, truth, predicted = counts.sum(axis=0)
    return _shares(hit, truth + predicted - hit)


def mean_iou(counts: Array) -> float:
    """Mean IoU over the classes that occur in the truth or the prediction."""
    return _mean(class_iou(counts))


def pixel_accuracy(counts: Array) -> float:
    """The share of labelled pixels that are correct."""
    hit, truth, _ = counts.sum(axis=(0, 2))
    return float(hit / truth) if truth else float("nan")


def mean_class_accuracy(counts: Array) -> float:
    """The share of correct pixels of each class, averaged over the classes in the truth."""
    hit, truth, _ = counts.sum(axis=0)
    return _mean(_shares(hit, truth))


SEGMENTATION: Statistics = {
    "miou": (mean_iou, 100),
    "pixel_accuracy": (pixel_accuracy, 100),
    "class_accuracy": (mean_class_accuracy, 100),
}


def segmentation_scores(counts: Array, *, seed: int = 0, draws: int = 1000) -> dict[str, Any]:
    """All metrics, the number of classes in mIoU, and the IoU of each class (None if undefined)."""
    iou = class_iou(counts)
    return {
        **with_intervals(SEGMENTATION, counts, seed=seed, draws=draws),
        "classes": int(np.isfinite(iou).sum()),
        "iou": _percents(iou),
    }


# Multi-label.


def class_precision(ranking: Array, *, points: int = 0) -> Array:
    """(C,) average precision of scores and labels (N, 2, C): the area under precision over recall.

    By default the mean over positives of the precision at their rank, with ties counted together.
    With `points` 11, PASCAL VOC 2007's: the mean over recalls 0, .1, ... 1 of the best precision at
    that recall or a higher one. NaN for classes without positives.
    """
    scores, truth = ranking[:, 0], ranking[:, 1] > 0
    order = np.argsort(-scores, axis=0, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=0)
    positive = np.take_along_axis(truth, order, axis=0)
    places = np.arange(len(scores))[:, None]
    last = np.append(np.diff(ranked, axis=0) != 0, np.ones((1, scores.shape[1]), bool), axis=0)
    # The last rank of the tie that each rank is in.
    end = np.minimum.accumulate(np.where(last, places, len(scores))[::-1], axis=0)[::-1]
    found = np.take_along_axis(positive.cumsum(axis=0), end, axis=0)
    precision, positives = found / (end + 1), truth.sum(axis=0)
    with np.errstate(invalid="ignore"):
        if not points:
            return (positive * precision).sum(axis=0) / positives
        best = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
        first = [
            (found < level * positives - 1e-9).sum(axis=0) for level in np.linspace(0, 1, points)
        ]
        picked = np.take_along_axis(best, np.minimum(first, len(scores) - 1), axis=0)
        return np.where(positives > 0, picked.mean(axis=0), np.nan)


def mean_average_precision(ranking: Array, *, points: int = 0) -> float:
    """Mean average precision of scores and labels (N, 2, C) over classes with positives."""
    return _mean(class_precision(ranking, points=points))


MULTILABEL: Statistics = {
    "map": (mean_average_precision, 100),
    "map_11": (partial(mean_average_precision, points=11), 100),
}


def multilabel_scores(ranking: Array, *, seed: int = 0, draws: int = 1000) -> dict[str, Any]:
    """mAP by both definitions, the number of classes in it, and the precision of each class."""
    precision = class_precision(ranking)
    return {
        **with_intervals(MULTILABEL, ranking, seed=seed, draws=draws),
        "classes": int(np.isfinite(precision).sum()),
        "average_precision": _percents(precision),
    }


# Depth.

DELTA = 1.25


def depth_errors(predicted: Tensor, truth: Tensor, *, least: float = 1e-3) -> Array:
    """Sums of errors of depths (B, H, W) in metres where the truth is above 0.

    (b, 6) for the images with such pixels: their number, squared and relative errors, and how many
    are within a factor of 1.25, 1.25² and 1.25³.
    """
    known = truth > 0
    predicted = predicted.double().clamp(min=least)
    safe = torch.where(known, truth.double(), 1.0)
    ratio = torch.maximum(predicted / safe, safe / predicted)

    def total(value: Tensor) -> Array:
        return torch.where(known, value.double(), 0.0).sum((1, 2)).cpu().numpy()

    errors = [
        torch.ones_like(safe),
        (predicted - safe).square(),
        (predicted - safe).abs() / safe,
        *(ratio < DELTA**power for power in (1, 2, 3)),
    ]
    sums = np.stack([total(each) for each in errors], axis=1)
    return sums[sums[:, 0] > 0]


def _over_pixels(column: int, *, root: bool = False) -> Statistic:
    """The mean of a sum of `depth_errors` over all known pixels."""

    def statistic(sums: Array) -> float:
        if not len(sums):
            return float("nan")
        mean = sums[:, column].sum() / sums[:, 0].sum()
        return float(np.sqrt(mean) if root else mean)

    return statistic


DEPTH: Statistics = {
    "depth_rmse": (_over_pixels(1, root=True), 1),
    "abs_rel": (_over_pixels(2), 100),
    "delta1": (_over_pixels(3), 100),
    "delta2": (_over_pixels(4), 100),
    "delta3": (_over_pixels(5), 100),
}


def depth_scores(sums: Array, *, seed: int = 0, draws: int = 1000) -> dict[str, Any]:
    """All metrics and the number of images that they are taken over."""
    found = with_intervals(DEPTH, sums, seed=seed, draws=draws if len(sums) else 0)
    return {**found, "images": len(sums)}


def _shares(parts: Array, wholes: Array) -> Array:
    """Parts of wholes; NaN where the whole is 0."""
    return np.divide(parts, wholes, out=np.full(len(wholes), np.nan), where=wholes > 0)


def _mean(values: Array) -> float:
    """The mean of the finite values; NaN if there is none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def _percents(values: Array) -> list[float | None]:
    return [100 * float(value) if np.isfinite(value) else None for value in values]
