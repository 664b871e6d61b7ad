"""The targets that `train_lengths` fits a length head to. `strop.model.rate_head` replaces them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from strop import objective
from strop.curriculum import EPSILON
from strop.model.interpreter import prefix_mask
from strop.model.teacher import PIXELS_PER_LOCATION
from strop.model.tokenizer import Tokenizer

Per = Literal["token", "doubling"]
_LOCATIONS_AT_ONCE = 16_384  # a batch at a larger zoom may exceed memory


@dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
    """Settings of the targets, named as they were in the curriculum."""

    oracle: Literal["price", "outlines"] = "price"
    oracle_scale: float = 0.75
    oracle_contrast: float = 1.0
    oracle_zoom: int = 4
    oracle_minimum: int = 2
    oracle_maximum: int | None = None
    price_per: Per = "token"
    rate_knots: int = 10

    @property
    def zoom(self) -> int | None:
        """How many times as large the teacher sees images; None if not at all."""
        return self.oracle_zoom if self.oracle == "outlines" else None


def knot_lengths(config: CurriculumConfig, k: int) -> tuple[int, ...]:
    """The rising lengths at which rate curves are probed: at most `rate_knots`, the last is k."""
    first, steps = math.log(min(config.oracle_minimum, k)), config.rate_knots - 1
    spaced = (first + (math.log(k) - first) * step / steps for step in range(steps + 1))
    return tuple(sorted({round(math.exp(knot)) for knot in spaced}))


def cheapest_lengths(
    curves: Tensor, knots: tuple[int, ...], price: Tensor, per: Per = "token"
) -> Tensor:
    """(P,): where error and price are least, on a parabola through the three knots around it.

    curves  (P, n) error at each of the n knots, the last of which is k
    """
    at = torch.tensor(knots, dtype=curves.dtype, device=curves.device)
    x = at.log()
    cost = curves + price * (at / knots[-1] if per == "token" else at.log2())
    if len(knots) < 3:
        return at[cost.argmin(dim=1)]
    middle = cost.argmin(dim=1).clamp(1, len(knots) - 2)
    x0, x1, x2 = x[middle - 1], x[middle], x[middle + 1]
    y0, y1, y2 = (cost.gather(1, (middle + by)[:, None])[:, 0] for by in (-1, 0, 1))
    left, right = (x1 - x0) * (y2 - y1), (x2 - x1) * (y1 - y0)
    # left > right where the three points are convex; elsewhere the least is at an end.
    bend = left - right
    vertex = (x0 + x1) / 2 - (y1 - y0) * (x2 - x0) * (x2 - x1) / (2 * bend.clamp(min=EPSILON))
    end = torch.where(y0 <= y2, x0, x2)
    return torch.where(bend > EPSILON, vertex.clamp(x0, x2), end).exp()


def contrasted(targets: Tensor, config: CurriculumConfig, k: int) -> Tensor:
    """Targets (B,) further from, or nearer to, the one of an average sample."""
    middle = config.oracle_scale * k
    return middle * (targets / middle) ** config.oracle_contrast


def clipped(targets: Tensor, config: CurriculumConfig, k: int) -> Tensor:
    """Targets (B,) between the shortest and the longest that the oracle may ask for."""
    longest = k if config.oracle_maximum is None else config.oracle_maximum
    return targets.clamp(config.oracle_minimum, longest)


def total_variation(fields: Tensor) -> Tensor:
    """(B,): how far apart neighbouring locations are, on average, in fields (B, h, w, d).

    What changes at an outline changes once, however far away its two sides lie: so this grows with
    the length of outlines and with how much the two sides differ, not with what they enclose.
    """
    steps = [fields.float().diff(dim=axis).square().mean(-1).sqrt().flatten(1) for axis in (1, 2)]
    return torch.cat(steps, dim=1).mean(1)


def outlines_of(teacher: Callable[[Tensor, int], Tensor], images: Tensor, zoom: int) -> Tensor:
    """(B,): what the oracle `outlines` goes by, of square uint8 images (B, 3, H, H)."""
    side = images.shape[-1] // PIXELS_PER_LOCATION * zoom
    parts = images.split(max(_LOCATIONS_AT_ONCE // side**2, 1))
    fields = (teacher(part, zoom).unflatten(1, (side, side)) for part in parts)
    return torch.cat([total_variation(field) for field in fields])


def rate_curves(
    tokenizer: Tokenizer, z_q: Tensor, field: Tensor, config: CurriculumConfig
) -> Tensor:
    """(P, n): the squared error of P programs at the n `knot_lengths`."""
    knots = knot_lengths(config, tokenizer.config.max_length)
    at = torch.tensor(knots, device=field.device).expand(len(z_q), -1)
    active = prefix_mask(at.flatten(), z_q.shape[1])
    interpreted = tokenizer.interpreter(z_q.repeat_interleave(len(knots), dim=0), active)
    target = field.repeat_interleave(len(knots), dim=0)
    return objective.squared_error(interpreted, target).unflatten(0, at.shape)
