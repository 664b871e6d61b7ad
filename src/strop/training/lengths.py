"""A rate head for a finished model: fitted to the model's own errors, then calibrated.

Every image is interpreted at a few random lengths. The head learns the errors there, with the loss
of training (`strop.objective.rate_loss`). Images that are held out give its margins: how far below
an error the prediction has to be, so that a stated share of images keeps to that error.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from strop import objective
from strop.data.loader import image_batches
from strop.data.record import Dataset
from strop.data.spec import open_dataset
from strop.errors import ConfigError, TrainingError
from strop.model.interpreter import prefix_mask
from strop.model.length_head import CONFIDENCE, LengthHeadConfig, RateHead, pooled
from strop.model.length_rule import needs_rate_head
from strop.model.tokenizer import Encoding, Tokenizer
from strop.progress import Progress, no_progress
from strop.random import seeded
from strop.training.draws import generator
from strop.training.fit import fit

LEAST_IMAGES = 20
LENGTHS = 8
"""At how many lengths each image is interpreted."""

_WIDEST, _NARROWEST = 1.5, -0.5
"""The range of margins, in the logarithm of the error."""

_LEAST_REACHING = 4
"""Images that have to reach a quality for margins of its own."""


class Errors(NamedTuple):
    """What a model reaches on n images, each at m lengths; everything on the CPU.

    statistics  (n, 3 d_enc) float32, see `strop.model.length_head.pooled`
    lengths     (n, m) int64, rising
    log_errors  (n, m, 2) float32: logarithms of cosine error and squared error
    """

    statistics: Tensor
    lengths: Tensor
    log_errors: Tensor

    def rows(self, at: Tensor) -> Errors:
        """The images with these indices."""
        return Errors(*(part[at] for part in self))


def train_lengths(
    tokenizer: Tokenizer,
    data: str | Dataset | Tensor,
    *,
    quality: float | None = None,
    hidden: tuple[int, ...] | None = None,
    lengths: int = LENGTHS,
    held_out: float = 0.25,
    steps: int = 2000,
    seed: int = 0,
    batch: int = 32,
    loading_workers: int = 0,
    progress: Progress = no_progress,
) -> dict[str, float]:
    """Give `tokenizer` a rate head; codes and fields stay as they are.

    data      a spec, a dataset, or uint8 images (n, 3, H, H) of the model's size. The model should
              not have been trained on them: errors are smaller on its training images
    quality   the cosine similarity that the model then encodes to by default; if not given, the one
              in its config, which is 0.9 for a model that never had a rate head
    hidden    widths of the hidden layers; by default those of `LengthHeadConfig`
    lengths   at how many lengths each image is interpreted
    held_out  share of the images that the margins are measured on
    steps     optimizer steps; 0 keeps the rate head that the model has, and only calibrates it
    progress  called with "images" or "steps", the number done and their total

    Returns metrics on the images held out: the share of the variance of the log error that the
    head explains, and at the default quality the mean length and the share of images that reach
    it, of those that can.
    """
    own = tokenizer.length_head if steps == 0 else None
    if own is not None and not isinstance(own, RateHead):
        raise needs_rate_head("steps=0")
    before = tokenizer.config.length_head
    config = LengthHeadConfig(
        kind="rate",
        hidden=hidden if own is None else before.hidden,
        quality=before.quality if quality is None else quality,
    )
    if not 0 < held_out < 1:
        raise ConfigError(f"held_out is {held_out}.", "Give a share between 0 and 1, such as 0.25.")
    source = data if isinstance(data, Tensor) else open_dataset(data)
    if len(source) < LEAST_IMAGES:
        raise TrainingError(
            f"There are {len(source)} images to fit a rate head on.",
            f"Give at least {LEAST_IMAGES}, better thousands.",
        )
    batches = image_batches(
        source,
        size=tokenizer.config.image_size,
        fit=tokenizer.config.fit,
        batch=batch,
        device=tokenizer.device,
        workers=loading_workers,
        report=warnings.warn,
    )
    tokenizer.eval()
    errors = measure(tokenizer, map(tokenizer, batches), len(source), lengths, seed, progress)
    count = len(errors.lengths)
    order = torch.randperm(count, generator=generator(seed, "held out", 0))
    held = count if own is not None else max(2, round(held_out * count))
    with seeded(seed):
        head = RateHead(
            config, field_width=tokenizer.config.teacher.width, length=tokenizer.config.max_length
        )
    if own is None:
        fit_head(head, errors.rows(order[held:]), steps=steps, seed=seed, progress=progress)
        fitted = f"rate head fitted to {count - held:,} images and calibrated on {held:,} others"
    else:
        head.load_state_dict(own.state_dict())
        fitted = f"rate head calibrated on {held:,} images"
    measured = errors.rows(order[:held])
    calibrate(head, measured)
    metrics = _metrics(head.eval(), measured)  # on the CPU, as what was measured
    tokenizer.config = replace(tokenizer.config, length_head=config)
    tokenizer.length_head = head.to(tokenizer.device)
    for stale in ("load", "metrics"):  # they are those of the model with its old head
        tokenizer.about.pop(stale, None)
    tokenizer.about["lengths"] = fitted
    return metrics


@torch.no_grad()
def measure(
    tokenizer: Tokenizer,
    encodings: Iterable[Encoding],
    images: int,
    count: int = LENGTHS,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Errors:
    """The errors of images, each at `count` random lengths of 1 to K.

    Short lengths are drawn more often, since curves bend there.
    """
    k, device = tokenizer.config.max_length, tokenizer.device
    weight = 1 / torch.arange(1, k + 1) + 2 / k
    random = generator(seed, "lengths", 0)
    found: list[Errors] = []
    done = 0
    for encoding in encodings:
        field = encoding.field * tokenizer.config.teacher.scale
        chances = weight.expand(len(field), -1)
        drawn = torch.multinomial(chances, min(count, k), generator=random)
        drawn = drawn.sort(dim=1).values + 1
        columns = []
        for lengths in drawn.to(device).unbind(1):
            active = prefix_mask(lengths, int(lengths.max()))
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                made = tokenizer.interpreter(encoding.z_q[:, : active.shape[1]], active)
            errors = [objective.cosine_error(made, field), objective.squared_error(made, field)]
            columns.append(torch.stack(errors, dim=1))
        log_errors = torch.stack(columns, dim=1).clamp(min=1e-6).log()
        found.append(Errors(pooled(field).cpu(), drawn, log_errors.cpu()))
        progress("images", done := done + len(field), images)
    return Errors(*map(torch.cat, zip(*found, strict=True)))


def fit_head(
    head: RateHead,
    errors: Errors,
    *,
    steps: int,
    seed: int = 0,
    batch: int = 256,
    progress: Progress = no_progress,
) -> None:
    """Fit a head to errors, a batch of images at a time, each with all of its lengths."""
    random = generator(seed, "rate head", 0)

    def loss_of_step(step: int) -> Tensor:
        rows = torch.randint(len(errors.lengths), (batch,), generator=random)
        at = errors.rows(rows)
        return objective.rate_loss(head.curves(at.statistics), at.lengths, at.log_errors.exp())

    fit(
        head.train().parameters(),
        loss_of_step,
        steps=steps,
        learning_rate=2e-3,
        weight_decay=0.05,
        warmup=steps // 20,
        seed=seed,
        progress=lambda step, steps: progress("steps", step, steps),
    )
    head.eval()


@torch.no_grad()
def calibrate(head: RateHead, errors: Errors) -> None:
    """Set the margins of a head from images that it was not fitted to.

    Each image needs some least margin to get a length from which on it reaches a quality. Of the
    images that can reach it, a share c needs no more than the margin for the confidence c: the
    quantile of split conformal prediction, which counts one image more than there are.
    """
    predicted = head.curves(errors.statistics.to(head.margins.device))[:, 0].cpu()
    qualities, confidences = head.qualities.cpu(), head.confidences.cpu()
    curves = _completed(predicted, errors)
    every = torch.arange(1, curves.shape[1] + 1)
    beyond = predicted.new_full((len(predicted), 1), torch.inf)
    before = torch.cat([beyond, predicted], dim=1)  # the prediction at one token less
    margins, thresholds = head.margins[0].cpu(), []
    for quality in qualities:
        wanted = (1 - quality).log()
        short = (every * (curves > wanted)).amax(dim=1)  # the last length that is too short
        able = short < len(every)
        needed = (wanted - before[able].gather(1, short[able, None])[:, 0]).sort().values
        if len(needed) >= _LEAST_REACHING:  # else they are those of the quality before
            rank = (confidences.double() * (len(needed) + 1)).ceil().long()
            margins = needed[rank.clamp(max=len(needed)) - 1].clamp(_NARROWEST, _WIDEST)
        thresholds.append(wanted - margins)
    # A higher quality never gives a shorter program.
    falling = torch.stack(thresholds).cummin(dim=0).values
    falling -= 1e-5 * torch.arange(len(falling))[:, None]
    head.margins.copy_((1 - qualities).log()[:, None] - falling)


def _completed(predicted: Tensor, errors: Errors) -> Tensor:
    """Log cosine errors at all lengths (n, K), from those at some.

    The prediction (n, K), moved by its error at the nearest measured length. Errors are not
    interpolated, which would smooth them.
    """
    every = torch.arange(1, predicted.shape[1] + 1)
    nearest = (every[:, None] - errors.lengths[:, None]).abs().argmin(dim=2)
    residual = errors.log_errors[..., 0] - predicted.gather(1, errors.lengths - 1)
    return predicted + residual.gather(1, nearest)


@torch.no_grad()
def _metrics(head: RateHead, errors: Errors) -> dict[str, float]:
    curves = head.curves(errors.statistics)
    predicted = curves[:, 0].gather(1, errors.lengths - 1)
    measured = errors.log_errors[..., 0]
    lengths = head.shortest(curves, head.quality, CONFIDENCE)
    completed = _completed(curves[:, 0], errors)
    enough = completed <= torch.tensor(1 - head.quality).log()
    reached = enough.gather(1, lengths[:, None] - 1)[:, 0]
    able = enough.any(dim=1)
    return {
        "explained": 1 - ((measured - predicted).square().mean() / measured.var()).item(),
        "quality": head.quality,
        "length_mean": lengths.float().mean().item(),
        "able": able.float().mean().item(),
        "reached": reached[able].float().mean().item() if able.any() else math.nan,
    }
