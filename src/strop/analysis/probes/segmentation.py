"""Linear probes of classes at every pixel: mIoU, pixel and class accuracy.

Section 4, "Supervised downstream probes"; Tables 2, 10 and 11.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from strop.analysis.probes.probe import probe_analysis, upsample
from strop.analysis.probes.protocol import Protocol
from strop.analysis.probes.scores import SEGMENTATION, count_pixels, segmentation_scores
from strop.data.record import VOID
from strop.statistics import Array


class SegmentationTask:
    """Class ids (N, H, H) uint8 of both sets, predicted on a grid of S locations."""

    statistics, scores = SEGMENTATION, staticmethod(segmentation_scores)

    def __init__(
        self, train: Tensor, truth: Tensor, classes: int, locations: int, protocol: Protocol
    ) -> None:
        self.outputs, self.locations, self.protocol = classes, locations, protocol
        self.shares = class_shares(train, classes, locations)
        self.weights = class_weights(self.shares, protocol.balance)
        self.truth = truth

    def loss(self, output: Tensor, rows: Tensor) -> Tensor:
        """Cross-entropy over the labelled pixels of the images at `rows`, weighted by class."""
        shares = self.shares[rows].to(output) * self.weights.to(output)
        pixels = shares.sum().clamp(min=1e-6)
        return -(shares * output.log_softmax(dim=-1)).sum() / pixels

    def measure(self, output: Tensor, rows: slice) -> Array:
        """Pixel counts of the images at `rows`."""
        return count_pixels(self.predict(output), self.truth[rows].to(output.device), self.outputs)

    def predict(self, output: Tensor) -> Tensor:
        """(b, S, C) to class ids (b, H, H)."""
        return upsample(output, self.truth.shape[1:]).argmax(dim=1)


def class_shares(masks: Tensor, classes: int, locations: int) -> Tensor:
    """Share of each location's pixels in each class: ids (N, H, H) to (N, S, C) float16.

    Shares sum to the labelled part of the location: void pixels have no weight.
    """
    side = math.isqrt(locations)
    pixels = masks.shape[1] // side
    offsets = (classes + 1) * torch.arange(locations).view(side, 1, side, 1)
    shares = torch.empty(len(masks), locations, classes, dtype=torch.float16)
    for row, mask in enumerate(masks):
        ids = torch.where(mask == VOID, classes, mask.long()).view(side, pixels, side, pixels)
        counts = torch.bincount((ids + offsets).flatten(), minlength=locations * (classes + 1))
        shares[row] = counts.view(locations, -1)[:, :classes] / pixels**2
    return shares


def class_weights(shares: Tensor, balance: float) -> Tensor:
    """Weights (C,) in proportion to the power -`balance` of a class's share; 1 on average.

    shares  (N, S, C), from `class_shares`
    """
    share = shares.double().sum((0, 1))
    share = share / share.sum().clamp(min=1e-12)
    weights = torch.where(share > 0, share.clamp(min=1e-12) ** -balance, 0)
    return (weights / (weights * share).sum().clamp(min=1e-12)).float()


ANALYSIS = probe_analysis(
    "semantic",
    lambda train, truth, subject, protocol: SegmentationTask(
        train, truth, len(subject.classes), subject.fields.shape[1], protocol
    ),
    names="classes",
    maps=True,
)
