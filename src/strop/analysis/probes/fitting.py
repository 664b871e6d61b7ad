"""Training of probes, and the choice of their weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from strop.analysis.probes.heads import Probe
from strop.analysis.probes.protocol import Schedule
from strop.random import seeded
from strop.training.fit import fit

Loss = Callable[[Probe, Tensor, int], Tensor]
"""The mean loss of a probe on the images at `rows` (b,), in step `step`."""

HELD_OUT = 5
"""One image in this many is held out to choose the weight decay."""
LEAST_IMAGES = 2 * HELD_OUT
_BATCH = 64  # images at a time when a loss is measured


def fit_probe(
    make: Callable[[], Probe],
    loss: Loss,
    images: int,
    schedule: Schedule,
    *,
    seed: int,
    device: torch.device,
) -> Probe:
    """Train a probe on images 0 to `images`; choose the weight decay on a held-out part of them."""
    order = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
    decay = schedule.weight_decays[0]
    if len(schedule.weight_decays) > 1:
        held, kept = order[: images // HELD_OUT], order[images // HELD_OUT :]
        losses = {
            each: _measure(_train(make, loss, kept, schedule, each, seed, device), loss, held)
            for each in schedule.weight_decays
        }
        decay = min(losses, key=losses.__getitem__)
    return _train(make, loss, order, schedule, decay, seed, device)


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
        probe.weight_decay = weight_decay
        batches = _batches(rows, schedule.batch, seed)
        fit(
            [
                {"params": list(part.parameters()), "lr": schedule.learning_rate * factor}
                for part, factor in probe.rates.items()
            ],
            lambda step: loss(probe, next(batches), step),
            steps=schedule.steps,
            learning_rate=schedule.learning_rate,
            weight_decay=weight_decay,
            betas=schedule.betas,
            warmup=schedule.warmup,
            clip=schedule.clip,
        )
    return probe.eval()


def _batches(rows: Tensor, batch: int, seed: int) -> Iterator[Tensor]:
    """Endless batches of one size that pass over all images in random order, again and again."""
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
    late = 1 << 30  # after the warm-up of every loss
    parts = [loss(probe, chosen, late).item() * len(chosen) for chosen in rows.split(_BATCH)]
    return sum(parts) / len(rows)
