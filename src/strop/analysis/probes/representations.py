"""The frozen representations of a model that are probed, and two floors.

constant          nothing: the same prediction everywhere
place             the location, and nothing of the image
teacher           the teacher's field
latent            the interpreted field of the program
program           the active code vectors z_q, read by queries as an unordered set
raw               the same tokens before quantization, read in the same way: the gap from `raw` to
                  `program` is the loss of quantization, that from `latent` to `raw` of the reader
program-sequence  the active code vectors in order, read by a small interpreter
program-shuffled  its control: the same interpreter, the codes of each image in a random order
"""

from __future__ import annotations

import torch
from torch import Tensor

from strop.analysis.probes.heads import Representation, Tokens
from strop.analysis.subject import Subject
from strop.model.tokenizer import Tokenizer
from strop.program import Program

FLOORS = ("constant", "place")
NAMES = (*FLOORS, "teacher", "latent", "program", "raw", "program-sequence", "program-shuffled")
SEQUENCES = ("program-sequence", "program-shuffled")
DIFFERENCES = (
    ("latent", "program-sequence"),
    ("program", "constant"),
    ("program", "place"),
    ("raw", "program"),
    ("program-sequence", "program-shuffled"),
)
"""Pairs whose difference is reported: what a reader of tokens misses, what a set of codes tells
beyond no input and beyond the place, what rounding to codes costs, and what their order carries."""
_CHUNK = 256


def representations(subject: Subject, seed: int) -> dict[str, Representation]:
    """Every representation of a subject's images, on the CPU; fields in half precision."""
    key = f"representations {seed}"
    if key not in subject.cache:
        tokens = code_vectors(subject.tokenizer, subject.program)
        locations = subject.fields.shape[1]
        subject.cache[key] = {
            **floors(len(subject), locations),
            "teacher": subject.fields.half(),
            "latent": interpreted(subject.tokenizer, subject.program),
            "program": tokens,
            "raw": Tokens(subject.z, tokens.active),
            "program-sequence": tokens,
            "program-shuffled": tokens.shuffled(seed),
        }
    found: dict[str, Representation] = subject.cache[key]
    return found


def floors(images: int, locations: int) -> dict[str, Tensor]:
    """What a probe without the image sees: nothing (n, S, 1), or the location (n, S, S)."""
    return {
        "constant": torch.zeros(1, locations, 1).expand(images, -1, -1),
        "place": torch.eye(locations).expand(images, -1, -1),
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
