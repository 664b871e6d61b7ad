"""Metrics of probes, computed from sums per image, so that images can be resampled.

Functions of one metric return shares and metres; the `*_scores` return the metrics that
`strop.analysis.metric_info` lists, in its units: shares in per cent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from strop.data.record import VOID
from strop.statistics import Array, Statistic, bootstrap

Statistics = Mapping[str, tuple[Statistic, float]]
"""Functions of rows, one row per image, and the factors that give their units."""


def with_intervals(
    statistics: Statistics, *rows: ArrayLike, seed: int, draws: int
) -> dict[str, Any]:
    """Statistics of rows, one per image, each times a factor, with bootstrap intervals."""
    values, intervals = {}, {}
    for name, (statistic, factor) in statistics.items():
        found = bootstrap(statistic, *rows, seed=seed, draws=draws)
        values[name] = factor * found.value
        intervals[name] = [factor * found.low, factor * found.high]
    return {"values": values, "intervals": intervals}


def difference(
    statistics: Statistics,
    first: Sequence[ArrayLike],
    second: Sequence[ArrayLike],
    *,
    seed: int = 0,
    draws: int = 1000,
) -> dict[str, Any]:
    """Statistics of one group of rows less those of another, the images drawn together."""

    def less(statistic: Statistic) -> Statistic:
        return lambda *rows: statistic(*rows[: len(first)]) - statistic(*rows[len(first) :])

    pairs = {name: (less(statistic), factor) for name, (statistic, factor) in statistics.items()}
    return with_intervals(pairs, *first, *second, seed=seed, draws=draws)


# Segmentation.


@dataclass(frozen=True, kw_only=True, eq=False)
class PixelCounts:
    """Pixels per image and class, (N, C) each: correct ones, in the truth, in the prediction."""

    hit: Array
    truth: Array
    predicted: Array

    def rows(self) -> tuple[Array, Array, Array]:
        """The counts as functions of rows take them."""
        return self.hit, self.truth, self.predicted


def count_pixels(predicted: Tensor, truth: Tensor, classes: int) -> PixelCounts:
    """Counts of class ids (B, H, W); pixels whose truth is `VOID` are ignored."""
    rows = torch.arange(len(truth), device=truth.device).view(-1, 1, 1).expand_as(truth) * classes
    known = truth != VOID

    def count(ids: Tensor, where: Tensor) -> Array:
        index = (rows + ids)[where]
        counts = torch.bincount(index, minlength=len(truth) * classes)
        return counts.view(-1, classes).cpu().numpy().astype(np.float64)

    truth, predicted = truth.long(), predicted.long()
    return PixelCounts(
        hit=count(truth, known & (truth == predicted)),
        truth=count(truth, known),
        predicted=count(predicted, known),
    )


def class_iou(hit: Array, truth: Array, predicted: Array) -> Array:
    """(C,) intersection over union of dataset totals; NaN for classes that do not occur."""
    union = truth.sum(0) + predicted.sum(0) - hit.sum(0)
    return np.divide(hit.sum(0), union, out=np.full(len(union), np.nan), where=union > 0)


def mean_iou(hit: Array, truth: Array, predicted: Array) -> float:
    """Mean IoU over the classes that occur in the truth or the prediction."""
    return _mean(class_iou(hit, truth, predicted))


def pixel_accuracy(hit: Array, truth: Array, predicted: Array) -> float:
    """The share of labelled pixels that are correct."""
    return float(hit.sum() / truth.sum()) if truth.sum() else float("nan")


def mean_class_accuracy(hit: Array, truth: Array, predicted: Array) -> float:
    """The share of correct pixels of each class, averaged over the classes in the truth."""
    totals = truth.sum(0)
    return _mean(np.divide(hit.sum(0), totals, out=np.full(len(totals), np.nan), where=totals > 0))


SEGMENTATION: Statistics = {
    "miou": (mean_iou, 100),
    "pixel_accuracy": (pixel_accuracy, 100),
    "class_accuracy": (mean_class_accuracy, 100),
}


def segmentation_scores(counts: PixelCounts, *, seed: int = 0, draws: int = 1000) -> dict[str, Any]:
    """All metrics, the number of classes in mIoU, and the IoU of each class (None if undefined)."""
    rows = counts.rows()
    iou = class_iou(*rows)
    return {
        **with_intervals(SEGMENTATION, *rows, seed=seed, draws=draws),
        "classes": int(np.isfinite(iou).sum()),
        "iou": _percents(iou),
    }


# Multi-label.


def class_precision(scores: Array, truth: NDArray[np.bool_], *, points: int = 0) -> Array:
    """(C,) average precision of scores (N, C): the area under precision over recall.

    By default the mean over positives of the precision at their rank, with ties counted together.
    With `points` 11, PASCAL VOC 2007's: the mean over recalls 0, .1, ... 1 of the best precision at
    that recall or a higher one. NaN for classes without positives.
    """
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


def mean_average_precision(scores: Array, truth: NDArray[np.bool_], *, points: int = 0) -> float:
    """Mean average precision over classes with positives; scores and truth are (N, C)."""
    return _mean(class_precision(scores, truth, points=points))


MULTILABEL: Statistics = {
    "map": (mean_average_precision, 100),
    "map_11": (partial(mean_average_precision, points=11), 100),
}


def multilabel_scores(
    scores: Array, truth: NDArray[np.bool_], *, seed: int = 0, draws: int = 1000
) -> dict[str, Any]:
    """mAP by both definitions, the number of classes in it, and the precision of each class."""
    precision = class_precision(scores, truth)
    return {
        **with_intervals(MULTILABEL, scores, truth, seed=seed, draws=draws),
        "classes": int(np.isfinite(precision).sum()),
        "average_precision": _percents(precision),
    }


# Depth.

DELTA = 1.25


@dataclass(frozen=True, kw_only=True, eq=False)
class DepthErrors:
    """Sums over the known pixels of each image, (N,) each."""

    pixels: Array
    squared: Array
    relative: Array
    delta1: Array
    delta2: Array
    delta3: Array


def depth_errors(predicted: Tensor, truth: Tensor, *, least: float = 1e-3) -> DepthErrors:
    """Errors of depths (B, H, W) in metres where the truth is above 0."""
    known = truth > 0
    predicted = predicted.double().clamp(min=least)
    safe = torch.where(known, truth.double(), 1.0)
    ratio = torch.maximum(predicted / safe, safe / predicted)

    def total(value: Tensor) -> Array:
        return torch.where(known, value.double(), 0.0).sum((1, 2)).cpu().numpy()

    return DepthErrors(
        pixels=total(torch.ones_like(safe)),
        squared=total((predicted - safe).square()),
        relative=total((predicted - safe).abs() / safe),
        delta1=total(ratio < DELTA),
        delta2=total(ratio < DELTA**2),
        delta3=total(ratio < DELTA**3),
    )


def depth_statistics(average: str = "pixels") -> Statistics:
    """All metrics, over all known pixels, or averaged over images."""

    def mean_of(column: int, root: bool = False) -> Statistic:
        def statistic(sums: Array) -> float:
            pixels, total = sums[:, 0], sums[:, column]
            if not len(sums):
                return float("nan")
            each = total / pixels if average == "images" else total.sum() / pixels.sum()
            return float(np.mean(np.sqrt(each) if root else each))

        return statistic

    return {
        "depth_rmse": (mean_of(1, root=True), 1),
        "abs_rel": (mean_of(2), 100),
        "delta1": (mean_of(3), 100),
        "delta2": (mean_of(4), 100),
        "delta3": (mean_of(5), 100),
    }


def depth_rows(errors: DepthErrors) -> Array:
    """The sums (N, 6) of the images that have known pixels."""
    sums = np.stack([getattr(errors, field.name) for field in fields(errors)], axis=1)
    return sums[sums[:, 0] > 0]


def depth_scores(
    errors: DepthErrors, *, average: str = "pixels", seed: int = 0, draws: int = 1000
) -> dict[str, Any]:
    """All metrics and the number of images that they are taken over."""
    sums = depth_rows(errors)
    found = with_intervals(
        depth_statistics(average), sums, seed=seed, draws=draws if len(sums) else 0
    )
    return {**found, "images": len(sums)}


def joined(parts: list[Any]) -> Any:
    """The sums of several batches, concatenated."""
    kind = type(parts[0])
    names = [field.name for field in fields(kind)]
    return kind(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _mean(values: Array) -> float:
    """The mean of the finite values; NaN if there is none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def _percents(values: Array) -> list[float | None]:
    return [100 * float(value) if np.isfinite(value) else None for value in values]
