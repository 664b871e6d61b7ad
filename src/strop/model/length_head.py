"""The paper's length head, which predicts a length from the pooled field, and a fixed length.

`strop.model.rate_head` has the head that predicts the error at every length instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from strop.config import check_ranges
from strop.errors import ConfigError
from strop.model.layers import hidden_layers, initialise


@dataclass(frozen=True, kw_only=True)
class LengthHeadConfig:
    """How a model chooses lengths.

    kind     "paper" predicts a length, "rate" the error at every length, "fixed" has no head
    hidden   widths of the hidden layers; by default (1024, 128) as in the paper, (256,) for "rate"
    fixed    the length of all programs; implies "fixed"
    quality  the cosine similarity that a model with a rate head encodes to by default
    """

    kind: Literal["paper", "rate", "fixed"] = "paper"
    hidden: tuple[int, ...] | None = None
    fixed: int | None = None
    quality: float = field(default=0.9, metadata={"above": 0, "below": 1})

    def __post_init__(self) -> None:
        if self.fixed is not None and self.kind == "paper":
            object.__setattr__(self, "kind", "fixed")
        if (self.fixed is not None) != (self.kind == "fixed"):
            raise ConfigError(
                f"length_head.kind is {self.kind!r} and length_head.fixed is {self.fixed}.",
                'Give a fixed length with kind "fixed", and with no other.',
            )
        check_ranges(self, "length_head")

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers, where none are given by `kind`."""
        if self.hidden is not None:
            return self.hidden
        return (256,) if self.kind == "rate" else (1024, 128)


class LengthHead(nn.Module):
    """`K * sigmoid(MLP(mean over locations))`: "Length head" in Section 2.1."""

    def __init__(self, config: LengthHeadConfig, *, field_width: int, length: int) -> None:
        super().__init__()
        self.length = length
        widths = (field_width, *config.widths)
        self.mlp = nn.Sequential(*hidden_layers(widths), nn.Linear(widths[-1], 1))
        initialise(self)

    def forward(self, field: Tensor) -> Tensor:
        """Field `(B, S, d_enc)` to real-valued lengths `(B,)` in (0, K)."""
        logit = self.mlp(field.mean(dim=1)).squeeze(-1)
        return self.length * torch.sigmoid(logit.float())


class FixedLength(nn.Module):
    """In the head's place where nothing is learned: every image has the same length."""

    def __init__(self, config: LengthHeadConfig, *, field_width: int, length: int) -> None:
        super().__init__()
        self.length = length if config.fixed is None else config.fixed

    def forward(self, field: Tensor) -> Tensor:
        """Field `(B, S, d_enc)` to lengths `(B,)`, all alike."""
        return torch.full((field.shape[0],), float(self.length), device=field.device)


def whole_lengths(predicted: Tensor, length: int) -> Tensor:
    """Predicted lengths, rounded and clipped to [1, K] (Section 2.1): int64, same shape."""
    return predicted.round().clamp(1, length).long()
