"""The heads that probes train. Fields are read per location, tokens through learned queries.

Section 4, "Supervised downstream probes".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.model.interpreter import Interpreter
from strop.model.layers import TransformerConfig

WEIGHT_STD = 0.01
READER = TransformerConfig(width=96, depth=2, heads=4, feedforward=384)
"""The size of the interpreter that reads tokens."""
READER_RATE = 0.1
"""The factor on its learning rate: it needs a lower one than a linear layer."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokens of images: vectors (N, K, d_c), and a mask of active tokens, (N, K) bool."""

    vectors: Tensor
    active: Tensor

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: Tensor | slice) -> Tokens:
        return Tokens(self.vectors[rows], self.active[rows])

    def to(self, device: torch.device | str) -> Tokens:
        """The same tokens on another device."""
        return Tokens(self.vectors.to(device), self.active.to(device))

    @property
    def nbytes(self) -> int:
        """The memory that the vectors take."""
        return self.vectors.nbytes

    def shuffled(self, seed: int) -> Tokens:
        """The active tokens of each image in a random order."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.rand(self.active.shape, generator=generator).to(self.active.device)
        order = torch.where(self.active, noise, 2.0).argsort(dim=1)  # inactive tokens stay last
        index = order[..., None].expand_as(self.vectors)
        return Tokens(self.vectors.gather(1, index), self.active.gather(1, order))


Representation = Tensor | Tokens
"""A field (N, S, d), or tokens."""


class Readout(nn.Module):
    """Batch norm, linear: (B, S, d) to (B, S, C)."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.linear = nn.Linear(width, outputs)
        nn.init.normal_(self.linear.weight, std=WEIGHT_STD)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, d) to (B, S, C)."""
        return self.linear(self.norm(x.flatten(0, 1))).unflatten(0, x.shape[:2])


class FieldReader(nn.Module):
    """The field itself, or its mean over locations if `pooled`."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.pooled = pooled

    def forward(self, field: Tensor) -> Tensor:
        """(B, S, d) to itself, or to (B, 1, d)."""
        return field.float().mean(dim=1, keepdim=True) if self.pooled else field.float()


class QueryReader(nn.Module):
    """The paper's attention pooling: one learned query per location attends to the active vectors.

    Keys and values are the vectors themselves: the queries and the following linear layer would
    absorb linear maps of them.
    """

    def __init__(self, width: int, locations: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(locations, width))

    def forward(self, tokens: Tokens) -> Tensor:
        """Tokens of B images to (B, S, d_c)."""
        vectors = tokens.vectors.float()
        queries = self.queries.expand(len(vectors), -1, -1)
        visible = tokens.active[:, None, :]
        return F.scaled_dot_product_attention(queries, vectors, vectors, visible, scale=1.0)


class InterpreterReader(nn.Module):
    """A new interpreter; if not `ordered`, one without prefix positions, which reads a set."""

    def __init__(self, width: int, length: int, locations: int, ordered: bool) -> None:
        super().__init__()
        self.interpreter = Interpreter(
            READER, code_width=width, field_width=READER.width, locations=locations, length=length
        )
        if not ordered:
            nn.init.zeros_(self.interpreter.prefix_positions).requires_grad_(False)

    def forward(self, tokens: Tokens) -> Tensor:
        """Tokens of B images to (B, S, d)."""
        field: Tensor = self.interpreter(tokens.vectors.float(), tokens.active)
        return field


class Probe(nn.Module):
    """A reader followed by batch norm and a linear layer.

    width         d of what the reader gives
    weight_decay  the one that it was trained with
    """

    weight_decay = 0.0

    def __init__(self, reader: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.reader, self.readout = reader, Readout(width, outputs)

    def forward(self, representation: Representation) -> Tensor:
        """A batch of fields or tokens to (B, S, C); S is 1 for pooled probes."""
        return self.readout(self.reader(representation))

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer."""
        slow = READER_RATE if isinstance(self.reader, InterpreterReader) else 1.0
        return [
            {"params": list(self.reader.parameters()), "lr": slow * learning_rate},
            {"params": list(self.readout.parameters())},
        ]


def make_probe(
    representation: Representation,
    outputs: int,
    *,
    locations: int,
    sequence: bool = False,
    pooling: bool = True,
) -> Probe:
    """A new probe for a representation; with one location it is pooled.

    sequence  whether tokens are read in order, by an interpreter
    pooling   whether sets of tokens are pooled by attention, or read by an interpreter too
    """
    if isinstance(representation, Tensor):
        return Probe(FieldReader(locations == 1), representation.shape[-1], outputs)
    length, width = representation.vectors.shape[1:]
    if pooling and not sequence:
        return Probe(QueryReader(width, locations), width, outputs)
    reader = InterpreterReader(width, length, locations, ordered=sequence)
    return Probe(reader, READER.width, outputs)
