"""Agreement of fields with their targets, per image, so that images can be resampled.

The metrics are those of `strop.metrics`, accumulated in chunks: the fields of a dataset in float64
would not fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from strop.statistics import Array, Statistic, bootstrap


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreement:
    """Sums over the field of each image, which determine every metric.

    residual  (n,) squared error
    cosine    (n,) mean cosine over locations
    square    (n,) sum of squares of the target
    channels  (n, d) sum of the target over locations, divided by their mean number
    size      scalars in one field, S * d; on average, where fields differ in what counts
    """

    residual: Array
    cosine: Array
    square: Array
    channels: Array
    size: float

    @property
    def total(self) -> float:
        """The sum of squares about one scalar mean: the denominator of R²."""
        return total_square(self.size, self.square, self.channels)

    def scores(self) -> dict[str, float]:
        """cosine, r2, r2_centred and rmse over all images."""
        return {name: figure(*rows) for name, (figure, rows) in self._figures().items()}

    def intervals(self, seed: int = 0) -> dict[str, list[float]]:
        """[low, high] of each, by bootstrap over images, at 95 %."""
        found = {}
        for name, (figure, rows) in self._figures().items():
            _, low, high = bootstrap(figure, *rows, seed=seed)
            found[name] = [low, high]
        return found

    def _figures(self) -> dict[str, tuple[Statistic, tuple[Array, ...]]]:
        """Each metric as a function of rows, one per image."""
        plain = (self.residual, self.square, self.channels.mean(axis=1))
        centred = (self.residual, self.square, self.channels)
        return {
            "cosine": (lambda cosine: float(cosine.mean()), (self.cosine,)),
            "r2": (partial(_r2, self.size), plain),
            "r2_centred": (partial(_r2_centred, self.size), centred),
            "rmse": (lambda error: float(np.sqrt(error.mean() / self.size)), (self.residual,)),
        }


def agree(pairs: Iterable[tuple[Tensor, Tensor]], inside: Tensor | None = None) -> Agreement:
    """Compare fields (B, S, d) with their targets, given as pairs of chunks.

    inside  (n, S) bool: the locations that count, as `Subject.inside` gives them; None for all
    """
    residual, cosine, square, channels, counts = [], [], [], [], []
    done, width = 0, 0
    for predicted, target in pairs:
        predicted, target = predicted.float(), target.float()
        rows = slice(done, done := done + len(target))
        weight = torch.ones(target.shape[:2]) if inside is None else inside[rows].float()
        weight = weight.to(target.device)
        squares = (predicted - target).square().sum(2, dtype=torch.double)
        counts.append((count := weight.sum(1, dtype=torch.double)).cpu())
        residual.append((squares * weight).sum(1).cpu())
        similar = F.cosine_similarity(predicted, target, dim=-1).double()
        cosine.append(((similar * weight).sum(1) / count).cpu())
        counted = target * weight[..., None]
        square.append((counted * target).sum((1, 2), dtype=torch.double).cpu())
        channels.append(counted.sum(1, dtype=torch.double).cpu())
        width = target.shape[2]
    mean_count = torch.cat(counts).mean()
    return Agreement(
        residual=torch.cat(residual).numpy(),
        cosine=torch.cat(cosine).numpy(),
        square=torch.cat(square).numpy(),
        channels=(torch.cat(channels) / mean_count).numpy(),
        size=mean_count.item() * width,
    )


def _r2(size: float, residual: Array, square: Array, means: Array) -> float:
    return _explained(residual, total_square(size, square, means), square)


def _r2_centred(size: float, residual: Array, square: Array, channels: Array) -> float:
    return _explained(residual, centred_square(size, square, channels), square)


def total_square(size: float, square: Array, means: Array) -> float:
    """The sum of squares about one scalar mean, from each image's square sum and mean: (n,)."""
    return float(square.sum() - len(square) * size * means.mean() ** 2)


def centred_square(size: float, square: Array, channels: Array) -> float:
    """The sum of squares about the mean of each channel, from what `Agreement` holds."""
    means = channels.mean(axis=0)
    return float(square.sum() - len(square) * size * float(means @ means) / len(means))


def _explained(residual: Array, total: float, square: Array) -> float:
    """1 - residual / total; NaN if the target is constant up to rounding."""
    varies = total > 1e-6 * square.sum()
    return float(1 - residual.sum() / total) if varies else float("nan")
