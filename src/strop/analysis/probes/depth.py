"""Probes of depth at every pixel: RMSE, AbsRel, deltas.

Section 4, "Supervised downstream probes"; Tables 12 and 13.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.analysis.findings import Findings
from strop.analysis.frame import Analysis
from strop.analysis.probes.crops import MapProbe, flip, probe_crops, random_below, random_share
from strop.analysis.probes.probe import (
    LengthOptions,
    check_splits,
    chunk_size,
    probe_maps,
    required,
    upsample,
)
from strop.analysis.probes.protocol import Depth, DepthCrops, find_protocol
from strop.analysis.probes.scores import Scores, depth_errors, depth_scores, depth_statistics
from strop.analysis.subject import Subject
from strop.data.decode import nearest
from strop.data.record import Record
from strop.statistics import Array


def run(subject: Subject, options: LengthOptions) -> Findings:
    """Probe every representation."""
    settings = find_protocol(options.protocol).depth
    shared = {"hyperparameters": asdict(settings)}
    if settings.crops is not None:
        task = CroppedDepth(settings, settings.crops)
        return Findings(numbers={**probe_crops(subject, task, options.seed), **shared})
    depths = required(subject.fitted_on().records.depth), required(subject.records.depth)
    cached = DepthTask(*depths, subject.fields.shape[1], settings)
    numbers, figures, _ = probe_maps(subject, cached, options)
    return Findings(numbers={**numbers, **shared}, figures=figures)


ANALYSIS = Analysis(
    run=run,
    options=LengthOptions,
    needs=("depth",),
    fits=True,
    check=lambda subject, options: check_splits(subject, options.protocol),
)


class DepthTask:
    """Depth (N, H, H) in metres of both sets, 0 where unknown, predicted at S locations."""

    def __init__(self, train: Tensor, truth: Tensor, locations: int, protocol: Depth) -> None:
        self.outputs, self.locations = 1, locations
        self.schedule, self.head = protocol.schedule, protocol.head
        self.images, self.chunk = len(train), chunk_size(1, truth)
        self.protocol = protocol
        self.mean, self.known = pooled_depth(train, locations)
        # The probe predicts standard deviations from the mean, so that the scale does not matter.
        total = self.known.sum().clamp(min=1e-6)
        self.offset = float((self.mean * self.known).sum() / total)
        variance = ((self.mean - self.offset).square() * self.known).sum() / total
        self.spread = math.sqrt(float(variance)) or 1.0
        self.most = protocol.most or float(train.max())
        self.truth = truth
        self.statistics = depth_statistics(protocol.average)
        self.scores: Scores = partial(depth_scores, average=protocol.average)

    def loss(self, output: Tensor, rows: Tensor) -> Tensor:
        """Squared error, each location weighted by its share of known pixels."""
        mean, known = self.mean[rows].to(output), self.known[rows].to(output)
        error = (output[..., 0] - (mean - self.offset) / self.spread).square()
        return (error * known).sum() / known.sum().clamp(min=1e-6)

    def measure(self, output: Tensor, rows: slice) -> Array:
        """Sums of errors of the images at `rows`."""
        truth = self.truth[rows].to(output.device)
        return depth_errors(self.predict(output), truth, least=self.protocol.least)

    def predict(self, output: Tensor) -> Tensor:
        """(b, S, 1) to metres (b, H, H)."""
        metres = output * self.spread + self.offset
        return upsample(metres, self.truth.shape[1:])[:, 0].clamp(self.protocol.least, self.most)


def pooled_depth(depth: Tensor, locations: int) -> tuple[Tensor, Tensor]:
    """Depth (N, H, H) to each location's mean over known pixels and their share, (N, S) each."""
    side = math.isqrt(locations)
    known = F.adaptive_avg_pool2d((depth > 0).float()[:, None], side).flatten(1)
    total = F.adaptive_avg_pool2d(depth.float()[:, None], side).flatten(1)
    return total / known.clamp(min=1e-6), known


class CroppedDepth:
    """Rectangular crops of rooms to train on; whole rooms, also mirrored, to score."""

    def __init__(self, protocol: Depth, crops: DepthCrops) -> None:
        assert protocol.bins is not None
        assert protocol.most is not None
        self.outputs, self.protocol, self.crops = protocol.bins, protocol, crops
        self.most = protocol.most
        self.scores: Scores = partial(depth_scores, average=protocol.average)
        self.schedule, self.head = protocol.schedule, protocol.head

    def draw(self, record: Record, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Remove the frame, then rotate, crop, change the brightness and flip at random."""
        crops = self.crops
        image, depth = self.room(record)
        top, bottom, left, right = crops.border
        image, depth = image[:, top:bottom, left:right], depth[top:bottom, left:right]
        if random_share(generator) < 0.5:
            angle = crops.rotation * (2 * random_share(generator) - 1)
            image, depth = rotate(image, depth, angle)
        high, wide = crops.crop
        top = random_below(depth.shape[0] - high + 1, generator)
        left = random_below(depth.shape[1] - wide + 1, generator)
        image = image[:, top : top + high, left : left + wide]
        depth = depth[top : top + high, left : left + wide]
        if random_share(generator) < 0.5:
            low, up = crops.brightness
            factor = low + (up - low) * random_share(generator)
            image = (image.float() * factor).clamp(0, 255).to(torch.uint8)
        return flip(image, depth, crops.flip, generator)

    def room(self, record: Record) -> tuple[Tensor, Tensor]:
        """Image (3, h, w) and depth (h, w) at the protocol's size."""
        assert record.depth is not None
        size = self.crops.size
        image = record.image
        if tuple(image.shape[-2:]) != size:
            pixels = F.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0]
            image = pixels.round().clamp(0, 255).to(torch.uint8)
        return image, nearest(record.depth, *size)

    def finish(self, output: Tensor) -> Tensor:
        """Logits of bins (b, S, n) to the expected depth (b, S, 1) in metres."""
        weights = F.relu(output) + self.protocol.floor
        depths = torch.linspace(
            self.protocol.least, self.most, self.outputs, device=output.device, dtype=output.dtype
        )
        return (weights * depths).sum(dim=-1, keepdim=True) / weights.sum(dim=-1, keepdim=True)

    def loss(self, maps: Tensor, truth: Tensor, step: int) -> Tensor:
        """SigLoss over the pixels whose depth is known and not above `most`."""
        p = self.protocol
        known = (truth > 0) & (truth <= self.most)
        predicted = maps[:, 0][known]
        gap = (predicted + p.sig_epsilon).log() - (truth[known] + p.sig_epsilon).log()
        squared = p.sig_mean_weight * gap.mean().square()
        if step >= p.sig_warmup:
            squared = squared + gap.var()
        return squared.clamp(min=1e-12).sqrt()

    def measure(self, probe: MapProbe, record: Record) -> Array:
        """Sums of errors over Eigen's crop of a room."""
        image, truth = self.room(record)
        maps = probe(torch.stack([image, image.flip(-1)]))[:, 0]
        predicted = ((maps[0] + maps[1].flip(-1)) / 2).clamp(self.protocol.least, self.most)
        top, bottom, left, right = self.crops.scored
        scored = torch.zeros_like(truth)
        scored[top:bottom, left:right] = truth[top:bottom, left:right]
        scored = torch.where(scored <= self.most, scored, 0.0)[None].to(predicted.device)
        return depth_errors(predicted[None], scored, least=self.protocol.least)


def rotate(image: Tensor, depth: Tensor, degrees: float) -> tuple[Tensor, Tensor]:
    """Image (3, H, W) and depth (H, W) rotated about the centre; new pixels are 0, unknown."""
    height, width = depth.shape
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    # `affine_grid` works in a unit square: rotating a rectangle needs its aspect ratio.
    matrix = torch.tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]])
    grid = F.affine_grid(matrix[None], [1, 1, height, width], align_corners=False)
    rotated = F.grid_sample(image[None].float(), grid, mode="bilinear", align_corners=False)[0]
    moved = F.grid_sample(depth[None, None], grid, mode="nearest", align_corners=False)[0, 0]
    return rotated.round().clamp(0, 255).to(torch.uint8), moved
