"""Training of probes: seeded, on whatever gives a loss for chosen images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from strop.analysis.probes.heads import Probe
from strop.analysis.probes.protocol import Schedule
from strop.random import seeded

Loss = Callable[[nn.Module, Tensor, int], Tensor]
"""The mean loss of a probe on the images at `rows` (b,), in step `step`."""

HELD_OUT = 5
"""One image in so many is kept to choose the weight decay by."""
LEAST_IMAGES = 2 * HELD_OUT
_MEASURED = 64  # images at a time when a loss is measured


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained probe, and the weight decay it was trained with."""

    probe: Probe
    weight_decay: float


def fit(
    make: Callable[[], Probe],
    loss: Loss,
    images: int,
    schedule: Schedule,
    *,
    seed: int,
    device: torch.device,
) -> Fitted:
    """Train a probe on images 0 to `images`; the weight decay is chosen on a slice of them."""
    order = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
    decay = schedule.weight_decays[0]
    if len(schedule.weight_decays) > 1:
        held, kept = order[: images // HELD_OUT], order[images // HELD_OUT :]
        losses = {
            each: _measure(_train(make, loss, kept, schedule, each, seed, device), loss, held)
            for each in schedule.weight_decays
        }
        decay = min(losses, key=losses.__getitem__)
    return Fitted(_train(make, loss, order, schedule, decay, seed, device), decay)


def rate(schedule: Schedule, step: int) -> float:
    """The factor on the learning rate in a step, counted from 0."""
    if step < schedule.warmup:
        return (step + 1) / (schedule.warmup + 1)
    done = (step - schedule.warmup) / max(1, schedule.steps - schedule.warmup)
    return 0.5 * (1 + math.cos(math.pi * done))


def _train(
    make: Callable[[], Probe],
    loss: Loss,
    rows: Tensor,
    schedule: Schedule,
    weight_decay: float,
    seed: int,
    device: torch.device,
) -> Probe:
    with seeded(seed):
        probe = make().to(device).train()
        rates = {part: schedule.learning_rate * factor for part, factor in probe.rates.items()}
        optimizer = torch.optim.AdamW(
            [{"params": list(part.parameters())} for part in rates],
            lr=schedule.learning_rate,
            betas=schedule.betas,
            weight_decay=weight_decay,
            fused=device.type == "cuda",
        )
        for step, chosen in zip(
            range(schedule.steps), _batches(rows, schedule.batch, seed), strict=False
        ):
            for group, full in zip(optimizer.param_groups, rates.values(), strict=True):
                group["lr"] = full * rate(schedule, step)
            optimizer.zero_grad(set_to_none=True)
            with torch.enable_grad():
                loss(probe, chosen, step).backward()
            nn.utils.clip_grad_norm_(probe.parameters(), schedule.clip)
            optimizer.step()
    return probe.eval()


def _batches(rows: Tensor, batch: int, seed: int) -> Iterator[Tensor]:
    """Batches of one size without end: every image once before any comes again."""
    generator = torch.Generator().manual_seed(seed)
    batch = min(batch, len(rows))
    waiting = rows[:0]
    while True:
        if len(waiting) < batch:
            order = torch.randperm(len(rows), generator=generator)
            waiting = torch.cat([waiting, rows[order]])
        yield waiting[:batch]
        waiting = waiting[batch:]


@torch.no_grad()
def _measure(probe: Probe, loss: Loss, rows: Tensor) -> float:
    late = 1 << 30  # past every warm-up of a loss
    parts = [loss(probe, chosen, late).item() * len(chosen) for chosen in rows.split(_MEASURED)]
    return sum(parts) / len(rows)
