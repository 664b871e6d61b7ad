"""The length head of a model that is done, fitted anew.

While a model is trained its oracle chases programs that still change. Afterwards every image's
rate curve can be read exactly, and by the oracle `price` tokens go where they lower the squared
error most for their price; by the oracle `outlines` they go where the teacher sees most of those.
Either way the price is the one that gives the mean length asked for.

The head is a linear one, on the leading principal directions of the pooled field. One that looks at
all of them comes closer to the targets; on the bundled teacher its lengths say less of how many
objects there are, on another that was not seen. `benchmarks/NOTES.md` has the figures.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor

from strop.data.loader import checked_images, image_batches
from strop.data.record import Dataset
from strop.data.spec import open_dataset
from strop.errors import ConfigError, TrainingError
from strop.model.length_head import LengthHead, LengthHeadConfig, whole_lengths
from strop.model.tokenizer import Tokenizer
from strop.statistics import pearson
from strop.training.fitted_targets import (
    CurriculumConfig,
    Per,
    cheapest_lengths,
    clipped,
    contrasted,
    knot_lengths,
    outlines_of,
    rate_curves,
)

FittedOracle = Literal["price", "outlines"]

_HALVINGS = 60
"""Of the interval in which a price or a bias is looked for."""


@torch.no_grad()
def train_lengths(
    tokenizer: Tokenizer,
    data: str | Dataset | Tensor,
    *,
    mean: float,
    oracle: FittedOracle = "price",
    contrast: float = 1.0,
    per: Per = "token",
    zoom: int = CurriculumConfig.oracle_zoom,
    directions: int = 10,
    batch: int = 64,
    loading_workers: int = 0,
    watch: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Give `tokenizer` a length head for programs of `mean` tokens; nothing else in it changes.

    data        a spec, a dataset, or uint8 images (n, 3, H, H) of the model's size
    oracle      who sets the targets, as in `CurriculumConfig`
    contrast    above 1, lengths are pushed away from `mean` by this power
    per         with `price`: what is paid for, each `token` or each `doubling` of the length
    zoom        with `outlines`: how many times as large the teacher sees the images
    directions  of the pooled field that the head looks at
    watch       called with how many images were looked at, of how many

    Returns mean and spread of the lengths of `data`, their correlation with the targets, and the
    mean squared error at these lengths over that at the one whole length nearest their mean.
    """
    k = tokenizer.config.max_length
    if not CurriculumConfig.oracle_minimum < mean < k:
        raise ConfigError(
            f"The mean length is {mean:g}.",
            f"Give one above {CurriculumConfig.oracle_minimum} and below {k}.",
        )
    config = CurriculumConfig(
        oracle=oracle,
        price_per=per,
        oracle_zoom=zoom,
        oracle_scale=mean / k,
        oracle_contrast=contrast,
    )
    source = open_dataset(data) if isinstance(data, str) else data
    looks = _looks(tokenizer.eval(), source, config, batch, loading_workers, watch)
    pooled, curves = looks.pooled, looks.curves
    if not 1 <= directions <= min(len(pooled) - 1, pooled.shape[1]):
        raise TrainingError(
            f"There are {len(pooled)} images of {pooled.shape[1]} channels to fit {directions} "
            "directions on.",
            "Use more data than directions, and from one to as many as channels of these.",
        )
    targets = _targets(looks, config, k)
    head = _fitted(pooled, targets, directions, k, mean)
    tokenizer.config = replace(tokenizer.config, length_head=LengthHeadConfig(hidden=()))
    for stale in ("load", "metrics"):  # it is no longer the model of that name and those lengths
        tokenizer.about.pop(stale, None)
    tokenizer.about["lengths"] = (
        f"fitted anew to a mean of {mean:g} tokens, on {directions} directions of the pooled field "
        f"({f'price per {per}' if oracle == 'price' else f'outlines, zoom {zoom}'}, contrast "
        f"{contrast:g})"
    )
    own = whole_lengths(head(pooled[:, None]), k)
    tokenizer.length_head = head.to(tokenizer.device)
    even = torch.full_like(own, round(own.float().mean().item()))
    knots = knot_lengths(config, k)
    return {
        "length_mean": own.float().mean().item(),
        "length_spread": own.float().std(correction=0).item(),
        "target_correlation": pearson(own.numpy(), targets.numpy()),
        "error_over_even": _error_at(own, curves, knots) / _error_at(even, curves, knots),
    }


class _Looks(NamedTuple):
    """What n images show, on the CPU: the pooled field (n, d_enc), the rate curve (n, knots) and,
    if the oracle goes by them, the outlines (n,)."""

    pooled: Tensor
    curves: Tensor
    outlines: Tensor | None = None


def _looks(
    tokenizer: Tokenizer,
    source: Dataset | Tensor,
    config: CurriculumConfig,
    batch: int,
    loading_workers: int,
    watch: Callable[[int, int], None] | None,
) -> _Looks:
    """At all images, a batch at a time."""
    pooled: list[Tensor] = []
    curves: list[Tensor] = []
    outlines: list[Tensor] = []
    done = 0
    for images in _batches(tokenizer, source, batch, loading_workers):
        field = tokenizer.teacher(images).float() * tokenizer.config.teacher.scale
        z_q = tokenizer.quantizer(tokenizer.generator(field)).z_q
        pooled.append(field.mean(dim=1).cpu())
        curves.append(rate_curves(tokenizer, z_q, field, config).cpu())
        if config.zoom is not None:
            outlines.append(outlines_of(tokenizer.teacher, images, config.zoom).cpu())
        done += len(images)
        if watch is not None:
            watch(done, len(source))
    return _Looks(torch.cat(pooled), torch.cat(curves), torch.cat(outlines) if outlines else None)


def _batches(
    tokenizer: Tokenizer, source: Dataset | Tensor, batch: int, loading_workers: int
) -> Iterable[Tensor]:
    if isinstance(source, Tensor):
        images = checked_images(source, tokenizer.config.image_size)
        return (part.to(tokenizer.device) for part in images.split(batch))
    return image_batches(
        source,
        size=tokenizer.config.image_size,
        fit=tokenizer.config.fit,
        batch=batch,
        device=tokenizer.device,
        workers=loading_workers,
        report=warnings.warn,
    )


def _targets(looks: _Looks, config: CurriculumConfig, k: int) -> Tensor:
    """(n,): what the oracle asks for, at the price that makes `oracle_scale` k the mean.

    With `outlines` the price is what has the mean length of them.
    """
    knots, goal = knot_lengths(config, k), config.oracle_scale * k

    def at(log_price: float) -> Tensor:
        price = torch.tensor(log_price).exp()
        if looks.outlines is not None:
            found = looks.outlines / price * goal
        else:
            found = cheapest_lengths(looks.curves, knots, price, config.price_per)
        return clipped(contrasted(found, config, k), config, k)

    return at(_where(lambda log_price: at(log_price).mean().item() - goal, -40.0, 10.0))


def _fitted(pooled: Tensor, targets: Tensor, directions: int, k: int, mean: float) -> LengthHead:
    """The head whose logits are nearest the targets' by least squares, with the mean asked for."""
    centre = pooled.mean(dim=0)
    leading = torch.linalg.svd(pooled - centre, full_matrices=False).Vh[:directions]
    share = (targets / k).clamp(0.5 / k, 1 - 0.5 / k)  # half a token from the ends, which are open
    seen = (pooled - centre) @ leading.T
    wanted = share.logit()
    weight = torch.linalg.lstsq(seen, (wanted - wanted.mean())[:, None]).solution[:, 0]
    head = LengthHead(LengthHeadConfig(hidden=()), field_width=pooled.shape[1], length=k)
    linear = cast("torch.nn.Linear", head.mlp[-1])
    linear.weight.copy_((leading.T @ weight)[None])
    slope = pooled @ linear.weight[0]

    def over(bias: float) -> float:
        return mean - k * torch.sigmoid(slope + bias).mean().item()

    linear.bias.fill_(_where(over, *(-slope.mean().item() + end for end in (-20.0, 20.0))))
    return head


def _where(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses zero, by halving."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def _error_at(lengths: Tensor, curves: Tensor, knots: tuple[int, ...]) -> float:
    """Mean error at lengths (n,), on curves (n, knots) straight between their knots."""
    at = torch.tensor(knots)
    after = torch.searchsorted(at, lengths).clamp(1, len(knots) - 1)
    share = ((lengths - at[after - 1]) / (at[after] - at[after - 1])).clamp(0, 1)
    before, there = (curves.gather(1, each[:, None])[:, 0] for each in (after - 1, after))
    return torch.lerp(before, there, share).mean().item()
