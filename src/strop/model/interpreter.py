"""The interpreter of Section 2.1: the active codes of a program in, a patch field out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from strop.model.layers import AttentionLayer, TransformerConfig, initialise
from strop.model.short_attention import short_attention


class Interpreter(nn.Module):
    """Learned grid queries, one per location, that read the program by cross-attention.

    `locations` is S, `length` is K.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        code_width: int,
        field_width: int,
        locations: int,
        length: int,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(code_width, config.width)
        self.prefix_positions = nn.Parameter(torch.empty(length, config.width))
        self.grid = nn.Parameter(torch.empty(locations, config.width))
        self.layers = nn.ModuleList(
            InterpreterLayer(config.width, config.heads, config.feedforward)
            for _ in range(config.depth)
        )
        self.norm_out = nn.LayerNorm(config.width)
        self.project = nn.Linear(config.width, field_width)

        initialise(self, self.prefix_positions, self.grid)

    def forward(self, z_q: Tensor, active: Tensor) -> Tensor:
        """Code vectors `(B, L, d_c)`, L at most K, to the field `(B, S, d_enc)`.

        `active` `(B, L)` bool marks those that are read; the others have no effect. Each row needs
        at least one.
        """
        program = self.embed_program(z_q)
        grid = self.grid.to(program.dtype).expand(z_q.shape[0], -1, -1)
        visible = active[:, None, None, :]
        for layer in self.layers:
            grid = layer(grid, program, visible)
        return self.project(self.norm_out(grid))

    def embed_program(self, z_q: Tensor) -> Tensor:
        """Code vectors `(B, L, d_c)` to the memory `(B, L, d)` that the grid queries read."""
        return self.embed(z_q) + self.prefix_positions[: z_q.shape[1]]


class InterpreterLayer(AttentionLayer):
    """Attention to a memory, which is not normed, and feed-forward."""

    def forward(self, x: Tensor, memory: Tensor, visible: Tensor) -> Tensor:
        """`x` `(B, N, d)` reads `memory` `(B, L, d)` where `visible` `(B, 1, 1, L)` allows."""
        normed = self.norm_attention(x)
        k, v = self.keys_and_values(memory)
        return self.conclude(x, short_attention(self.queries(normed), k, v, visible))


def prefix_mask(lengths: Tensor, length: int) -> Tensor:
    """`(B,)` lengths to `(B, length)` bool: True at the first `lengths[b]` positions of row b."""
    return torch.arange(length, device=lengths.device) < lengths[:, None]
