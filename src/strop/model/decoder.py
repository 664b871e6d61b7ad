"""The decoder of Section 5.1: a field in, pixels out. It never trains anything else."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from strop.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Channels after each of the four upsampling blocks."""

    widths: tuple[int, ...] = (256, 128, 64, 32)


class Decoder(nn.Module):
    """Four blocks that each double the grid, then RGB: `16 h x 16 w` for every teacher."""

    def __init__(self, config: DecoderConfig, *, field_width: int) -> None:
        super().__init__()
        if len(config.widths) != 4:
            raise ConfigError(
                f"decoder.widths has {len(config.widths)} entries.", "Give four, one per block."
            )
        widths = (field_width, *config.widths)
        self.blocks = nn.Sequential(
            *(UpsamplingBlock(*pair) for pair in itertools.pairwise(widths))
        )
        self.to_rgb = nn.Conv2d(widths[-1], 3, kernel_size=3, padding=1)

    def forward(self, field: Tensor) -> Tensor:
        """Field `(B, S, d_enc)` to RGB `(B, 3, 16 h, 16 w)` in [0, 1].

        The field is detached here, so that no loss on pixels can ever reach what made it.
        """
        side = math.isqrt(field.shape[1])
        grid = field.detach().transpose(1, 2).unflatten(-1, (side, side))
        return torch.sigmoid(self.to_rgb(self.blocks(grid)))


class UpsamplingBlock(nn.Sequential):
    """FastGAN's block: nearest upsampling, 3x3 convolution, batch norm, gated linear unit."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Conv2d(before, 2 * after, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(2 * after),
            nn.GLU(dim=1),
        )
