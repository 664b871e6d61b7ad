"""Vectors by which images and regions are compared, from the fields of their programs."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor

from strop.errors import FormatError, parsing

WIDTH = 128
"""Dimensions of a vector. The index keeps it in half precision: 256 bytes an image."""

REMEDY = "Build it again: strop index STORE."
"""What to do about a damaged index."""

_PARTS = ("channel_mean", "channel_spread", "centre", "directions")


@dataclass(frozen=True, eq=False)
class Descriptor:
    """A map of fields to unit vectors, fitted on the fields of a store.

    The means of the channels over the locations and their standard deviations, both without their
    average over images and scaled to unit length, are projected onto their first principal
    directions. Whitening them finds less alike images (`benchmarks/NOTES.md`).

    channel_mean, channel_spread  (d,) of patches, over images and locations
    centre                        (2 d,) means and standard deviations, on average over images
    directions                    (2 d, D) orthonormal
    """

    channel_mean: Tensor
    channel_spread: Tensor
    centre: Tensor
    directions: Tensor

    @staticmethod
    def fit(pooled: Tensor, width: int = WIDTH) -> Descriptor:
        """Fit to what `pool` returns for (n) images: (n, 2 d)."""
        means, deviations = pooled.chunk(2, dim=1)
        variance = deviations.square().mean(dim=0) + means.var(dim=0, correction=0)
        centre = pooled.mean(dim=0)
        halves = _halves(pooled - centre).double()
        vectors = torch.linalg.eigh(halves.T @ halves)[1]
        return Descriptor(
            channel_mean=means.mean(dim=0),
            channel_spread=variance.sqrt().clamp(min=1e-6),
            centre=centre,
            directions=vectors.flip(1)[:, :width].float().contiguous(),
        )

    def __call__(self, fields: Tensor) -> Tensor:
        """Fields (B, S, d) of images, or of S patches of a region, to unit vectors (B, D)."""
        return self.vectors(pool(fields))

    def vectors(self, pooled: Tensor) -> Tensor:
        """What `pool` returns to unit vectors: (B, 2 d) to (B, D)."""
        return F.normalize(_halves(pooled - self.centre) @ self.directions, dim=-1)

    def patches(self, fields: Tensor) -> Tensor:
        """Fields (B, S, d) to unit vectors of their patches, (B, S, d)."""
        return F.normalize((fields.float() - self.channel_mean) / self.channel_spread, dim=-1)

    def to(self, device: torch.device | str) -> Descriptor:
        """The same on another device."""
        return Descriptor(*(getattr(self, name).to(device) for name in _PARTS))

    def to_text(self) -> str:
        """What `from_text` reads: a file of safetensors in base64."""
        parts = {name: getattr(self, name).cpu().contiguous() for name in _PARTS}
        return base64.b64encode(save(parts)).decode()

    @staticmethod
    def from_text(text: str, source: object) -> Descriptor:
        """Read what `to_text` wrote; `FormatError` if it is anything else."""
        with parsing(FormatError, f"The index {source} is damaged", REMEDY):
            held = load(base64.b64decode(text, validate=True))
            parts = [held[name].float() for name in _PARTS]
            width = len(parts[0])
            if [len(part) for part in parts] != [width, width, 2 * width, 2 * width]:
                raise ValueError(f"shapes {[tuple(part.shape) for part in parts]}")
            if not all(part.isfinite().all() for part in parts):
                raise ValueError("a value that is not finite")
            return Descriptor(*parts)


def pool(fields: Tensor) -> Tensor:
    """Mean and standard deviation of each channel over locations: (B, S, d) to (B, 2 d)."""
    fields = fields.float()
    return torch.cat([fields.mean(dim=1), fields.std(dim=1, correction=0)], dim=1)


def _halves(centred: Tensor) -> Tensor:
    """Both halves of (B, 2 d) scaled to unit length."""
    return torch.cat([F.normalize(half, dim=-1) for half in centred.chunk(2, dim=-1)], dim=-1)
