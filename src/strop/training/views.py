"""Random views of images, made on the device a batch at a time."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.training import draws
from strop.training.preset import TrainingConfig

NUMBERS = 9
"""Random numbers per view."""

MIRROR = 4
"""Index of the random number that decides mirroring: below 0.5 is mirrored."""

_ASPECT = math.log(4 / 3)
_GAIN = 0.2


def random_views(images: Tensor, uniform: Tensor, *, smallest: float) -> Tensor:
    """A random crop of each image, resized, mirrored with probability 0.5, and colour-jittered.

    images    (B, 3, H, H) uint8
    uniform   (B, NUMBERS) random numbers in [0, 1)
    smallest  minimal share of the area in a crop

    Returns (B, 3, H, H) float32 from 0 to 255.
    """
    area, aspect, across, down, mirror, *colour = uniform.unbind(1)
    area = smallest + (1 - smallest) * area
    aspect = torch.exp((2 * aspect - 1) * _ASPECT / 2)
    wide, high = ((area.sqrt() * side).clamp(max=1) for side in (aspect, 1 / aspect))
    left, top = (2 * across - 1) * (1 - wide), (2 * down - 1) * (1 - high)
    zero = torch.zeros_like(wide)
    turned = torch.where(mirror < 0.5, -wide, wide)
    window = torch.stack([turned, zero, left, zero, high, top], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(window, list(images.shape), align_corners=False)
    cropped = F.grid_sample(
        images.float(), grid, mode="bicubic", padding_mode="reflection", align_corners=False
    )
    return _recoloured(cropped, torch.stack(colour, dim=1))


def _recoloured(images: Tensor, uniform: Tensor) -> Tensor:
    """Jitter brightness, contrast, red and blue by `uniform` (B, 4) in [0, 1)."""
    light, contrast, red, blue = (1 + _GAIN * (2 * uniform - 1)).unbind(1)
    gain = torch.stack([light * red.sqrt(), light, light * blue.sqrt()], dim=1)[..., None, None]
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return ((mean + (images - mean) * contrast[:, None, None, None]) * gain).clamp(0, 255)


def draw_versions(training: TrainingConfig, step: int) -> Tensor:
    """(B, 1 + NUMBERS): the version of each image, and the random numbers of its view."""
    version = draws.versions(training.seed, step, training.batch, training.versions)
    view = draws.uniform(training.seed, "view", step, training.batch, NUMBERS)
    return torch.cat([version[:, None], view], dim=1)


def version_images(images: Tensor, drawn: Tensor, training: TrainingConfig) -> Tensor:
    """uint8 images (B, 3, H, H) in the versions drawn by `draw_versions`."""
    version = drawn[:, 0, None, None, None]
    shown = torch.where(version == 1, images.flip(-1), images) if training.flip else images
    if training.views:
        views = view_images(images, drawn[:, 1:], training)
        shown = torch.where(version > training.flip, views, shown)
    return shown


def view_images(images: Tensor, uniform: Tensor, training: TrainingConfig) -> Tensor:
    """Random views (B, 3, H, H) uint8 by `uniform` (B, NUMBERS); see `random_views`."""
    if not training.flip:
        uniform = uniform.index_fill(1, torch.tensor([MIRROR], device=uniform.device), 1.0)
    return random_views(images, uniform, smallest=training.view_area).round().to(torch.uint8)
