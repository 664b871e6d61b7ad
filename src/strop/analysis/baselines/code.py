"""A baseline once it is fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

_CHUNK = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Code:
    """A fitted code: `interpret` writes fields (B, S, d_enc) as codes and reads them back.

    What it gives is on the device that it was fitted on.

    bits     what one image costs, at most the budget
    setting  how the bits are spent, in words
    """

    name: str
    bits: float
    setting: str
    interpret: Callable[[Tensor], Tensor]

    def pairs(self, fields: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """What it makes of fields (n, S, d_enc), beside them, chunk by chunk."""
        for chunk in fields.split(_CHUNK):
            made = self.interpret(chunk)
            yield made, chunk.to(made.device)
