"""Views of the images of a distillation with what the networks see in them, computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strop.errors import TrainingError
from strop.training import draws
from strop.training.pool import Pool, Watch, whole_batches
from strop.training.sources import to_device
from strop.training.views import NUMBERS, random_views

RESIDENT_SHARE = 0.8
"""Of the GPU's free memory that views and features may take."""


@dataclass(frozen=True)
class Bank:
    """`each` views of every image of a pool, an image's after those of the one before.

    views   (n * each, 3, H, H) uint8
    fields  of each network, (n * each, S, d) bf16
    """

    views: Tensor
    fields: list[Tensor]
    each: int

    def batch(self, rows: Tensor, uniform: Tensor) -> tuple[Tensor, list[Tensor]]:
        """One view of each image at `rows` (B,) and its fields, by `uniform` (B, 2) in [0, 1).

        Half of them are mirrored, and their fields with them.
        """
        index = rows * self.each + (uniform[:, 0] * self.each).long()
        mirror = uniform[:, 1] < 0.5
        views = self.views[index].float()
        return (
            torch.where(mirror[:, None, None, None], views.flip(-1), views),
            [_mirrored(field[index], mirror) for field in self.fields],
        )


@torch.no_grad()
def make_bank(
    pool: Pool,
    look: Callable[[Tensor], Sequence[Tensor]],
    *,
    each: int,
    batch: int,
    seed: int,
    smallest: float,
    device: torch.device,
    watch: Watch,
) -> Bank:
    """Make the views and have the networks look at them.

    look      views (batch, 3, H, H) from 0 to 255 to the fields of all networks
    smallest  share of an image's area that a view shows at least
    """
    count = len(pool.images)
    views: Tensor | None = None
    fields: list[Tensor] = []
    for number in range(each):
        for step, rows in enumerate(whole_batches(count, batch)):
            uniform = draws.uniform(seed, f"bank {number}", step, batch, NUMBERS)
            images = pool.batch(rows, device)
            view = random_views(images, to_device(uniform, device), smallest=smallest)
            view = view.round().to(torch.uint8)
            seen = look(view.float())
            if views is None:
                _check_room(count * each, [view, *seen], device)
                views = view.new_empty(count * each, *view.shape[1:])
                fields = [
                    field.new_empty(count * each, *field.shape[1:], dtype=torch.bfloat16)
                    for field in seen
                ]
            index = to_device(rows * each + number, device)
            views[index] = view
            for kept, field in zip(fields, seen, strict=True):
                kept[index] = field.bfloat16()
        watch(0, f"looking at views, {number + 1} of {each}")
    assert views is not None
    return Bank(views, fields, each)


def _mirrored(field: Tensor, mirror: Tensor) -> Tensor:
    """A field (B, S, d), left and right exchanged where `mirror` (B,) says so."""
    side = round(field.shape[1] ** 0.5)
    turned = field.unflatten(1, (side, side)).flip(2).flatten(1, 2)
    return torch.where(mirror[:, None, None], turned, field)


def _check_room(count: int, samples: Sequence[Tensor], device: torch.device) -> None:
    if device.type != "cuda":
        return
    view, *fields = samples
    wanted = count * (view[0].numel() + sum(2 * field[0].numel() for field in fields))
    free, _ = torch.cuda.mem_get_info(device)
    if wanted > RESIDENT_SHARE * free:
        raise TrainingError(
            f"The views and their features take {wanted / 2**30:.0f} GiB; {free / 2**30:.0f} are "
            "free on the GPU.",
            "Use fewer --views, or none.",
        )
