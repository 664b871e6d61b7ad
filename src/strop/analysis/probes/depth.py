"""Probes of depth at every pixel: RMSE, AbsRel, deltas.

Section 4, "Supervised downstream probes"; Tables 12 and 13.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from strop.analysis.probes.probe import probe_analysis, upsample
from strop.analysis.probes.protocol import Protocol
from strop.analysis.probes.scores import DEPTH, depth_errors, depth_scores
from strop.statistics import Array

LEAST = 1e-3
"""The least depth that is predicted, in metres; the most is that of the deepest training pixel."""


class DepthTask:
    """Depth (N, H, H) in metres of both sets, 0 where unknown, predicted at S locations."""

    statistics, scores = DEPTH, staticmethod(depth_scores)

    def __init__(self, train: Tensor, truth: Tensor, locations: int, protocol: Protocol) -> None:
        self.outputs, self.locations, self.protocol = 1, locations, protocol
        self.mean, self.known = pooled_depth(train, locations)
        # The probe predicts standard deviations from the mean, so that the scale does not matter.
        total = self.known.sum().clamp(min=1e-6)
        self.offset = float((self.mean * self.known).sum() / total)
        variance = ((self.mean - self.offset).square() * self.known).sum() / total
        self.spread = math.sqrt(float(variance)) or 1.0
        self.most = float(train.max())
        self.truth = truth

    def loss(self, output: Tensor, rows: Tensor) -> Tensor:
        """Squared error, each location weighted by its share of known pixels."""
        mean, known = self.mean[rows].to(output), self.known[rows].to(output)
        error = (output[..., 0] - (mean - self.offset) / self.spread).square()
        return (error * known).sum() / known.sum().clamp(min=1e-6)

    def measure(self, output: Tensor, rows: slice) -> Array:
        """Sums of errors of the images at `rows`."""
        return depth_errors(self.predict(output), self.truth[rows].to(output.device), least=LEAST)

    def predict(self, output: Tensor) -> Tensor:
        """(b, S, 1) to metres (b, H, H)."""
        metres = output * self.spread + self.offset
        return upsample(metres, self.truth.shape[1:])[:, 0].clamp(LEAST, self.most)


def pooled_depth(depth: Tensor, locations: int) -> tuple[Tensor, Tensor]:
    """Depth (N, H, H) to each location's mean over known pixels and their share, (N, S) each."""
    side = math.isqrt(locations)
    known = F.adaptive_avg_pool2d((depth > 0).float()[:, None], side).flatten(1)
    total = F.adaptive_avg_pool2d(depth.float()[:, None], side).flatten(1)
    return total / known.clamp(min=1e-6), known


ANALYSIS = probe_analysis(
    "depth",
    lambda train, truth, subject, protocol: DepthTask(
        train, truth, subject.fields.shape[1], protocol
    ),
    maps=True,
)
