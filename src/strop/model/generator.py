"""The program generator of Section 2.1: a patch field in, K raw tokens in causal order out."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.model.layers import AttentionLayer, TransformerConfig, initialise
from strop.model.short_attention import short_attention


class Generator(nn.Module):
    """An encoder-only transformer over `[sources; queries]`; the query outputs are the program.

    `locations` is S, `length` is K.
    """

    def __init__(
        self, config: TransformerConfig, *, field_width: int, locations: int, length: int
    ) -> None:
        super().__init__()
        self.norm_in = nn.LayerNorm(field_width)
        self.project = nn.Linear(field_width, config.width)
        self.source_positions = nn.Parameter(torch.empty(locations, config.width))
        self.queries = nn.Parameter(torch.empty(length, config.width))
        self.prefix_positions = nn.Parameter(torch.empty(length, config.width))
        self.layers = nn.ModuleList(
            GeneratorLayer(config.width, config.heads, config.feedforward)
            for _ in range(config.depth)
        )
        self.norm_out = nn.LayerNorm(config.width)
        self.register_buffer("visible", query_visibility(locations, length), persistent=False)
        self.visible: Tensor

        initialise(self, self.source_positions, self.queries, self.prefix_positions)

    def forward(self, field: Tensor) -> Tensor:
        """Field `(B, S, d_enc)` to raw tokens `(B, K, d)`."""
        sources = self.project(self.norm_in(field)) + self.source_positions
        queries = (self.queries + self.prefix_positions).expand(field.shape[0], -1, -1)
        x = torch.cat([sources, queries.to(sources.dtype)], dim=1)
        for layer in self.layers[:-1]:
            x = layer(x, self.visible)
        # Only the query outputs are kept, so the last layer computes nothing else.
        last = cast(GeneratorLayer, self.layers[-1])
        return self.norm_out(last.queries_only(x, self.visible))


class GeneratorLayer(AttentionLayer):
    """Pre-norm attention and feed-forward over `[sources; queries]`.

    Attention is two calls instead of one big mask: sources over sources, which needs no mask, and
    queries over everything, which needs only `K x (S + K)` of one. A source therefore cannot see
    a query, and no later query can leak into an earlier one through the sources.
    """

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """`(B, S + K, d)` to the same; `visible` is `query_visibility(S, K)`."""
        sources = x.shape[1] - len(visible)
        normed = self.norm_attention(x)
        q, (k, v) = self.queries(normed), self.keys_and_values(normed)
        over_sources = F.scaled_dot_product_attention(
            q[:, :, :sources], k[:, :, :sources], v[:, :, :sources]
        )
        over_all = short_attention(q[:, :, sources:], k, v, visible)
        return self.conclude(x, over_sources, over_all)

    def queries_only(self, x: Tensor, visible: Tensor) -> Tensor:
        """What `forward` gives for the queries, `(B, K, d)`, without computing the rest."""
        sources = x.shape[1] - len(visible)
        normed = self.norm_attention(x)
        q, (k, v) = self.queries(normed[:, sources:]), self.keys_and_values(normed)
        return self.conclude(x[:, sources:], short_attention(q, k, v, visible))


def query_visibility(locations: int, length: int) -> Tensor:
    """`(K, S + K)` bool: query k sees every source and the queries up to and including itself."""
    return torch.ones(length, locations + length, dtype=torch.bool).tril(diagonal=locations)
