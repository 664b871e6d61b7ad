"""Linear probes of classes at every pixel: mIoU, pixel and class accuracy.

Section 4, "Supervised downstream probes"; Tables 2, 10 and 11.
"""

from __future__ import annotations

import math
from dataclasses import asdict

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor

from strop.analysis.alignment import interpreted, probe_weighted
from strop.analysis.findings import Findings
from strop.analysis.frame import Analysis
from strop.analysis.probes.crops import (
    MapProbe,
    flip,
    probe_crops,
    random_below,
    random_share,
    scale_short_side,
    slide,
)
from strop.analysis.probes.probe import (
    LengthOptions,
    check_splits,
    chunk_size,
    probe_maps,
    required,
    upsample,
)
from strop.analysis.probes.protocol import Crops, Segmentation, find_protocol
from strop.analysis.probes.scores import SEGMENTATION, count_pixels, segmentation_scores
from strop.analysis.subject import Subject
from strop.data.decode import nearest
from strop.data.record import VOID, Record
from strop.statistics import Array


def run(subject: Subject, options: LengthOptions) -> Findings:
    """Probe every representation.

    Also `r2_probe`: R² of the interpreted field, projected onto the weights of the probe of the
    teacher's field. These weights (C, d_enc) are written to `segmentation.safetensors`.
    """
    settings = find_protocol(options.protocol).segmentation
    shared = {"class_names": list(subject.classes), "hyperparameters": asdict(settings)}
    if settings.crops is not None:
        task = CroppedSegmentation(len(subject.classes), settings, settings.crops)
        return Findings(numbers={**probe_crops(subject, task, options.seed), **shared})
    cached = SegmentationTask(
        required(subject.fitted_on().records.semantic),
        required(subject.records.semantic),
        len(subject.classes),
        subject.fields.shape[1],
        settings,
    )
    numbers, figures, probes = probe_maps(subject, cached, options)
    weights = probes["teacher"].readout.weights().cpu()
    pairs = interpreted(subject.tokenizer, subject.program, subject.fields)
    return Findings(
        values=probe_weighted(pairs, weights),
        numbers={**numbers, **shared},
        figures=figures,
        files={"segmentation.safetensors": save({"weights": weights.contiguous()})},
    )


ANALYSIS = Analysis(
    run=run,
    options=LengthOptions,
    needs=("semantic",),
    fits=True,
    check=lambda subject, options: check_splits(subject, options.protocol, "classes"),
)


class SegmentationTask:
    """Class ids (N, H, H) uint8 of both sets, predicted on a grid of S locations."""

    def __init__(
        self, train: Tensor, truth: Tensor, classes: int, locations: int, protocol: Segmentation
    ) -> None:
        self.outputs, self.locations = classes, locations
        self.schedule, self.head = protocol.schedule, protocol.head
        self.images, self.chunk = len(train), chunk_size(classes, truth)
        self.shares = class_shares(train, classes, locations)
        self.weights = class_weights(self.shares, protocol.balance)
        self.truth = truth
        self.statistics, self.scores = SEGMENTATION, segmentation_scores

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


class CroppedSegmentation:
    """Square crops of randomly scaled images to train on, sliding windows to score."""

    def __init__(self, classes: int, protocol: Segmentation, crops: Crops) -> None:
        self.outputs, self.crops, self.scores = classes, crops, segmentation_scores
        self.schedule, self.head = protocol.schedule, protocol.head

    def draw(self, record: Record, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A random scale, crop and flip; where the crop exceeds the image it is black and void."""
        assert record.semantic is not None
        crops = self.crops
        low, high = crops.ratios
        factor = low + (high - low) * random_share(generator)
        image = scale_short_side(record.image, int(crops.short_side * factor))
        mask = nearest(record.semantic, *image.shape[-2:])
        missing = [max(0, crops.crop - side) for side in image.shape[-2:]]
        pad = (0, missing[1], 0, missing[0])
        image, mask = F.pad(image, pad), F.pad(mask, pad, value=VOID)
        top, left = (random_below(side - crops.crop + 1, generator) for side in mask.shape)
        image = image[:, top : top + crops.crop, left : left + crops.crop]
        mask = mask[top : top + crops.crop, left : left + crops.crop]
        return flip(image, mask, crops.flip, generator)

    def finish(self, output: Tensor) -> Tensor:
        """The logits, unchanged."""
        return output

    def loss(self, maps: Tensor, truth: Tensor, step: int) -> Tensor:
        """Cross-entropy over the labelled pixels."""
        return F.cross_entropy(maps, truth.long(), ignore_index=VOID)

    def measure(self, probe: MapProbe, record: Record) -> Array:
        """Pixel counts of an image at the size of its mask."""
        assert record.semantic is not None
        image = scale_short_side(record.image, self.crops.short_side)
        logits = slide(probe, image[None], self.crops.crop, self.crops.stride)
        size = tuple(record.semantic.shape)
        logits = F.interpolate(logits, size, mode="bilinear", align_corners=False)
        truth = record.semantic[None].to(logits.device)
        return count_pixels(logits.argmax(dim=1), truth, self.outputs)
