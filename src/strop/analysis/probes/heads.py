"""The heads that probes train. Fields are read per location, tokens through learned queries.

Section 4, "Supervised downstream probes".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.analysis.probes.protocol import Head
from strop.model.interpreter import Interpreter
from strop.model.layers import TransformerConfig


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

    @property
    def width(self) -> int:
        """d_c."""
        return self.vectors.shape[-1]

    def shuffled(self, seed: int) -> Tokens:
        """The active tokens of each image in a random order."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.rand(self.active.shape, generator=generator).to(self.active.device)
        order = torch.where(self.active, noise, 2.0).argsort(dim=1)  # inactive tokens stay last
        index = order[..., None].expand_as(self.vectors)
        return replace(
            self, vectors=self.vectors.gather(1, index), active=self.active.gather(1, order)
        )


Representation = Tensor | Tokens
"""A field (N, S, d), or tokens."""


class Readout(nn.Module):
    """Channel dropout, batch norm, linear: (B, S, d) to (B, S, C)."""

    def __init__(self, width: int, outputs: int, head: Head) -> None:
        super().__init__()
        self.dropout = head.dropout
        self.norm = nn.BatchNorm1d(width)
        self.linear = nn.Linear(width, outputs)
        nn.init.normal_(self.linear.weight, std=head.weight_std)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, d) to (B, S, C)."""
        if self.dropout:  # whole channels of an image, as in Dropout2d
            x = x * F.dropout(x.new_ones(len(x), 1, x.shape[-1]), self.dropout, self.training)
        return self.linear(self.norm(x.flatten(0, 1))).unflatten(0, x.shape[:2])

    @torch.no_grad()
    def weights(self) -> Tensor:
        """(C, d): batch norm and linear layer as one linear map."""
        assert self.norm.running_var is not None
        return (
            self.linear.weight * self.norm.weight / (self.norm.running_var + self.norm.eps).sqrt()
        )


class FieldReader(nn.Module):
    """The field itself, or its mean over locations if `pooled`."""

    def __init__(self, width: int, pooled: bool) -> None:
        super().__init__()
        self.width, self.pooled = width, pooled

    def forward(self, field: Tensor) -> Tensor:
        """(B, S, d) to itself, or to (B, 1, d)."""
        return field.float().mean(dim=1, keepdim=True) if self.pooled else field.float()


class QueryReader(nn.Module):
    """The paper's attention pooling: one learned query per location attends to the active vectors.

    Keys and values are the vectors themselves: the queries and the following linear layer would
    absorb linear maps of them.
    """

    def __init__(self, width: int, locations: int, head: Head) -> None:
        super().__init__()
        self.width = width
        self.queries = nn.Parameter(torch.randn(locations, width) * head.query_std)

    def forward(self, tokens: Tokens) -> Tensor:
        """Tokens of B images to (B, S, d_c)."""
        vectors = tokens.vectors.float()
        queries = self.queries.expand(len(vectors), -1, -1)
        visible = tokens.active[:, None, :]
        return F.scaled_dot_product_attention(queries, vectors, vectors, visible, scale=1.0)


class InterpreterReader(nn.Module):
    """A new interpreter; if not `ordered`, one without prefix positions, which reads a set."""

    def __init__(
        self, width: int, length: int, locations: int, config: TransformerConfig, ordered: bool
    ) -> None:
        super().__init__()
        self.width = config.width
        self.interpreter = Interpreter(
            config,
            code_width=width,
            field_width=config.width,
            locations=locations,
            length=length,
        )
        if not ordered:
            nn.init.zeros_(self.interpreter.prefix_positions).requires_grad_(False)

    def forward(self, tokens: Tokens) -> Tensor:
        """Tokens of B images to (B, S, d)."""
        field: Tensor = self.interpreter(tokens.vectors.float(), tokens.active)
        return field


class Probe(nn.Module):
    """A reader followed by batch norm and a linear layer.

    weight_decay  the one that it was trained with
    """

    weight_decay = 0.0

    def __init__(self, reader: nn.Module, outputs: int, head: Head) -> None:
        super().__init__()
        self.reader = reader
        width = reader.width
        assert isinstance(width, int)
        self.readout = Readout(width, outputs, head)
        slow = head.interpreter_rate if isinstance(reader, InterpreterReader) else 1.0
        self.rates: dict[nn.Module, float] = {self.reader: slow, self.readout: 1.0}

    def forward(self, representation: Representation) -> Tensor:
        """A batch of fields or tokens to (B, S, C); S is 1 for pooled probes."""
        return self.readout(self.reader(representation))


def make_probe(
    representation: Representation,
    outputs: int,
    head: Head,
    *,
    locations: int,
    sequence: bool = False,
) -> Probe:
    """A new probe for a representation; with one location it is pooled."""
    reader: nn.Module
    if isinstance(representation, Tensor):
        reader = FieldReader(representation.shape[-1], pooled=locations == 1)
    elif sequence or not head.pooling:
        length = representation.vectors.shape[1]
        reader = InterpreterReader(
            representation.width, length, locations, head.interpreter, ordered=sequence
        )
    else:
        reader = QueryReader(representation.width, locations, head)
    return Probe(reader, outputs, head)
