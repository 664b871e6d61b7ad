"""DINOv3's published linear evaluation of segmentation (ADE20K) and depth (NYUv2).

    python research/teacher_probes/teacher_probes.py MODEL segmentation --out FOLDER \\
        --data "ade20k:/data/ade20k?split=validation" --train "ade20k:/data/ade20k?split=train"

Probes train on random crops at full size, with features computed in every step, and are scored in
windows. The teacher sees crops as they are. A model of a fixed size sees each crop squashed to that
size, and its output is upsampled to the crop: its field stays as coarse as its programs make it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.analysis.findings import Findings, write_findings
from strop.analysis.frame import Analysis, check_subject, identities
from strop.analysis.probes.fitting import CLIP, batches_of
from strop.analysis.probes.heads import Probe, Representation, Tokens, make_probe
from strop.analysis.probes.probe import check_classes
from strop.analysis.probes.representations import FLOORS, NAMES, SEQUENCES, floors
from strop.analysis.probes.scores import (
    Statistics,
    count_pixels,
    depth_errors,
    segmentation_scores,
    with_intervals,
)
from strop.analysis.subject import Subject, check_disjoint, program_of
from strop.cli.console import progress_bars, say
from strop.data.decode import nearest
from strop.data.record import VOID, Dataset, Record
from strop.data.spec import open_dataset
from strop.images import fit_square
from strop.model.checkpoint import load
from strop.model.interpreter import prefix_mask
from strop.model.teacher import PIXELS_PER_LOCATION
from strop.model.tokenizer import Tokenizer
from strop.random import seeded
from strop.statistics import Array, Statistic
from strop.training.fit import fit

_THREADS = 8  # that decode images

MapProbe = Callable[[Tensor], Tensor]
"""A trained probe: images (b, 3, H, W) uint8 to maps (b, C, H, W)."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """AdamW with a linear warm-up over `warmup` steps and a cosine decay to 0."""

    steps: int
    batch: int = 16  # 2 on each of 8 GPUs
    learning_rate: float
    weight_decay: float
    warmup: int
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True, kw_only=True)
class CroppedSegmentation:
    """Square crops of randomly scaled images to train on, sliding windows to score.

    outputs     classes
    dropout     of whole channels, before the batch norm of a probe
    short_side  size that images are scaled to; in training times a factor from `ratios`
    crop        side of the square
    stride      stride of the windows
    flip        probability of a horizontal flip
    """

    outputs: int
    schedule: Schedule = Schedule(steps=40_000, learning_rate=1e-3, weight_decay=1e-3, warmup=1500)
    dropout: float = 0.1
    short_side: int = 512
    ratios: tuple[float, float] = (0.5, 2.0)
    crop: int = 512
    stride: int = 341
    flip: float = 0.5

    def draw(self, record: Record, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A random scale, crop and flip of a record: image (3, h, w) and mask (h, w).

        Where the crop exceeds the image it is black and void.
        """
        assert record.semantic is not None
        low, high = self.ratios
        factor = low + (high - low) * random_share(generator)
        image = scale_short_side(record.image, int(self.short_side * factor))
        mask = nearest(record.semantic, *image.shape[-2:])
        missing = [max(0, self.crop - side) for side in image.shape[-2:]]
        pad = (0, missing[1], 0, missing[0])
        image, mask = F.pad(image, pad), F.pad(mask, pad, value=VOID)
        top, left = (random_below(side - self.crop + 1, generator) for side in mask.shape)
        image = image[:, top : top + self.crop, left : left + self.crop]
        mask = mask[top : top + self.crop, left : left + self.crop]
        return flip(image, mask, self.flip, generator)

    def finish(self, output: Tensor) -> Tensor:
        """A probe's output (b, S, C) to what is upsampled: the logits, unchanged."""
        return output

    def loss(self, maps: Tensor, truth: Tensor, step: int) -> Tensor:
        """Cross-entropy over the labelled pixels of maps (b, C, h, w) for truth (b, h, w)."""
        return F.cross_entropy(maps, truth.long(), ignore_index=VOID)

    def measure(self, probe: MapProbe, record: Record) -> Array:
        """Pixel counts of an image at the size of its mask, (1, ...)."""
        assert record.semantic is not None
        image = scale_short_side(record.image, self.short_side)
        logits = slide(probe, image[None], self.crop, self.stride)
        size = tuple(record.semantic.shape)
        logits = F.interpolate(logits, size, mode="bilinear", align_corners=False)
        truth = record.semantic[None].to(logits.device)
        return count_pixels(logits.argmax(dim=1), truth, self.outputs)

    def scores(self, sums: Array, seed: int) -> dict[str, Any]:
        """All metrics of the counts of all images, with intervals."""
        return segmentation_scores(sums, seed=seed)


@dataclass(frozen=True, kw_only=True)
class CroppedDepth:
    """Rectangular crops of rooms to train on; whole rooms, also mirrored, to score.

    A probe gives weights of depths from `least` to `most`, evenly spaced, whose mean is the depth.

    outputs     depths
    size        height and width that images are scaled to
    border      rows and columns used in training; the rest is the sensor's white frame
    crop        height and width of a crop
    flip        probability of a horizontal flip
    brightness  range of the factor on the pixels, drawn for half of the crops
    rotation    largest rotation in degrees, for half of the crops
    scored      rows and columns that are scored: Eigen's crop
    floor       added to the rectified logits before they are normalised
    sig_*       SigLoss: `sqrt(var(g) + mean_weight * mean(g)²)`, g the difference of logarithms of
                depth + epsilon; without the variance in the first `sig_warmup` steps
    """

    schedule: Schedule = Schedule(
        steps=38_400, learning_rate=3e-4, weight_decay=1e-4, warmup=12_800, betas=(0.9, 0.99)
    )
    outputs: int = 256
    dropout: float = 0.0
    size: tuple[int, int] = (480, 640)
    border: tuple[int, int, int, int] = (45, 472, 43, 608)
    crop: tuple[int, int] = (416, 544)
    flip: float = 0.5
    brightness: tuple[float, float] = (0.75, 1.25)
    rotation: float = 2.5
    scored: tuple[int, int, int, int] = (45, 471, 41, 601)
    least: float = 1e-3
    most: float = 10.0
    floor: float = 0.1
    sig_mean_weight: float = 0.15
    sig_epsilon: float = 1e-3
    sig_warmup: int = 100

    def draw(self, record: Record, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Remove the frame, then rotate, crop, change the brightness and flip at random."""
        image, depth = self.room(record)
        top, bottom, left, right = self.border
        image, depth = image[:, top:bottom, left:right], depth[top:bottom, left:right]
        if random_share(generator) < 0.5:
            angle = self.rotation * (2 * random_share(generator) - 1)
            image, depth = rotate(image, depth, angle)
        high, wide = self.crop
        top = random_below(depth.shape[0] - high + 1, generator)
        left = random_below(depth.shape[1] - wide + 1, generator)
        image = image[:, top : top + high, left : left + wide]
        depth = depth[top : top + high, left : left + wide]
        if random_share(generator) < 0.5:
            low, up = self.brightness
            factor = low + (up - low) * random_share(generator)
            image = (image.float() * factor).clamp(0, 255).to(torch.uint8)
        return flip(image, depth, self.flip, generator)

    def room(self, record: Record) -> tuple[Tensor, Tensor]:
        """Image (3, h, w) and depth (h, w) at the protocol's size."""
        assert record.depth is not None
        image = record.image
        if tuple(image.shape[-2:]) != self.size:
            image = resized(image, self.size)
        return image, nearest(record.depth, *self.size)

    def finish(self, output: Tensor) -> Tensor:
        """Logits of depths (b, S, n) to the expected depth (b, S, 1) in metres."""
        weights = F.relu(output) + self.floor
        depths = torch.linspace(
            self.least, self.most, self.outputs, device=output.device, dtype=output.dtype
        )
        return (weights * depths).sum(dim=-1, keepdim=True) / weights.sum(dim=-1, keepdim=True)

    def loss(self, maps: Tensor, truth: Tensor, step: int) -> Tensor:
        """SigLoss over the pixels whose depth is known and not above `most`."""
        known = (truth > 0) & (truth <= self.most)
        predicted = maps[:, 0][known]
        gap = (predicted + self.sig_epsilon).log() - (truth[known] + self.sig_epsilon).log()
        squared = self.sig_mean_weight * gap.mean().square()
        if step >= self.sig_warmup:
            squared = squared + gap.var()
        return squared.clamp(min=1e-12).sqrt()

    def measure(self, probe: MapProbe, record: Record) -> Array:
        """Sums of errors over Eigen's crop of a room, (1, ...)."""
        image, truth = self.room(record)
        maps = probe(torch.stack([image, image.flip(-1)]))[:, 0]
        predicted = ((maps[0] + maps[1].flip(-1)) / 2).clamp(self.least, self.most)
        top, bottom, left, right = self.scored
        scored = torch.zeros_like(truth)
        scored[top:bottom, left:right] = truth[top:bottom, left:right]
        scored = torch.where(scored <= self.most, scored, 0.0)[None].to(predicted.device)
        return depth_errors(predicted[None], scored, least=self.least)

    def scores(self, sums: Array, seed: int) -> dict[str, Any]:
        """All metrics per image, averaged over the images with known depth."""
        return {**with_intervals(DEPTH, sums, seed=seed), "images": len(sums)}


def _over_images(column: int, *, root: bool = False) -> Statistic:
    """The mean over images of a sum of `depth_errors` over the pixels of each."""

    def statistic(sums: Array) -> float:
        each = sums[:, column] / sums[:, 0]
        return float(np.mean(np.sqrt(each) if root else each))

    return statistic


DEPTH: Statistics = {
    "depth_rmse": (_over_images(1, root=True), 1),
    "abs_rel": (_over_images(2), 100),
    "delta1": (_over_images(3), 100),
    "delta2": (_over_images(4), 100),
    "delta3": (_over_images(5), 100),
}

CropTask = CroppedSegmentation | CroppedDepth


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the probes.

    seed  of probes, crops, intervals and the order of shuffled programs
    """

    seed: int = 0


def run(make: Callable[[Subject], CropTask], subject: Subject, options: Options) -> Findings:
    """Train and score a probe for every representation, from images."""
    assert subject.train is not None  # checked through `fits`
    task = make(subject)
    train, scored = subject.train.dataset, subject.dataset
    check_disjoint(named_images(train), named_images(scored))
    representations = {
        name: probe_crops(subject, task, name, train, options.seed) for name in NAMES
    }
    numbers = {"train_images": len(train), "images": len(scored), "hyperparameters": asdict(task)}
    return Findings(numbers={**numbers, "representations": representations})


def check(names: str, subject: Subject, options: Options) -> None:
    """Refuse splits with different classes (`names` is their attribute), and few images."""
    assert subject.train is not None
    check_classes(subject.train.dataset, subject.dataset, names)


SEGMENTATION = Analysis(
    name="crops-segmentation",
    run=partial(run, lambda subject: CroppedSegmentation(outputs=len(subject.classes))),
    options=Options,
    needs=("semantic",),
    fits=True,
    check=partial(check, "classes"),
)
DEPTHS = Analysis(
    name="crops-depth",
    run=partial(run, lambda subject: CroppedDepth()),
    options=Options,
    needs=("depth",),
    fits=True,
    check=partial(check, ""),
)
ANALYSES = {"segmentation": SEGMENTATION, "depth": DEPTHS}


def named_images(dataset: Dataset) -> Iterator[tuple[Tensor, str]]:
    """Each image (3, H, W) uint8 with its name."""
    for row in range(len(dataset)):
        record = dataset[row]
        yield record.image, record.name


class ChannelDropout(nn.Module):
    """Dropout of whole channels of an image, as in Dropout2d: (B, S, d) to itself."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, d) to itself."""
        return x * F.dropout(x.new_ones(len(x), 1, x.shape[-1]), self.share, self.training)


def probe_crops(
    subject: Subject, task: CropTask, name: str, train: Dataset, seed: int
) -> dict[str, Any]:
    """Train and score a probe of the representation `name`."""
    tokenizer, scored = subject.tokenizer, subject.dataset
    device, progress = tokenizer.device, partial(subject.progress, f"probe of {name}")
    schedule = task.schedule

    def maps(images: Tensor) -> Tensor:
        representation = represent(tokenizer, name, images.to(device), seed)
        output = task.finish(probe(representation))
        return upsample(output, output_grid(tokenizer, name, images), images.shape[-2:])

    def loss(step: int) -> Tensor:
        def crop(row: int) -> tuple[Tensor, Tensor]:
            # One random stream per step and image: the order of threads does not matter.
            stream = (seed * 1_000_003 + step) * 1_000_003 + row
            return task.draw(train[row], torch.Generator().manual_seed(stream))

        images, truth = zip(*threads.map(crop, next(batches).tolist()), strict=True)
        return task.loss(maps(torch.stack(images)), torch.stack(truth).to(device), step)

    with seeded(seed), ThreadPoolExecutor(_THREADS) as threads:
        blank = torch.zeros(1, 3, 512, 512, dtype=torch.uint8, device=device)
        probe = new_probe(tokenizer, task, represent(tokenizer, name, blank, seed), name)
        batches = batches_of(torch.arange(len(train)), schedule.batch, seed)
        fit(
            probe.groups(schedule.learning_rate),
            loss,
            steps=schedule.steps,
            learning_rate=schedule.learning_rate,
            weight_decay=schedule.weight_decay,
            betas=schedule.betas,
            warmup=schedule.warmup,
            clip=CLIP,
            progress=progress,
        )
    probe.eval()
    parts = []
    with torch.no_grad():
        for row in range(len(scored)):
            parts.append(task.measure(maps, scored[row]))
            progress(row + 1, len(scored))
    return task.scores(np.concatenate(parts), seed)


def new_probe(
    tokenizer: Tokenizer, task: CropTask, representation: Representation, name: str
) -> Probe:
    """A probe of the representation `name` with the task's dropout, in train mode."""
    probe = make_probe(
        representation,
        task.outputs,
        locations=tokenizer.config.grid**2,
        sequence=name in SEQUENCES,
    )
    if task.dropout:
        probe.readout = nn.Sequential(ChannelDropout(task.dropout), probe.readout)
    return probe.to(tokenizer.device).train()


def output_grid(tokenizer: Tokenizer, name: str, images: Tensor) -> tuple[int, int]:
    """Rows and columns of a probe's output for images (b, 3, H, W) in the representation `name`."""
    if name == "teacher":
        height, width = images.shape[-2:]
        return height // PIXELS_PER_LOCATION, width // PIXELS_PER_LOCATION
    return (tokenizer.config.grid,) * 2


@torch.no_grad()
def represent(tokenizer: Tokenizer, name: str, images: Tensor, seed: int) -> Representation:
    """The representation `name` of images (b, 3, H, W) uint8 on the model's device."""
    config = tokenizer.config
    if name in FLOORS:
        return floors(len(images), config.grid**2)[name].to(images.device)
    if name == "teacher":
        return tokenizer.teacher_field(images.to(tokenizer.device))
    encoding = tokenizer.analyse(fit_square(images, config.image_size, "squash"), batch=len(images))
    if name == "latent":
        return tokenizer.interpret(program_of(tokenizer, encoding))
    active = prefix_mask(encoding.lengths, config.max_length)
    tokens = Tokens(encoding.z if name == "raw" else encoding.z_q, active)
    return tokens.shuffled(seed) if name == "program-shuffled" else tokens


def upsample(output: Tensor, grid: tuple[int, int], size: torch.Size) -> Tensor:
    """Output (b, S, C) on a grid to (b, C, H, W), bilinearly."""
    maps = output.float().transpose(1, 2).unflatten(-1, grid)
    return F.interpolate(maps, tuple(size), mode="bilinear", align_corners=False)


def scale_short_side(image: Tensor, side: int) -> Tensor:
    """uint8 (3, H, W), scaled to a short side of `side` with antialiasing."""
    height, width = image.shape[-2:]
    factor = side / min(height, width)
    return resized(image, (max(side, round(height * factor)), max(side, round(width * factor))))


def resized(image: Tensor, size: tuple[int, int]) -> Tensor:
    """uint8 (3, H, W) to uint8 (3, *size), bilinearly with antialiasing."""
    pixels = F.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0]
    return pixels.round().clamp(0, 255).to(torch.uint8)


def slide(probe: MapProbe, images: Tensor, side: int, stride: int) -> Tensor:
    """The mean of the maps of all windows of size `side`: (b, 3, H, W) to (b, C, H, W)."""
    height, width = images.shape[-2:]
    total = count = None
    for top in window_starts(height, side, stride):
        for left in window_starts(width, side, stride):
            where = (..., slice(top, top + side), slice(left, left + side))
            maps = probe(images[where])
            if total is None or count is None:
                total = maps.new_zeros(*maps.shape[:2], height, width)
                count = maps.new_zeros(height, width)
            total[where] += maps
            count[where] += 1
    assert total is not None
    assert count is not None
    return total / count


def window_starts(length: int, side: int, stride: int) -> list[int]:
    """Starts of windows of size `side` that cover `length`; the last window ends with it."""
    steps = max(0, math.ceil((length - side) / stride))
    return [min(step * stride, length - side) for step in range(steps + 1)]


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


def flip(
    image: Tensor, truth: Tensor, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Image and truth, mirrored with probability `share`."""
    if random_share(generator) < share:
        return image.flip(-1), truth.flip(-1)
    return image, truth


def random_share(generator: torch.Generator) -> float:
    """A random number in [0, 1)."""
    return float(torch.rand((), generator=generator))


def random_below(limit: int, generator: torch.Generator) -> int:
    """A random integer in [0, limit)."""
    return int(torch.randint(0, limit, (), generator=generator))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="bundled name, folder or hub id")
    parser.add_argument("suite", choices=ANALYSES)
    parser.add_argument("--data", required=True, help="dataset to measure on")
    parser.add_argument("--train", required=True, help="dataset to train on")
    parser.add_argument("--out", type=Path, required=True, help="folder for JSON and Markdown")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    arguments = parser.parse_args()
    analysis, options = ANALYSES[arguments.suite], Options(seed=arguments.seed)
    tokenizer = load(arguments.model, device=arguments.device)
    with progress_bars() as bars:
        subject, train = (
            Subject(tokenizer=tokenizer, dataset=open_dataset(spec), data=spec, progress=bars)
            for spec in (arguments.data, arguments.train)
        )
        subject.train = train
        check_subject(analysis, subject, options)
        header = {
            "suite": analysis.name,
            "model": tokenizer.identity.codes,
            "data": arguments.data,
            "train": arguments.train,
            "identities": identities(subject, analysis, options),
        }
        findings = analysis.run(subject, options)
    write_findings(arguments.out, analysis.name, "evaluation", header, findings)
    say(f"Wrote {arguments.out / analysis.name}.json")


if __name__ == "__main__":
    main()
