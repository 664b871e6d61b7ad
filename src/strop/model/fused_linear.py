"""Linear layers with what stands before and after them, in one kernel on NVIDIA GPUs.

In inference a layer of a transformer is five kernels instead of a dozen, and the stream of tokens
is read and written once in each. Training, CPUs and fp32 use PyTorch's own operators.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.model.short_attention import ENABLED

STEP = 64  # channels that a kernel reads at a time

# Rows from which a tile is used: rows and columns of the tile, warps, stages of its pipeline.
TILES = {0: (32, 64, 4, 4), 2048: (64, 128, 4, 3), 16384: (128, 128, 8, 3)}


class Normed:
    """Tokens `(B, T, d)` whose LayerNorm is left to the kernels that read them."""

    def __init__(self, x: Tensor, norm: nn.LayerNorm) -> None:
        self.x, self.norm = x, norm

    def __getitem__(self, index: tuple[slice, ...]) -> Normed:
        return Normed(self.x[index], self.norm)


def normed(x: Tensor, norm: nn.LayerNorm, *layers: nn.Linear) -> Tensor | Normed:
    """The norm of tokens `(B, T, d)`, for `linear` with these layers."""
    return Normed(x, norm) if all(_suits(x, layer) for layer in layers) else norm(x)


def linear(
    x: Tensor | Normed,
    layer: nn.Linear,
    *,
    rotation: Tensor | None = None,
    gelu: bool = False,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """`layer(x)` for tokens `(B, T, d)`, and what comes after it, in this order.

    rotation  cosines and sines `(2, T, d_head / 2)`, by which a layer that computes queries, keys
              and values rotates the first two
    gelu      the activation
    scale     factors of the channels
    residual  what is added
    """
    if isinstance(x, Normed):
        weight, bias, epsilon = x.norm.weight, x.norm.bias, x.norm.eps
        return _linear(
            x.x, layer.weight, layer.bias, weight, bias, epsilon, rotation, gelu, scale, residual
        )
    if _suits(x, layer):
        return _linear(
            x, layer.weight, layer.bias, None, None, 0.0, rotation, gelu, scale, residual
        )
    out = layer(x)
    if rotation is not None:
        out = _rotated(out, *rotation.unsqueeze(2))
    if gelu:
        out = F.gelu(out)
    if residual is None:
        return out if scale is None else out * scale
    return residual + (out if scale is None else out * scale)


def _suits(x: Tensor, layer: nn.Linear) -> bool:
    half = layer.weight.dtype in (torch.float16, torch.bfloat16)
    divides = layer.in_features % STEP == 0
    return ENABLED and half and divides and x.is_cuda and not torch.is_grad_enabled()


def _rotated(out: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Queries, keys and values `(B, T, 3 d)`, the first two rotated by `(T, 1, d_head / 2)`."""
    width = out.shape[-1] // 3
    turned = out[..., : 2 * width].unflatten(-1, (-1, 2 * cosine.shape[-1]))
    first, second = turned.chunk(2, dim=-1)
    parts = (first * cosine - second * sine, second * cosine + first * sine)
    turned = torch.cat(parts, dim=-1).flatten(-2).to(out.dtype)
    return torch.cat((turned, out[..., 2 * width :]), dim=-1)


@torch.library.custom_op("strop::linear", mutates_args=())
def _linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    epsilon: float,
    rotation: Tensor | None,
    gelu: bool,
    scale: Tensor | None,
    residual: Tensor | None,
) -> Tensor:
    from strop.model import fused_linear_kernel as kernel

    x = x.contiguous()
    out = _allocate(x, weight, residual)
    residual = None if residual is None else residual.contiguous()
    (n, k), m = weight.shape, x.numel() // x.shape[-1]
    rows, columns, warps, stages = TILES[max(least for least in TILES if least <= m)]
    half = 1 if rotation is None else rotation.shape[-1]
    with torch.cuda.device_of(x):
        kernel.linear[(-(-m // rows) * -(-n // columns),)](
            x, weight, bias, gamma, beta, scale, residual, rotation, out,
            m, n, x.shape[-2], n // 3 * 2, epsilon,
            k, half, gelu, rows, columns, STEP,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return out


@_linear.register_fake
def _allocate_like(x: Tensor, weight: Tensor, *others: object) -> Tensor:
    return _allocate(x, weight, others[-1])  # type: ignore[arg-type]


def _allocate(x: Tensor, weight: Tensor, residual: Tensor | None) -> Tensor:
    """The stream keeps the type of its numbers; what is inside a layer has that of the weights."""
    dtype = weight.dtype if residual is None else residual.dtype
    return x.new_empty(*x.shape[:-1], len(weight), dtype=dtype)
