"""A linear layer and GELU, in one product on a GPU in half precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear_gelu(x: Tensor, layer: nn.Module) -> Tensor:
    """GELU of `layer(x)`, a linear layer of `x` `(B, T, d)`.

    If the weights are in half precision, as the GPU's engine has them, cuBLASLt computes both at
    once, GELU by its approximation with tanh. That differs by less than half precision rounds.
    """
    assert isinstance(layer, nn.Linear)
    weight, bias = layer.weight, layer.bias
    half = weight.dtype in (torch.float16, torch.bfloat16)
    if half and bias is not None and x.is_cuda and not torch.is_grad_enabled():
        return _linear_gelu(x.to(weight.dtype), weight, bias)
    return F.gelu(layer(x))


# An operator of its own: torch.compile would take it apart.


@torch.library.custom_op("strop::linear_gelu", mutates_args=())
def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = torch._addmm_activation(bias, x.flatten(0, -2), weight.T, use_gelu=True)
    return out.view(*x.shape[:-1], len(weight))


@_linear_gelu.register_fake
def _allocate(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))
