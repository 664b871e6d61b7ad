"""A linear layer with GELU: PyTorch's own on a CPU, one product on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from strop.model.linear_gelu import linear_gelu


def layer_and_tokens(device: str, dtype: torch.dtype) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.Linear(64, 256).to(device, dtype)
    return layer, 2 * torch.randn(3, 17, 64, device=device)


def test_on_a_cpu_it_is_the_layer_and_gelu():
    layer, x = layer_and_tokens("cpu", torch.float32)
    assert torch.equal(linear_gelu(x, layer), F.gelu(layer(x)))
    half = layer.bfloat16()
    assert torch.equal(linear_gelu(x.bfloat16(), half), F.gelu(half(x.bfloat16())))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_it_differs_by_less_than_rounding(dtype, compiled):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    layer, x = layer_and_tokens("cuda", dtype)
    function = torch.compile(linear_gelu, fullgraph=True) if compiled else linear_gelu
    with torch.no_grad():
        found = function(x, layer)
        exact = F.gelu(F.linear(x.to(dtype).double(), layer.weight.double(), layer.bias.double()))
    assert found.dtype == dtype
    rounding = torch.finfo(dtype).eps * exact.abs()
    assert ((found.double() - exact).abs() <= rounding + 1e-3).all()


@pytest.mark.gpu
def test_with_gradients_it_is_the_layer_and_gelu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    layer, x = layer_and_tokens("cuda", torch.float16)
    linear_gelu(x.half(), layer).sum().backward()
    assert layer.weight.grad is not None
