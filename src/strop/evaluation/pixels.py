"""The pixels suite: how like the image the decoder's preview is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.errors import ModelError
from strop.evaluation.context import Context
from strop.evaluation.lpips import LPIPS
from strop.figures import new_figure, save_figure, show_image
from strop.model.tokenizer import Tokenizer
from strop.statistics import bootstrap
from strop.training.decoder import ssim

SHOWN = 6
_CHUNK = 32


def check(tokenizer: Tokenizer, protocol: str) -> None:
    """Refuse a model without a decoder."""
    if tokenizer.decoder is None:
        raise ModelError(
            "This model has no pixel decoder to measure.",
            "Train one with `strop train-decoder MODEL`.",
        )


def ssim_of_mean(batches: Sequence[Tensor]) -> float:
    """SSIM of the mean of all images, uint8 batches (b, 3, H, H), shown for each of them.

    Smooth images have much in common with any other, so that SSIM has a high floor on them.
    """
    count = sum(map(len, batches))
    total = sum((batch.double().sum(dim=0) for batch in batches), torch.zeros(()))
    mean = (total / count / 255).float()
    return sum(ssim(mean.expand(b.shape), b.float() / 255).sum().item() for b in batches) / count


@torch.no_grad()
def run(context: Context) -> dict[str, Any]:
    """The suite; without LPIPS weights that figure is left out, and a note says so."""
    tokenizer, val = context.tokenizer, context.val
    lpips = LPIPS.load(context.lpips).to(tokenizer.device) if context.lpips else None
    rows: dict[str, list[float]] = {"ssim": [], **({"lpips": []} if lpips else {})}
    shown = []
    for start in range(0, len(val), _CHUNK):
        made = tokenizer.decode(tokenizer.interpret(val.program[start : start + _CHUNK]))
        true = val.images[start : start + _CHUNK].to(made.device).float() / 255
        rows["ssim"] += ssim(made, true).tolist()
        if lpips is not None:
            rows["lpips"] += lpips(made, true).tolist()
        if start == 0:
            shown = [(true[row], made[row]) for row in range(min(SHOWN, len(made)))]
        context.progress("pictures")(min(start + _CHUNK, len(val)), len(val))
    figure = new_figure(1.6 * len(shown), 3.4)
    for column, pair in enumerate(shown):
        for row, (image, title) in enumerate(zip(pair, ("image", "preview"), strict=True)):
            axes = figure.add_subplot(2, len(shown), 1 + column + row * len(shown))
            show_image(axes, image, title if column == 0 else "")
    save_figure(figure, context.folder / "pixels.png")
    found = {name: bootstrap(np.mean, each, seed=context.seed) for name, each in rows.items()}
    note = {} if lpips else {"note": "LPIPS needs weights, which were not given: see --lpips."}
    return {
        "images": len(val),
        "values": {
            **{name: each.value for name, each in found.items()},
            "ssim_mean_image": ssim_of_mean(val.images.split(_CHUNK)),
        },
        "intervals": {name: [each.low, each.high] for name, each in found.items()},
        **note,
    }
