"""The length head: how many codes this image deserves, read off its pooled field."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from strop.model.layers import initialise


@dataclass(frozen=True, kw_only=True)
class LengthHeadConfig:
    """Widths of the hidden layers; or one length for all images, and no head at all."""

    hidden: tuple[int, ...] = (1024, 128)
    fixed: int | None = None


class LengthHead(nn.Module):
    """`K * sigmoid(MLP(mean over locations))`."""

    def __init__(self, config: LengthHeadConfig, *, field_width: int, length: int) -> None:
        super().__init__()
        self.length = length
        widths = (field_width, *config.hidden)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.GELU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(widths[-1], 1))
        initialise(self)

    def forward(self, field: Tensor) -> Tensor:
        """Field `(B, S, d_enc)` to real-valued lengths `(B,)` in (0, K)."""
        logit = self.mlp(field.mean(dim=1)).squeeze(-1)
        return self.length * torch.sigmoid(logit.float())


class FixedLength(nn.Module):
    """In the head's place where nothing is learned: every image has the same length."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, field: Tensor) -> Tensor:
        """Field `(B, S, d_enc)` to lengths `(B,)`, all alike."""
        return torch.full((len(field),), float(self.length), device=field.device)


def whole_lengths(predicted: Tensor, length: int) -> Tensor:
    """Predicted lengths, rounded and clipped to [1, K]: int64, same shape."""
    return predicted.round().clamp(1, length).long()
