"""A fitted baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

_CHUNK = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Code:
    """A fitted code: `interpret` encodes fields (B, S, d_enc) and decodes them again.

    Its results are on the device that it was fitted on.

    bits     bits per image, at most the budget
    setting  how the bits are used, in words
    """

    name: str
    bits: float
    setting: str
    interpret: Callable[[Tensor], Tensor]

    def pairs(self, fields: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Decoded fields with the fields (n, S, d_enc) themselves, in chunks."""
        for chunk in fields.split(_CHUNK):
            made = self.interpret(chunk)
            yield made, chunk.to(made.device)
