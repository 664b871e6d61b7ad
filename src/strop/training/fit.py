"""Training of small modules: AdamW with an optional warm-up and a cosine schedule."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from strop.random import seeded


def fit(
    parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
    loss_of_step: Callable[[int], Tensor],
    *,
    steps: int,
    learning_rate: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    warmup: int = 0,
    clip: float | None = None,
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Minimise `loss_of_step(step)`, a scalar, over `steps` steps counted from 0.

    parameters     tensors, or parameter groups as optimizers take them; `lr` and `weight_decay`
                   of a group replace the arguments of this function
    learning_rate  peak rate, which follows `rate_factor`
    clip           largest gradient norm; None for no clipping
    seed           seed of torch's generators during the training; None leaves them alone
    progress       called after every step with the steps taken and their number

    The caller moves modules to a device and sets their mode; `loss_of_step` enters autocast itself.
    """
    optimizer = torch.optim.AdamW(
        parameters, lr=learning_rate, betas=betas, weight_decay=weight_decay
    )
    rates = [group["lr"] for group in optimizer.param_groups]
    tensors = [each for group in optimizer.param_groups for each in group["params"]]
    with seeded(seed) if seed is not None else contextlib.nullcontext():
        for step in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.enable_grad():
                loss_of_step(step).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(tensors, clip)
            factor = rate_factor(step, steps, warmup)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            if progress is not None:
                progress(step + 1, steps)


def rate_factor(step: int, steps: int, warmup: int = 0) -> float:
    """The share of the learning rate in use at `step`: linear warm-up, then a cosine to 0."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
