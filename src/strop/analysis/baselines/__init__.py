"""Simpler codes of equal bits. A tokenizer that does not beat them has learned little.

Every baseline is fitted on fields that are not measured, spends at most the budget on each image
at a fixed rate, and gets the mean field of the fitted images for free. If there are several
layouts, the best one on a slice of the fitted fields is used.

mean-field  no bits: the mean over images at each location
kmeans      a VQ grid: square blocks of locations, each with one code, or with several codes of a
            residual quantizer if a block has more bits than one codebook can use
pca-K       K principal coefficients of the field; bits are allocated to minimise the error, and
            each coefficient has the optimal scalar quantizer of a normal variable
random      an untrained tokenizer of the same shape with a codebook of tokens of the fitted images;
            ridge regression maps its interpreted fields to the teacher's
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from strop.analysis.baselines.code import Code
from strop.analysis.baselines.kmeans import kmeans
from strop.analysis.baselines.pca import pca
from strop.analysis.baselines.untrained import untrained
from strop.errors import DataError
from strop.model.tokenizer import TokenizerConfig

LEAST_IMAGES = 16


def check_enough(images: int) -> None:
    """Refuse to fit baselines on too few images."""
    if images < LEAST_IMAGES:
        raise DataError(
            f"There are {images} images to fit the baselines on.",
            f"Give at least {LEAST_IMAGES}; a thousand make a fair comparison.",
        )


def fit_baselines(
    fields: Tensor,
    bits: float,
    *,
    config: TokenizerConfig,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> list[Code]:
    """All baselines of at most `bits` per image, fitted on fields (n, S, d_enc).

    An eighth of the fields is held out to choose between layouts. `config` is that of the model
    that they are compared with.
    """
    check_enough(len(fields))
    fields = fields.to(device, torch.float32)
    mean = fields.mean(dim=0)
    around = fields - mean
    held = len(fields) // 8
    fitted, choosing = around[held:], around[:held]

    def best(candidates: list[Code]) -> list[Code]:
        """The candidate with the lowest error, as a code of fields that are not centred."""
        chosen = min(candidates, key=lambda each: _error(each, choosing), default=None)
        return [] if chosen is None else [_uncentred(chosen, mean)]

    return [
        Code(
            name="mean-field",
            bits=0.0,
            setting="the mean over the fitted images at each location",
            interpret=lambda chunk: mean.expand(chunk.shape),
        ),
        *best(kmeans(fitted, bits, seed=seed)),
        *best(pca(fitted, choosing, bits)),
        *untrained(fields, mean, bits, config, seed=seed),
    ]


def _uncentred(code: Code, mean: Tensor) -> Code:
    return replace(code, interpret=lambda chunk: code.interpret(chunk.to(mean) - mean) + mean)


def _error(code: Code, fields: Tensor) -> float:
    return sum((made - true).square().sum().item() for made, true in code.pairs(fields))
