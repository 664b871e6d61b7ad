"""One loaded model for all who ask."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.images import tensor_to_bytes
from strop.inspector.batching import Batcher
from strop.inspector.colours import Basis
from strop.model.tokenizer import Tokenizer
from strop.program import Program

Given = TypeVar("Given")
Made = TypeVar("Made")

PORTION = {"cpu": 2, "cuda": 64}
"""Programs a request hands over at once; between two such portions others have their turn. A GPU
is paid by the call, a CPU by the program."""
TOGETHER = 4
"""Portions interpreted together."""
REMEMBERED = 64
"""Encodings kept, the last ones used."""


@dataclass(frozen=True)
class Encoding:
    """What a model makes of an image.

    program    a batch of one
    predicted  the real-valued length behind the program's
    field      the teacher's, (1, S, d_enc)
    basis      the colours of that field
    """

    program: Program
    predicted: float
    field: Tensor
    basis: Basis


class Engine:
    """A tokenizer shared by many threads: what they ask at the same time runs together.

    Encodings are remembered by the image's content, which whoever asks has to know: nobody sees
    what another one sent.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.config = tokenizer.config
        self.device = tokenizer.device
        self.portion = PORTION[self.device.type]
        self._encode = Batcher(self._encode_together, TOGETHER)
        self._interpret = Batcher(self._interpret_together, TOGETHER)
        self._decode = Batcher(self._decode_together, TOGETHER)
        self._known: OrderedDict[bytes, Encoding] = OrderedDict()
        self._lock = Lock()
        # One thread for all: each would bring as many of its own as there are cores, and they would
        # take turns spinning on them.
        self._thread = ThreadPoolExecutor(1)

    @property
    def as_tokenizer(self) -> Tokenizer:
        """Itself, for studies: they ask a tokenizer for `interpret`, `config` and `device`."""
        return cast(Tokenizer, self)

    def encode(self, square: Tensor) -> Encoding:
        """Encode a uint8 image `(3, H, H)` of the model's size."""
        key = hashlib.sha256(square.numpy().tobytes()).digest()
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        made = self._encode(square)
        with self._lock:
            self._known[key] = made
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return made

    def interpret(self, program: Program, *, batch: int = 256) -> Tensor:
        """Programs to fields `(B, S, d_enc)`, a portion at a time."""
        rows = program.as_batch().to(self.device)
        # All of one width, so that portions of different requests can be joined.
        room = self.config.max_length - rows.capacity
        if room > 0:
            rows = replace(
                rows, codes=F.pad(rows.codes, (0, room)), erased=F.pad(rows.erased, (0, room))
            )
        step = min(batch, self.portion)
        # One program alone is what somebody drags or edits; many are a study.
        urgent = len(rows) == 1
        parts = [self._interpret(rows[i : i + step], urgent) for i in range(0, len(rows), step)]
        return torch.cat(parts)

    def decode(self, field: Tensor) -> Tensor | None:
        """A field `(1, S, d_enc)` to uint8 pixels `(3, H, H)`, if the model can."""
        return None if self.tokenizer.decoder is None else self._decode(field)

    def _encode_together(self, squares: list[Tensor]) -> list[Encoding]:
        teacher, head = self.tokenizer.teacher, self.tokenizer.length_head
        with _outputs(teacher) as fields, _outputs(head) as predicted:
            program = self._compute(self.tokenizer.encode, torch.stack(squares))
        whole, lengths = torch.cat(fields).float(), torch.cat(predicted)
        return [
            Encoding(
                program=program[row : row + 1],
                predicted=lengths[row].item(),
                field=whole[row : row + 1],
                basis=Basis.of(whole[row]),
            )
            for row in range(len(squares))
        ]

    def _interpret_together(self, programs: list[Program]) -> list[Tensor]:
        field = self._compute(self.tokenizer.interpret, Program.cat(programs))
        return list(field.split([len(program) for program in programs]))

    def _decode_together(self, fields: list[Tensor]) -> list[Tensor]:
        return list(tensor_to_bytes(self._compute(self.tokenizer.decode, torch.cat(fields))))

    def _compute(self, work: Callable[[Given], Made], given: Given) -> Made:
        return self._thread.submit(work, given).result()


@contextmanager
def _outputs(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collects what a module returns: the teacher runs once for the field and the program."""
    made: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        made.append(output)

    handle = module.register_forward_hook(keep)
    try:
        yield made
    finally:
        handle.remove()
