"""The small transformers that read programs: their size and layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from strop.errors import ConfigError
from strop.program import Program


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Size of a network; one with an encoder and a decoder has `depth` layers in each."""

    width: int = 128
    depth: int = 3
    heads: int = 4
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.depth < 1 or self.width < 1 or self.width % self.heads:
            raise ConfigError(
                f"A network of width {self.width} and depth {self.depth} cannot be built.",
                f"Give a multiple of {self.heads} and at least one layer.",
            )


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of analyses that train a small network on programs.

    pairs       spec of the data to train on, such as scenes:?n=20000&seed=5; without one, the data
                is split
    test_share  share of the data that is then tested on
    epochs      passes over the training data
    width       width of the network
    depth       layers of the network
    seed        random seed
    """

    pairs: str = field(default="", metadata={"dataset": True})
    test_share: float = field(default=0.2, metadata={"above": 0, "below": 1})
    epochs: int = field(default=40, metadata={"min": 1})
    width: int = field(default=128, metadata={"min": 1})
    depth: int = field(default=3, metadata={"min": 1})
    seed: int = 0

    @property
    def network(self) -> NetworkConfig:
        """The size of the network."""
        return NetworkConfig(width=self.width, depth=self.depth)


def layer_sizes(config: NetworkConfig) -> dict[str, Any]:
    """The arguments that all transformer layers share."""
    return {
        "d_model": config.width,
        "nhead": config.heads,
        "dim_feedforward": 4 * config.width,
        "dropout": config.dropout,
        "activation": "gelu",
        "batch_first": True,
        "norm_first": True,
    }


def causal_mask(length: int, device: torch.device) -> Tensor:
    """`(T, T)` bool: True where attention is not allowed."""
    return nn.Transformer.generate_square_subsequent_mask(length, device).bool()


@dataclass(frozen=True)
class Inputs:
    """What N programs give a network to read.

    values  (N, T) int64 codes, or (N, T, D) vectors
    active  (N, T) bool
    """

    values: Tensor
    active: Tensor

    @classmethod
    def of(cls, source: Program | Inputs) -> Inputs:
        """The codes of programs as symbols, or the inputs themselves."""
        if isinstance(source, Inputs):
            return source
        rows = source.as_batch()
        return cls(rows.codes, rows.active)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Tensor | slice) -> Inputs:
        return Inputs(self.values[rows], self.active[rows])

    def to(self, device: torch.device | str) -> Inputs:
        """The same inputs on another device."""
        return Inputs(self.values.to(device), self.active.to(device))


class CodeTransformer(nn.Module):
    """A transformer encoder over symbols or vectors, with learned position embeddings.

    `size` is the number of symbols, or the width of the vectors.
    """

    def __init__(self, config: NetworkConfig, size: int, capacity: int, *, vectors: bool) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Linear(size, config.width) if vectors else nn.Embedding(size, config.width)
        self.positions = nn.Parameter(torch.randn(capacity, config.width))
        layer = nn.TransformerEncoderLayer(**layer_sizes(config))
        self.layers = nn.TransformerEncoder(
            layer, config.depth, nn.LayerNorm(config.width), enable_nested_tensor=False
        )

    def forward(self, inputs: Inputs) -> Tensor:
        """Inputs of B programs to states `(B, T, d)`."""
        values = inputs.values
        x = self.embed(values.to(self.positions.dtype) if values.is_floating_point() else values)
        return self.layers(x + self.positions[: x.shape[1]], src_key_padding_mask=~inputs.active)
