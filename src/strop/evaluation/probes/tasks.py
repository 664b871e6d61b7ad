"""What is asked of a representation on cached features: classes, labels or depth.

A task knows its truth, what a probe's output costs in training, and what it scores. Training is on
the grid of the field, where a location's truth is the mean over its pixels: for classes that is
exactly the loss of logits repeated over the pixels. Scoring is at the truth's resolution, with the
output upsampled bilinearly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from strop.data.record import VOID
from strop.evaluation.probes.fitting import Fitted, fit
from strop.evaluation.probes.heads import Probe, Representation, probe_maker
from strop.evaluation.probes.metrics import (
    count_pixels,
    depth_errors,
    depth_scores,
    joined,
    multilabel_scores,
    segmentation_scores,
)
from strop.evaluation.probes.protocol import Depth, Head, Multilabel, Schedule, Segmentation

_SCALARS = 1 << 25  # upsampled at a time
_RESIDENT_SHARE = 0.5  # of a GPU's free memory that a representation may take


class Task(Protocol):
    """What `run` needs to know. `rows` are images of the training set, or of the other one."""

    outputs: int
    locations: int
    schedule: Schedule
    head: Head
    images: int
    chunk: int

    def loss(self, output: Tensor, rows: Tensor) -> Tensor:
        """Mean cost of a probe's output (b, S, outputs) for training images."""

    def measure(self, output: Tensor, rows: slice) -> Any:
        """Sums per image that `scores` is made of, for images of the other set."""

    def scores(self, parts: list[Any], seed: int) -> dict[str, Any]:
        """The figures, with intervals by bootstrap over images."""


def run(
    task: Task,
    train: Representation,
    val: Representation,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    sequence: bool = False,
) -> tuple[dict[str, Any], Fitted]:
    """Train a probe on one set's representation and score it on the other's."""
    device = torch.device(device)
    train = _placed(train, device)

    def loss(probe: torch.nn.Module, rows: Tensor, step: int) -> Tensor:
        return task.loss(probe(train[rows].to(device)), rows)

    make = probe_maker(train, task.outputs, task.head, locations=task.locations, sequence=sequence)
    fitted = fit(make, loss, task.images, task.schedule, seed=seed, device=device)
    parts = [task.measure(output, rows) for rows, output in outputs(fitted.probe, val, task.chunk)]
    scores = task.scores(parts, seed)
    return {**scores, "weight_decay": fitted.weight_decay}, fitted


def outputs(
    probe: Probe, representation: Representation, chunk: int
) -> Iterator[tuple[slice, Tensor]]:
    """A trained probe's output (b, S, C) with the rows it is of, chunk by chunk."""
    device = next(probe.parameters()).device
    with torch.no_grad():
        for start in range(0, len(representation), chunk):
            rows = slice(start, min(start + chunk, len(representation)))
            yield rows, probe(representation[rows].to(device))


class SegmentationTask:
    """Class ids (N, H, H) uint8 of both sets, told on a grid of S locations."""

    def __init__(
        self, train: Tensor, val: Tensor, classes: int, locations: int, protocol: Segmentation
    ) -> None:
        self.outputs, self.locations = classes, locations
        self.schedule, self.head = protocol.schedule, protocol.head
        self.images, self.chunk = len(train), _chunk(classes, val)
        self.shares = class_shares(train, classes, locations)
        self.val = val

    def loss(self, output: Tensor, rows: Tensor) -> Tensor:
        """Cross-entropy over the labelled pixels of the images at `rows`."""
        shares = self.shares[rows].to(output)
        pixels = shares.sum().clamp(min=1e-6)
        return -(shares * output.log_softmax(dim=-1)).sum() / pixels

    def measure(self, output: Tensor, rows: slice) -> Any:
        """Pixel counts of the images at `rows`."""
        return count_pixels(self.predict(output), self.val[rows].to(output.device), self.outputs)

    def predict(self, output: Tensor) -> Tensor:
        """(b, S, C) to class ids (b, H, H)."""
        return upsample(output, self.val.shape[1:]).argmax(dim=1)

    def scores(self, parts: list[Any], seed: int) -> dict[str, Any]:
        """mIoU, pixel and class accuracy."""
        return segmentation_scores(joined(parts), seed=seed)


class MultilabelTask:
    """Labels (N, C) bool of both sets, told from the pooled representation."""

    def __init__(self, train: Tensor, val: Tensor, protocol: Multilabel) -> None:
        self.outputs, self.locations = train.shape[1], 1
        self.schedule, self.head = protocol.schedule, protocol.head
        self.images, self.chunk = len(train), 256
        self.train, self.val = train, val

    def loss(self, output: Tensor, rows: Tensor) -> Tensor:
        """Binary cross-entropy, the mean over classes and images."""
        return F.binary_cross_entropy_with_logits(output[:, 0], self.train[rows].to(output))

    def measure(self, output: Tensor, rows: slice) -> Any:
        """The classes' scores of the images at `rows`, (b, C)."""
        return output[:, 0].double().cpu().numpy()

    def scores(self, parts: list[Any], seed: int) -> dict[str, Any]:
        """mAP."""
        return multilabel_scores(np.concatenate(parts), self.val.numpy(), seed=seed)


class DepthTask:
    """Depth (N, H, H) in metres of both sets, 0 where unknown, told on a grid of S locations."""

    def __init__(self, train: Tensor, val: Tensor, locations: int, protocol: Depth) -> None:
        self.outputs, self.locations = 1, locations
        self.schedule, self.head = protocol.schedule, protocol.head
        self.images, self.chunk = len(train), _chunk(1, val)
        self.protocol = protocol
        self.mean, self.known = pooled_depth(train, locations)
        # The probe tells standard deviations from the mean: depths of any scale are learned alike.
        total = self.known.sum().clamp(min=1e-6)
        self.offset = float((self.mean * self.known).sum() / total)
        variance = ((self.mean - self.offset).square() * self.known).sum() / total
        self.spread = math.sqrt(float(variance)) or 1.0
        self.most = protocol.most or float(train.max())
        self.val = val

    def loss(self, output: Tensor, rows: Tensor) -> Tensor:
        """Squared error, each location weighted by its share of known pixels."""
        mean, known = self.mean[rows].to(output), self.known[rows].to(output)
        error = (output[..., 0] - (mean - self.offset) / self.spread).square()
        return (error * known).sum() / known.sum().clamp(min=1e-6)

    def measure(self, output: Tensor, rows: slice) -> Any:
        """Sums of errors of the images at `rows`."""
        truth = self.val[rows].to(output.device)
        return depth_errors(self.predict(output), truth, least=self.protocol.least)

    def predict(self, output: Tensor) -> Tensor:
        """(b, S, 1) to metres (b, H, H)."""
        metres = output * self.spread + self.offset
        return upsample(metres, self.val.shape[1:])[:, 0].clamp(self.protocol.least, self.most)

    def scores(self, parts: list[Any], seed: int) -> dict[str, Any]:
        """RMSE, AbsRel, the deltas."""
        return depth_scores(joined(parts), average=self.protocol.average, seed=seed)


def upsample(output: Tensor, size: Sequence[int], grid: tuple[int, int] | None = None) -> Tensor:
    """Output (b, S, C) on a grid, a square if none is given, to (b, C, H, W), bilinearly."""
    high, wide = grid or (math.isqrt(output.shape[1]),) * 2
    maps = output.float().transpose(1, 2).unflatten(-1, (high, wide))
    return F.interpolate(maps, tuple(size), mode="bilinear", align_corners=False)


def class_shares(masks: Tensor, classes: int, locations: int) -> Tensor:
    """Share of each location's pixels in each class: ids (N, H, H) to (N, S, C) float16.

    Shares sum to the labelled part of the location, so void pixels weigh nothing.
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


def pooled_depth(depth: Tensor, locations: int) -> tuple[Tensor, Tensor]:
    """Depth (N, H, H) to each location's mean over known pixels and their share, (N, S) each."""
    side = math.isqrt(locations)
    known = F.adaptive_avg_pool2d((depth > 0).float()[:, None], side).flatten(1)
    total = F.adaptive_avg_pool2d(depth.float()[:, None], side).flatten(1)
    return total / known.clamp(min=1e-6), known


def _placed(representation: Representation, device: torch.device) -> Representation:
    """The representation on the GPU if there is room for it, else where it is."""
    if device.type != "cuda":
        return representation
    values = representation if isinstance(representation, Tensor) else representation.vectors
    free, _ = torch.cuda.mem_get_info(device)
    fits = values.numel() * values.element_size() < _RESIDENT_SHARE * free
    return representation.to(device) if fits else representation


def _chunk(channels: int, truth: Tensor) -> int:
    """How many images are upsampled at once."""
    return max(1, _SCALARS // (channels * truth[0].numel()))
