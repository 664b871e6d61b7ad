"""Attention in which either queries or keys are few, with a kernel of its own on NVIDIA GPUs.

The few stay on the chip while the many go by, so that forward and backward are one kernel each that
reads and writes every tensor once. PyTorch's kernels are made for long sequences and leave such
shapes waiting (`benchmarks/attention.py`); they serve wherever ours do not fit.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTHS = (16, 32, 64)  # of heads
FEW = 64  # the block a kernel works on; the least that Hopper's matrix units take whole
REGISTERS = 168  # a thread: a little fewer than the compiler would take, so that three blocks fit
ENABLED = find_spec("triton") is not None  # benchmarks switch it off to compare


def short_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Queries `(B, heads, n, width)` over keys and values `(B, heads, m, width)`, to the first's
    shape.

    `visible` is either `query_visibility(m - n, n)`, `(n, m)`, or says by image which keys exist,
    `(B, 1, 1, m)` bool. Every query sees at least one key.
    """
    if not _suits(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    active = visible[:, 0, 0] if visible.ndim == 4 else None
    out: Tensor = _attend(q, k, v, active)[0]
    return out


def serves(queries: int, keys: int, width: int) -> bool:
    """Whether there is a kernel for heads of `width`, on a GPU and in half precision."""
    return ENABLED and width in WIDTHS and min(queries, keys) <= FEW


def _suits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return (
        q.is_cuda
        and q.dtype == k.dtype == v.dtype
        and q.dtype in (torch.bfloat16, torch.float16)
        and serves(q.shape[2], k.shape[2], q.shape[3])
    )


# Two operators, opaque to torch.compile, which then lays out what is around them as usual.


@torch.library.custom_op("strop::short_attention", mutates_args=())
def _attend(q: Tensor, k: Tensor, v: Tensor, active: Tensor | None) -> tuple[Tensor, Tensor]:
    """The output, and for the way back log2 of each query's sum of 2^score, `(B, heads, n)`."""
    from strop.model import short_attention_kernels as kernels

    q, k, v = (_heads_side_by_side(x) for x in (q, k, v))
    (batch, heads, n, width), m = q.shape, k.shape[2]
    out, lse = _allocate(q, k, v, active)
    with torch.cuda.device_of(q):
        kernels.forward[(-(-n // FEW) * batch * heads,)](
            q, k, v, _bytes(active), out, lse,
            *_strides(q, k, v), heads, n, m, width**-0.5, width, FEW,
            num_warps=4, num_stages=1 if m <= FEW else 3,
        )  # fmt: skip
    return out, lse


@_attend.register_fake
def _allocate(q: Tensor, k: Tensor, v: Tensor, active: Tensor | None) -> tuple[Tensor, Tensor]:
    return _empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("strop::short_attention_backward", mutates_args=())
def _attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, active: Tensor | None, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v from that of `out`."""
    from strop.model import short_attention_kernels as kernels

    grad, q, k, v = (_heads_side_by_side(x) for x in (grad, q, k, v))
    (batch, heads, n, width), m = q.shape, k.shape[2]
    grads = _empty_like(q), _empty_like(k), _empty_like(v)
    few_keys = m <= FEW
    kernel = kernels.backward_few_keys if few_keys else kernels.backward_few_queries
    read = (lse,) if few_keys else (out, lse)
    with torch.cuda.device_of(q):
        kernel[(batch * heads,)](
            q, k, v, _bytes(active), *read, grad, *grads,
            *_strides(q, k, v, grad), heads, n, m, width**-0.5, width, FEW,
            num_warps=4, num_stages=2, maxnreg=REGISTERS if width <= 32 else None,
        )  # fmt: skip
    return grads


@_attend_backward.register_fake
def _allocate_grads(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_like(q), _empty_like(k), _empty_like(v)


def _remember(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *_attend_backward(grad, *ctx.saved_tensors), None


_attend.register_autograd(_differentiate, setup_context=_remember)


def _empty_like(x: Tensor) -> Tensor:
    """As x `(B, heads, N, width)`, laid out so that joining the heads afterwards is a view."""
    batch, heads, count, width = x.shape
    return x.new_empty(batch, count, heads, width).transpose(1, 2)


def _heads_side_by_side(x: Tensor) -> Tensor:
    """x itself if its heads were split from a row, as they are after a linear layer."""
    if x.stride(3) == 1 and x.stride(1) == x.shape[3]:
        return x
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _strides(*tensors: Tensor) -> list[int]:
    return [x.stride(dimension) for x in tensors for dimension in (0, 2)]


def _bytes(active: Tensor | None) -> Tensor | None:
    return None if active is None else active.contiguous().view(torch.uint8)
