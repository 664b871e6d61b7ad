"""Training of small networks on programs, with the weights of the lowest held-out loss."""

from __future__ import annotations

import math
from collections.abc import Callable
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


def train_network(
    network: nn.Module,
    loss: Callable[[Tensor], Tensor],
    count: int,
    *,
    epochs: float,
    seed: int,
    learning_rate: float = LEARNING_RATE,
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
        learning_rate=learning_rate,
        betas=(0.9, 0.98),
        warmup=max(1, min(200, steps // 10)),
        clip=1.0,
        progress=validate,
    )
    network.load_state_dict(kept)
    network.eval()
