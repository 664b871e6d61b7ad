"""The small transformers that are trained on programs: their size, layers and training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from strop.errors import ConfigError
from strop.training.fit import fit

BATCH = 128
LEARNING_RATE = 2e-3
WEIGHT_DECAY = 0.05
CHECKS = 20
VALIDATION_SHARE, VALIDATION_MOST = 0.1, 512

StepProgress = Callable[[int, int], None]
"""Called with the number of steps taken and their total."""


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


class CodeTransformer(nn.Module):
    """A transformer encoder over symbols, with learned position embeddings."""

    def __init__(self, config: NetworkConfig, symbols: int, capacity: int) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(symbols, config.width)
        self.positions = nn.Parameter(torch.randn(capacity, config.width))
        layer = nn.TransformerEncoderLayer(**layer_sizes(config))
        self.layers = nn.TransformerEncoder(
            layer, config.depth, nn.LayerNorm(config.width), enable_nested_tensor=False
        )

    @property
    def device(self) -> torch.device:
        return self.positions.device

    def forward(self, symbols: Tensor, active: Tensor | None = None) -> Tensor:
        """Symbols `(B, T)` to states `(B, T, d)`.

        With a mask `active` `(B, T)` every state attends to all active symbols; without one, it
        attends to symbols up to its own.
        """
        x = self.embed(symbols) + self.positions[: symbols.shape[1]]
        if active is not None:
            return self.layers(x, src_key_padding_mask=~active)
        return self.layers(x, mask=causal_mask(x.shape[1], self.device), is_causal=True)


def train_network(
    network: nn.Module,
    loss: Callable[[Tensor], Tensor],
    count: int,
    *,
    epochs: float,
    seed: int,
    progress: StepProgress | None = None,
) -> None:
    """Minimise `loss(rows)` over rows 0 to `count` - 1, each drawn `epochs` times on average.

    `loss` returns the mean over rows `(B,)`, which are on the network's device. A tenth of the rows
    is held out; the network ends in eval mode with the weights of the lowest held-out loss. bf16
    on a GPU.
    """
    if epochs <= 0:
        raise ConfigError(f"{epochs} epochs do not train a network.", "Give more than 0.")
    device = next(network.parameters()).device
    random = torch.Generator().manual_seed(seed)
    batch = min(BATCH, count)
    steps = math.ceil(count * epochs / batch)
    order = torch.randperm(count, generator=random).to(device)
    held_out = max(1, min(round(count * VALIDATION_SHARE), VALIDATION_MOST))
    valid, train = order[:held_out], order[held_out:] if count > 1 else order
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    best, kept = math.inf, {}

    def loss_of_step(step: int) -> Tensor:
        network.train()
        rows = train[torch.randint(len(train), (batch,), generator=random).to(device)]
        with autocast:
            return loss(rows)

    def validate(step: int, steps: int) -> None:
        nonlocal best, kept
        if step % max(1, steps // CHECKS) and step < steps:
            return
        network.eval()
        with torch.no_grad(), autocast:
            parts = valid.split(batch)
            now = sum(float(loss(part)) * len(part) for part in parts) / len(valid)
        if now < best:
            best = now
            kept = {name: value.clone() for name, value in network.state_dict().items()}
        if progress is not None:
            progress(step, steps)

    groups: list[dict[str, Any]] = [
        {"params": [p for p in network.parameters() if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in network.parameters() if p.ndim <= 1]},
    ]
    fit(
        groups,
        loss_of_step,
        steps=steps,
        learning_rate=LEARNING_RATE,
        betas=(0.9, 0.98),
        warmup=max(1, min(200, steps // 10)),
        clip=1.0,
        progress=validate,
    )
    network.load_state_dict(kept)
    network.eval()
