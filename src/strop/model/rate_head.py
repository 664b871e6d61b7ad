"""The rate head: the expected error of a program at every length, from the pooled field."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RateHead(nn.Module):
    """Log of the expected cosine error and squared error at lengths 1 to K, falling in k."""

    def __init__(self, *, field_width: int, length: int, hidden: int = 64) -> None:
        super().__init__()
        self.length = length
        self.mlp = nn.Sequential(
            nn.Linear(2 * field_width, hidden), nn.GELU(), nn.Linear(hidden, 2 * length)
        )

    def forward(self, field: Tensor) -> Tensor:
        """Field `(B, S, d_enc)` to log errors `(B, 2, K)`, float32."""
        pooled = torch.cat([field.mean(1), field.std(1)], dim=1)
        steps = self.mlp(pooled).float().unflatten(1, (2, self.length))
        first, rest = steps[..., :1], nn.functional.softplus(steps[..., 1:] - 3)
        return torch.cat([first, first - rest.cumsum(-1)], dim=-1)
