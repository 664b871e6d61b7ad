"""The frozen representations of a model that are probed.

teacher           the teacher's field
latent            the interpreted field of the program
program           the active code vectors z_q, read by queries: a set, without order
raw               the same tokens before quantization, read in the same way: what `program` loses to
                  it is lost to rounding, what `raw` loses to `latent` is lost to the reading
program-sequence  the active code vectors in order, read by a small transformer
program-shuffled  its control: the same transformer, each image's codes in a random order
"""

from __future__ import annotations

import torch
from torch import Tensor

from strop.evaluation.features import Features
from strop.evaluation.probes.heads import Representation, Tokens
from strop.model.tokenizer import Tokenizer
from strop.program import Program

NAMES = ("teacher", "latent", "program", "raw", "program-sequence", "program-shuffled")
SEQUENCES = ("program-sequence", "program-shuffled")
_CHUNK = 256


def represent(tokenizer: Tokenizer, features: Features, seed: int) -> dict[str, Representation]:
    """Every representation of a dataset's images, on the CPU; fields in half precision."""
    program = features.program
    tokens = code_vectors(tokenizer, program)
    return {
        "teacher": features.fields.half(),
        "latent": interpreted(tokenizer, program),
        "program": tokens,
        "raw": Tokens(features.raw, tokens.active),
        "program-sequence": tokens,
        "program-shuffled": tokens.shuffled(seed),
    }


def interpreted(tokenizer: Tokenizer, program: Program) -> Tensor:
    """Programs to their fields (N, S, d_enc), float16 on the CPU."""
    parts = [
        tokenizer.interpret(program[start : start + _CHUNK]).half().cpu()
        for start in range(0, len(program), _CHUNK)
    ]
    return torch.cat(parts)


def code_vectors(tokenizer: Tokenizer, program: Program) -> Tokens:
    """The code vectors of programs, on the CPU."""
    vectors = tokenizer.quantizer.vectors(program.codes.to(tokenizer.device))
    return Tokens(vectors.detach().cpu(), program.active.cpu())
