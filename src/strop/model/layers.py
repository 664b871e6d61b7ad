"""The two pieces that generator and interpreter share."""

from __future__ import annotations

from torch import Tensor, nn


class FeedForward(nn.Sequential):
    """Position-wise `width -> hidden -> width` with GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`(B, N, d)` to `(B, heads, N, d / heads)`, as a view."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """`(B, heads, N, d / heads)` back to `(B, N, d)`."""
    return x.transpose(1, 2).flatten(2)


def initialise(module: nn.Module) -> None:
    """Normal weights that keep the variance, and zero biases, for every linear layer inside.

    A fixed small spread (0.02, as ViTs have it) would start narrow models on a plateau on which
    all raw tokens are nearly one point, so that commitment and diversity have nothing to say.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=part.in_features**-0.5)
            nn.init.zeros_(part.bias)
