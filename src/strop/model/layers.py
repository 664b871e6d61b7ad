"""What the layers of generator and interpreter share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from strop.model.linear_gelu import linear_gelu


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Size of the generator or of the interpreter, which are alike in every preset of the paper."""

    width: int = 256
    depth: int = field(default=8, metadata={"above": 0, "max": 256})
    heads: int = 8
    feedforward: int = 1024


class AttentionLayer(nn.Module):
    """The parts of a pre-norm layer: one attention, one feed-forward. Who attends to what is the
    business of the classes that derive from it."""

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm_feedforward = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(
            nn.Linear(width, feedforward), nn.GELU(), nn.Linear(feedforward, width)
        )

    def queries(self, x: Tensor) -> Tensor:
        """`(B, N, d)` to queries `(B, heads, N, d / heads)`."""
        return self._split(self.q(x))

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`(B, N, d)` to keys and values, each `(B, heads, N, d / heads)`."""
        keys, values = self.kv(x).chunk(2, dim=-1)
        return self._split(keys), self._split(values)

    def conclude(self, x: Tensor, *attended: Tensor) -> Tensor:
        """Add to x `(B, N, d)` what was attended, and feed forward.

        `attended` are consecutive parts of N, each `(B, heads, n, d / heads)`.
        """
        # Heads are joined first: that is a view, and leaves at most one copy.
        joined = [part.transpose(1, 2).flatten(2) for part in attended]
        x = x + self.out(joined[0] if len(joined) == 1 else torch.cat(joined, dim=1))
        up, _, down = self.feedforward
        return x + down(linear_gelu(self.norm_feedforward(x), up))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def hidden_layers(widths: Sequence[int]) -> list[nn.Module]:
    """Linear layers from each width to the next, each followed by a GELU."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU()]
    return layers


def initialise(module: nn.Module, *tables: nn.Parameter) -> None:
    """Normal weights that keep the variance, and zero biases, for every linear layer inside.

    Tables of queries and positions start near the scale of what they are added to: much smaller
    ones drown in the first attention, and all queries then write the same token.

    A fixed small spread (0.02, as ViTs have it) would start narrow models on a plateau on which
    all raw tokens are nearly one point, so that commitment and diversity have nothing to say.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=part.in_features**-0.5)
            nn.init.zeros_(part.bias)
    for table in tables:
        nn.init.trunc_normal_(table, std=0.5, a=-1.0, b=1.0)
