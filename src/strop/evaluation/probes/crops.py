"""DINOv3's evaluation: crops at full size, features computed anew in each step, windows to score.

The teacher sees crops as they are. A model of a fixed size sees each crop squashed to that size,
and its output is upsampled to the crop: its field stays as coarse as its programs make it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.data.decode import nearest
from strop.data.record import VOID, Dataset, Record
from strop.evaluation.context import Context
from strop.evaluation.probes import protocol as protocols
from strop.evaluation.probes.checks import check_records_apart
from strop.evaluation.probes.fitting import fit
from strop.evaluation.probes.heads import Representation, Tokens, probe_maker
from strop.evaluation.probes.metrics import (
    count_pixels,
    depth_errors,
    depth_scores,
    joined,
    segmentation_scores,
)
from strop.evaluation.probes.protocol import Crops, DepthCrops, Head, Schedule
from strop.evaluation.probes.representations import NAMES, SEQUENCES
from strop.evaluation.probes.tasks import upsample
from strop.images import fit_square
from strop.model.interpreter import prefix_mask
from strop.model.length_head import whole_lengths
from strop.model.teacher import PIXELS_PER_LOCATION
from strop.model.tokenizer import Tokenizer

_THREADS = 8  # that decode images

Tell = Callable[[Tensor], Tensor]
"""A trained probe: images (b, 3, H, W) uint8 to maps (b, C, H, W)."""


class CropTask(Protocol):
    """What is asked about crops: see `strop.evaluation.probes.tasks.Task`."""

    outputs: int
    schedule: Schedule
    head: Head

    def draw(self, record: Record, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A random crop of a record: image (3, h, w) uint8 and truth (h, w)."""

    def finish(self, output: Tensor) -> Tensor:
        """What is upsampled: a probe's output (b, S, C), or what is made of it."""

    def loss(self, maps: Tensor, truth: Tensor, step: int) -> Tensor:
        """Mean cost of maps (b, C, h, w) for truth (b, h, w)."""

    def measure(self, tell: Tell, record: Record) -> Any:
        """Sums of one whole image."""

    def scores(self, parts: list[Any], seed: int) -> dict[str, Any]:
        """The figures."""


def probe_crops(context: Context, task: CropTask) -> dict[str, Any]:
    """Train and score a probe for every representation, from images."""
    assert context.train_data is not None
    check_records_apart(context.train_data, context.data)
    scores = {}
    for name in NAMES:
        eye = Eye(context.tokenizer, name, context.seed)
        scores[name] = _probe(context, task, eye, context.train_data)
    return {
        "train_images": len(context.train_data),
        "images": len(context.data),
        "representations": scores,
    }


def _probe(context: Context, task: CropTask, eye: Eye, train: Dataset) -> dict[str, Any]:
    device = context.tokenizer.device
    told = context.progress(f"probe on {eye.name}")

    def maps(probe: nn.Module, images: Tensor) -> Tensor:
        images = images.to(device)
        output = task.finish(probe(eye(images)))
        return upsample(output, images.shape[-2:], eye.grid(images))

    with ThreadPoolExecutor(_THREADS) as threads:

        def loss(probe: nn.Module, rows: Tensor, step: int) -> Tensor:
            def crop(row: int) -> tuple[Tensor, Tensor]:
                # One stream of chance per step and image, so that threads cannot mix them up.
                seed = (context.seed * 1_000_003 + step) * 1_000_003 + row
                return task.draw(train[row], torch.Generator().manual_seed(seed))

            images, truth = zip(*threads.map(crop, rows.tolist()), strict=True)
            told(step + 1, task.schedule.steps)
            return task.loss(maps(probe, torch.stack(images)), torch.stack(truth).to(device), step)

        sample = eye(torch.zeros(1, 3, 512, 512, dtype=torch.uint8, device=device))
        locations = context.tokenizer.config.grid**2
        make = probe_maker(
            sample, task.outputs, task.head, locations=locations, sequence=eye.name in SEQUENCES
        )
        fitted = fit(make, loss, len(train), task.schedule, seed=context.seed, device=device)
        probe = fitted.probe

    with torch.no_grad():
        parts = []
        for row in range(len(context.data)):
            parts.append(task.measure(lambda images: maps(probe, images), context.data[row]))
            told(row + 1, len(context.data))
    return {**task.scores(parts, context.seed), "weight_decay": fitted.weight_decay}


class Eye:
    """One representation of a model, straight from images."""

    def __init__(self, tokenizer: Tokenizer, name: str, seed: int) -> None:
        self.tokenizer, self.name, self.seed = tokenizer, name, seed

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Rows and columns of what a probe tells about images (b, 3, H, W)."""
        if self.name == "teacher":
            height, width = images.shape[-2:]
            return height // PIXELS_PER_LOCATION, width // PIXELS_PER_LOCATION
        return (self.tokenizer.config.grid,) * 2

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Representation:
        """uint8 (b, 3, H, W) on the model's device to a field or tokens."""
        tokenizer, config = self.tokenizer, self.tokenizer.config
        if self.name == "teacher":
            return tokenizer._scaled_field(images) / config.teacher.scale
        scaled = tokenizer._scaled_field(fit_square(images, config.image_size, "squash"))
        with tokenizer._autocast():
            quantized = tokenizer.quantizer(tokenizer.generator(scaled))
            lengths = whole_lengths(tokenizer.length_head(scaled), config.max_length)
            active = prefix_mask(lengths, config.max_length)
            if self.name == "latent":
                field = tokenizer.interpreter(quantized.z_q, active).float()
                return field / config.teacher.scale
        tokens = Tokens(quantized.z if self.name == "raw" else quantized.z_q, active)
        return tokens.shuffled(self.seed) if self.name == "program-shuffled" else tokens


# Segmentation.


class CroppedSegmentation:
    """Square crops of images scaled at random; windows over the scaled image to score."""

    def __init__(self, classes: int, protocol: protocols.Segmentation, crops: Crops) -> None:
        self.outputs, self.crops = classes, crops
        self.schedule, self.head = protocol.schedule, protocol.head

    def draw(self, record: Record, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Scale, crop and perhaps mirror; what the image does not fill is black, and void."""
        assert record.semantic is not None
        crops = self.crops
        low, high = crops.ratios
        factor = low + (high - low) * _uniform(generator)
        image = scale_short_side(record.image, int(crops.short_side * factor))
        mask = nearest(record.semantic, *image.shape[-2:])
        missing = [max(0, crops.crop - side) for side in image.shape[-2:]]
        pad = (0, missing[1], 0, missing[0])
        image, mask = F.pad(image, pad), F.pad(mask, pad, value=VOID)
        top, left = (_below(side - crops.crop + 1, generator) for side in mask.shape)
        image = image[:, top : top + crops.crop, left : left + crops.crop]
        mask = mask[top : top + crops.crop, left : left + crops.crop]
        return _flipped(image, mask, crops.flip, generator)

    def finish(self, output: Tensor) -> Tensor:
        """Logits as they are."""
        return output

    def loss(self, maps: Tensor, truth: Tensor, step: int) -> Tensor:
        """Cross-entropy over the labelled pixels."""
        return F.cross_entropy(maps, truth.long(), ignore_index=VOID)

    def measure(self, tell: Tell, record: Record) -> Any:
        """Pixel counts of an image at its own size."""
        assert record.semantic is not None
        image = scale_short_side(record.image, self.crops.short_side)
        logits = slide(tell, image[None], self.crops.crop, self.crops.stride)
        size = tuple(record.semantic.shape)
        whole = F.interpolate(logits, size, mode="bilinear", align_corners=False)
        truth = record.semantic[None].to(whole.device)
        return count_pixels(whole.argmax(dim=1), truth, self.outputs)

    def scores(self, parts: list[Any], seed: int) -> dict[str, Any]:
        """mIoU, pixel and class accuracy."""
        return segmentation_scores(joined(parts), seed=seed)


def scale_short_side(image: Tensor, side: int) -> Tensor:
    """uint8 (3, H, W) with its short side at `side`, antialiased."""
    height, width = image.shape[-2:]
    factor = side / min(height, width)
    size = (max(side, round(height * factor)), max(side, round(width * factor)))
    pixels = F.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0]
    return pixels.round().clamp(0, 255).to(torch.uint8)


def slide(tell: Tell, images: Tensor, side: int, stride: int) -> Tensor:
    """Mean of the maps of all windows of `side`: (b, 3, H, W) to (b, C, H, W)."""
    height, width = images.shape[-2:]
    total = count = None
    for top in window_starts(height, side, stride):
        for left in window_starts(width, side, stride):
            where = (..., slice(top, top + side), slice(left, left + side))
            maps = tell(images[where])
            if total is None or count is None:
                total = maps.new_zeros(*maps.shape[:2], height, width)
                count = maps.new_zeros(height, width)
            total[where] += maps
            count[where] += 1
    assert total is not None
    assert count is not None
    return total / count


def window_starts(length: int, side: int, stride: int) -> list[int]:
    """Where windows of `side` begin so that they cover `length`; the last ends with it."""
    steps = max(0, math.ceil((length - side) / stride))
    return [min(step * stride, length - side) for step in range(steps + 1)]


# Depth.


class CroppedDepth:
    """Oblong crops of rooms; whole rooms, also mirrored, to score."""

    def __init__(self, protocol: protocols.Depth, crops: DepthCrops) -> None:
        assert protocol.bins is not None
        assert protocol.most is not None
        self.outputs, self.protocol, self.crops = protocol.bins, protocol, crops
        self.most = protocol.most
        self.schedule, self.head = protocol.schedule, protocol.head

    def draw(self, record: Record, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Cut the frame off, turn, crop, perhaps mirror, and perhaps change the brightness."""
        crops = self.crops
        image, depth = self.room(record)
        top, bottom, left, right = crops.border
        image, depth = image[:, top:bottom, left:right], depth[top:bottom, left:right]
        if _uniform(generator) < 0.5:
            angle = crops.rotation * (2 * _uniform(generator) - 1)
            image, depth = rotate(image, depth, angle)
        high, wide = crops.crop
        top = _below(depth.shape[0] - high + 1, generator)
        left = _below(depth.shape[1] - wide + 1, generator)
        image = image[:, top : top + high, left : left + wide]
        depth = depth[top : top + high, left : left + wide]
        if _uniform(generator) < 0.5:
            low, up = crops.brightness
            factor = low + (up - low) * _uniform(generator)
            image = (image.float() * factor).clamp(0, 255).to(torch.uint8)
        return _flipped(image, depth, crops.flip, generator)

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
        """Bins (b, S, n) to the metres (b, S, 1) expected: rectified, raised and normalised."""
        weights = F.relu(output) + self.protocol.floor
        depths = torch.linspace(
            self.protocol.least, self.most, self.outputs, device=output.device, dtype=output.dtype
        )
        return (weights * depths).sum(dim=-1, keepdim=True) / weights.sum(dim=-1, keepdim=True)

    def loss(self, maps: Tensor, truth: Tensor, step: int) -> Tensor:
        """SigLoss over the pixels whose depth is known and within reach."""
        p = self.protocol
        known = (truth > 0) & (truth <= self.most)
        told = maps[:, 0][known]
        gap = (told + p.sig_epsilon).log() - (truth[known] + p.sig_epsilon).log()
        squared = p.sig_mean_weight * gap.mean().square()
        if step >= p.sig_warmup:
            squared = squared + gap.var()
        return squared.clamp(min=1e-12).sqrt()

    def measure(self, tell: Tell, record: Record) -> Any:
        """Sums of errors over Eigen's part of a room."""
        image, truth = self.room(record)
        maps = tell(torch.stack([image, image.flip(-1)]))[:, 0]
        told = ((maps[0] + maps[1].flip(-1)) / 2).clamp(self.protocol.least, self.most)
        top, bottom, left, right = self.crops.scored
        scored = torch.zeros_like(truth)
        scored[top:bottom, left:right] = truth[top:bottom, left:right]
        scored = torch.where(scored <= self.most, scored, 0.0)[None].to(told.device)
        return depth_errors(told[None], scored, least=self.protocol.least)

    def scores(self, parts: list[Any], seed: int) -> dict[str, Any]:
        """RMSE, AbsRel, the deltas."""
        return depth_scores(joined(parts), average=self.protocol.average, seed=seed)


def rotate(image: Tensor, depth: Tensor, degrees: float) -> tuple[Tensor, Tensor]:
    """Image (3, H, W) and depth (H, W) turned about their centre; what comes in is 0, unknown."""
    height, width = depth.shape
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    # In the unit square of `affine_grid`, turning an oblong needs its aspect.
    matrix = torch.tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]])
    grid = F.affine_grid(matrix[None], [1, 1, height, width], align_corners=False)
    turned = F.grid_sample(image[None].float(), grid, mode="bilinear", align_corners=False)[0]
    moved = F.grid_sample(depth[None, None], grid, mode="nearest", align_corners=False)[0, 0]
    return turned.round().clamp(0, 255).to(torch.uint8), moved


def _flipped(
    image: Tensor, truth: Tensor, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    if _uniform(generator) < share:
        return image.flip(-1), truth.flip(-1)
    return image, truth


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))


def _below(limit: int, generator: torch.Generator) -> int:
    return int(torch.randint(0, limit, (), generator=generator))
