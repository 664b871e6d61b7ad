"""The pixels suite: how like the image the decoder's preview is."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

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
        "values": {name: each.value for name, each in found.items()},
        "intervals": {name: [each.low, each.high] for name, each in found.items()},
        **note,
    }
