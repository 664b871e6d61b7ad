"""An untrained tokenizer of the same shape: what the architecture gives without learning."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from strop.analysis.baselines.code import Code
from strop.analysis.subject import encode_fields
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.random import seeded

MOST_IMAGES = 256
RIDGE = 1e-2


@torch.no_grad()
def untrained(
    fields: Tensor, mean: Tensor, bits: float, config: TokenizerConfig, *, seed: int
) -> list[Code]:
    """A code of at most `bits` with a read-out fitted on fields (n, S, d_enc), if a token fits in.

    All images have the same length. The codebook is placed on tokens, as in the first step of
    training; otherwise most images would have the same program.
    """
    length = min(config.max_length, int(bits / math.log2(config.quantizer.codes)))
    if length < 1:
        return []
    fields = fields[:MOST_IMAGES]
    with seeded(seed):
        tokenizer = Tokenizer(replace(config, decoder=None)).to(fields.device).eval()
        uniform = torch.rand(config.quantizer.codes).to(fields.device)
    tokenizer.quantizer.begin(tokenizer.generator(fields[:64] * config.teacher.scale), uniform)

    def guess(chunk: Tensor) -> Tensor:
        program = encode_fields(tokenizer, chunk).with_lengths(length)
        return tokenizer.interpret(program)

    made = torch.cat([guess(chunk) for chunk in fields.split(64)])
    guessed = made.mean(dim=0)
    x, y = (made - guessed).flatten(0, 1), (fields - mean).flatten(0, 1)
    gram = (x.T @ x).double()
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram)).to(gram)
    readout = torch.linalg.solve(gram + ridge, (x.T @ y).double()).float()

    return [
        Code(
            name="random",
            bits=length * math.log2(config.quantizer.codes),
            setting=f"{length} codes of an untrained tokenizer, linear read-out",
            interpret=lambda chunk: mean + (guess(chunk) - guessed) @ readout,
        )
    ]
