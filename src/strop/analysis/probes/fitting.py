"""Training of probes, and the choice of their weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from strop.analysis.probes.heads import Probe
from strop.analysis.probes.protocol import Protocol
from strop.random import seeded
from strop.training.fit import fit

Loss = Callable[[Probe, Tensor], Tensor]
"""The mean loss of a probe on the images at `rows` (b,)."""

HELD_OUT = 5
"""One image in this many is held out to choose the weight decay."""
LEAST_IMAGES = 2 * HELD_OUT
CLIP = 35.0
"""The largest gradient norm."""
_BATCH = 64  # images at a time when a loss is measured


def fit_probe(
    make: Callable[[], Probe],
    loss: Loss,
    images: int,
    protocol: Protocol,
    *,
    seed: int,
    device: torch.device,
) -> Probe:
    """Train a probe on images 0 to `images`; choose the weight decay on a held-out part of them."""

    def train(rows: Tensor, weight_decay: float) -> Probe:
        with seeded(seed):
            probe = make().to(device).train()
            probe.weight_decay = weight_decay
            batches = batches_of(rows, protocol.batch, seed)
            fit(
                probe.groups(protocol.learning_rate),
                lambda step: loss(probe, next(batches)),
                steps=protocol.steps,
                learning_rate=protocol.learning_rate,
                weight_decay=weight_decay,
                warmup=protocol.warmup,
                clip=CLIP,
            )
        return probe.eval()

    order = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
    decay, *others = protocol.weight_decays
    if others:
        held, kept = order[: images // HELD_OUT], order[images // HELD_OUT :]
        losses = {each: _measure(train(kept, each), loss, held) for each in protocol.weight_decays}
        decay = min(losses, key=losses.__getitem__)
    return train(order, decay)


def batches_of(rows: Tensor, batch: int, seed: int) -> Iterator[Tensor]:
    """Endless batches of one size that pass over all rows (n,) in random order, again and again."""
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
    parts = [loss(probe, chosen).item() * len(chosen) for chosen in rows.split(_BATCH)]
    return sum(parts) / len(rows)
