"""Pixels: the similarity of the decoder's previews to the images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from strop.analysis.findings import Findings
from strop.analysis.frame import Analysis
from strop.analysis.lpips import LPIPS
from strop.analysis.panels import picture_grid
from strop.analysis.subject import Subject
from strop.errors import ModelError
from strop.figures import Figure, show_image
from strop.statistics import bootstrap
from strop.training.decoder_training import ssim

SHOWN = 6
_CHUNK = 32


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of pixels.

    lpips  the file of LPIPS weights; without it, LPIPS is left out
    seed   of the intervals
    """

    lpips: str = ""
    seed: int = 0


def check(subject: Subject, options: Options) -> None:
    """Refuse a model without a decoder."""
    if subject.tokenizer.decoder is None:
        raise ModelError(
            "This model has no pixel decoder to measure.",
            "Train one with `strop train-decoder MODEL`.",
        )


def ssim_of_mean(batches: Sequence[Tensor]) -> float:
    """SSIM of the mean of all images, uint8 batches (b, 3, H, H), used as the preview of each.

    This is the floor: SSIM of smooth images is high for any other smooth image.
    """
    count = sum(map(len, batches))
    total = sum((batch.double().sum(dim=0) for batch in batches), torch.zeros(()))
    mean = (total / count / 255).float()
    return sum(ssim(mean.expand(b.shape), b.float() / 255).sum().item() for b in batches) / count


@torch.no_grad()
def run(subject: Subject, options: Options) -> Findings:
    """SSIM of previews and images, and LPIPS if there are weights."""
    tokenizer, images, program = subject.tokenizer, subject.records.images, subject.program
    lpips = LPIPS.load(options.lpips, tokenizer.device) if options.lpips else None
    rows: dict[str, list[float]] = {"ssim": [], **({"lpips": []} if lpips else {})}
    shown = []
    for start in range(0, len(images), _CHUNK):
        made = tokenizer.decode(tokenizer.interpret(program[start : start + _CHUNK]))
        true = images[start : start + _CHUNK].to(made.device).float() / 255
        rows["ssim"] += ssim(made, true).tolist()
        if lpips is not None:
            rows["lpips"] += lpips(made, true).tolist()
        if start == 0:
            shown = [(true[row], made[row]) for row in range(min(SHOWN, len(made)))]
        subject.progress("previews", min(start + _CHUNK, len(images)), len(images))
    found = {name: bootstrap(np.mean, each, seed=options.seed) for name, each in rows.items()}
    return Findings(
        numbers={
            "images": len(images),
            "values": {
                **{name: each.value for name, each in found.items()},
                "ssim_mean_image": ssim_of_mean(images.split(_CHUNK)),
            },
            "intervals": {name: [each.low, each.high] for name, each in found.items()},
        },
        figures={"previews": draw(shown)},
        notes=() if lpips else ("LPIPS needs weights, which were not given: see --lpips.",),
    )


def draw(pairs: Sequence[tuple[Tensor, Tensor]]) -> Figure:
    """Images (3, H, H) above their previews."""
    return picture_grid(
        [
            [partial(show_image, image=pair[row], title=title) for pair in pairs]
            for row, title in enumerate(("image", "preview"))
        ]
    )


ANALYSIS = Analysis(
    run=run, options=Options, roles=("codes", "fields", "lengths", "pictures"), check=check
)
