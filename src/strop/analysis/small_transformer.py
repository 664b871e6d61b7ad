"""The small transformers of these studies: how large they are and how they are trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from strop.errors import ConfigError

BATCH = 128
LEARNING_RATE = 2e-3
CHECKS = 20
VALIDATION_SHARE, VALIDATION_MOST = 0.1, 512


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Size of a network; one that reads and writes has `depth` layers for each."""

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


def layer_sizes(config: NetworkConfig) -> dict[str, Any]:
    """What all transformer layers here have in common, as torch calls it."""
    return {
        "d_model": config.width,
        "nhead": config.heads,
        "dim_feedforward": 4 * config.width,
        "dropout": config.dropout,
        "activation": "gelu",
        "batch_first": True,
        "norm_first": True,
    }


def _silent(done: int, total: int) -> None: ...


def fit(
    network: nn.Module,
    loss: Callable[[Tensor], Tensor],
    count: int,
    *,
    epochs: float,
    seed: int,
    watch: Callable[[int, int], None] = _silent,
) -> float:
    """Minimise `loss(rows)` over rows 0 to `count` - 1, each seen `epochs` times on average.

    `loss` gives the mean over the rows `(B,)` it is handed, which are on the network's device. A
    tenth of the rows is held out; the network ends with the weights that did best on them, and
    that best loss is returned. AdamW with a warm-up and a cosine; bf16 on a GPU.
    """
    if epochs <= 0:
        raise ConfigError(f"{epochs} epochs teach nothing.", "Give more than 0.")
    device = next(network.parameters()).device
    random = torch.Generator().manual_seed(seed)
    batch = min(BATCH, count)
    steps = math.ceil(count * epochs / batch)
    order = torch.randperm(count, generator=random).to(device)
    held_out = max(1, min(round(count * VALIDATION_SHARE), VALIDATION_MOST))
    valid, train = order[:held_out], order[held_out:] if count > 1 else order
    decayed = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        betas=(0.9, 0.98),
        fused=device.type == "cuda",
    )
    warmup = max(1, min(200, steps // 10))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps))),
    )
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    best, kept = math.inf, {}
    for step in range(1, steps + 1):
        network.train()
        rows = train[torch.randint(len(train), (batch,), generator=random).to(device)]
        with autocast:
            value = loss(rows)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(1, steps // CHECKS) == 0 or step == steps:
            network.eval()
            with torch.no_grad(), autocast:
                parts = valid.split(batch)
                now = sum(float(loss(part)) * len(part) for part in parts) / len(valid)
            if now < best:
                best = now
                kept = {name: value.clone() for name, value in network.state_dict().items()}
            watch(step, steps)
    network.load_state_dict(kept)
    network.eval()
    return best
