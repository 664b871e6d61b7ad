"""DINOv3's evaluation: crops at full size, features computed in each step, windows to score.

The teacher sees crops as they are. A model of a fixed size sees each crop squashed to that size,
and its output is upsampled to the crop: its field stays as coarse as its programs make it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from strop.analysis.probes.fitting import fit_probe
from strop.analysis.probes.heads import Probe, Representation, Tokens, make_probe
from strop.analysis.probes.probe import upsample
from strop.analysis.probes.protocol import Head, Schedule
from strop.analysis.probes.representations import FLOORS, NAMES, SEQUENCES, floors
from strop.analysis.probes.scores import Scores
from strop.analysis.subject import Subject, check_disjoint, program_of
from strop.data.record import Dataset, Record
from strop.images import fit_square
from strop.model.interpreter import prefix_mask
from strop.model.teacher import PIXELS_PER_LOCATION
from strop.model.tokenizer import Tokenizer
from strop.statistics import Array

_THREADS = 8  # that decode images

MapProbe = Callable[[Tensor], Tensor]
"""A trained probe: images (b, 3, H, W) uint8 to maps (b, C, H, W)."""


class CropTask(Protocol):
    """A task on crops: see `strop.analysis.probes.probe.Task`."""

    outputs: int
    schedule: Schedule
    head: Head
    scores: Scores

    def draw(self, record: Record, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A random crop of a record: image (3, h, w) uint8 and truth (h, w)."""

    def finish(self, output: Tensor) -> Tensor:
        """A probe's output (b, S, C) to what is upsampled."""

    def loss(self, maps: Tensor, truth: Tensor, step: int) -> Tensor:
        """Mean loss of maps (b, C, h, w) for truth (b, h, w)."""

    def measure(self, probe: MapProbe, record: Record) -> Array:
        """Sums of one whole image, (1, ...)."""


def probe_crops(subject: Subject, task: CropTask, seed: int) -> dict[str, Any]:
    """Train and score a probe for every representation, from images."""
    assert subject.train is not None  # checked through `fits`
    train, scored = subject.train.dataset, subject.dataset
    check_disjoint(_named_images(train), _named_images(scored))
    return {
        "train_images": len(train),
        "images": len(scored),
        "representations": {name: _probe(subject, task, name, train, seed) for name in NAMES},
    }


def _named_images(dataset: Dataset) -> Iterator[tuple[Tensor, str]]:
    for row in range(len(dataset)):
        record = dataset[row]
        yield record.image, record.name


def _probe(
    subject: Subject, task: CropTask, name: str, train: Dataset, seed: int
) -> dict[str, Any]:
    tokenizer, scored = subject.tokenizer, subject.dataset
    device, progress = tokenizer.device, partial(subject.progress, f"probe of {name}")

    def maps(probe: Probe, images: Tensor) -> Tensor:
        representation = represent(tokenizer, name, images.to(device), seed)
        output = task.finish(probe(representation))
        return upsample(output, images.shape[-2:], output_grid(tokenizer, name, images))

    with ThreadPoolExecutor(_THREADS) as threads:

        def loss(probe: Probe, rows: Tensor, step: int) -> Tensor:
            def crop(row: int) -> tuple[Tensor, Tensor]:
                # One random stream per step and image: the order of threads does not matter.
                stream = (seed * 1_000_003 + step) * 1_000_003 + row
                return task.draw(train[row], torch.Generator().manual_seed(stream))

            images, truth = zip(*threads.map(crop, rows.tolist()), strict=True)
            progress(step + 1, task.schedule.steps)
            return task.loss(maps(probe, torch.stack(images)), torch.stack(truth).to(device), step)

        blank = torch.zeros(1, 3, 512, 512, dtype=torch.uint8, device=device)
        make = partial(
            make_probe,
            represent(tokenizer, name, blank, seed),
            task.outputs,
            task.head,
            locations=tokenizer.config.grid**2,
            sequence=name in SEQUENCES,
        )
        fitted = fit_probe(make, loss, len(train), task.schedule, seed=seed, device=device)

    parts = []
    with torch.no_grad():
        for row in range(len(scored)):
            parts.append(task.measure(partial(maps, fitted), scored[row]))
            progress(row + 1, len(scored))
    return {**task.scores(np.concatenate(parts), seed=seed), "weight_decay": fitted.weight_decay}


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


def scale_short_side(image: Tensor, side: int) -> Tensor:
    """uint8 (3, H, W), scaled to a short side of `side` with antialiasing."""
    height, width = image.shape[-2:]
    factor = side / min(height, width)
    size = (max(side, round(height * factor)), max(side, round(width * factor)))
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
