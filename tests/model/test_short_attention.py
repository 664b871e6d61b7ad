"""Attention with few queries or few keys: PyTorch's own on a CPU, the kernels' on a GPU."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from strop.model import short_attention as module
from strop.model.generator import Generator, query_visibility
from strop.model.interpreter import Interpreter, prefix_mask
from strop.model.layers import TransformerConfig
from strop.model.short_attention import short_attention

on_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and module.ENABLED), reason="no CUDA device, or no Triton"
)


class Case(NamedTuple):
    """Queries over sources and queries (`holes` False), or a grid over programs with holes."""

    queries: int
    keys: int
    holes: bool
    heads: int = 2
    width: int = 32


CASES = [
    Case(64, 320, False, heads=8),
    Case(32, 96, False),
    Case(12, 61, False, width=16),
    Case(1, 50, False),
    Case(64, 64, False, heads=1, width=64),
    Case(256, 64, True, heads=8),
    Case(64, 32, True),
    Case(49, 12, True, width=16),
    Case(130, 1, True),
    Case(300, 37, True, width=64),
    Case(20, 150, True),
]


def draw(case: Case, device: str, dtype: torch.dtype, batch: int = 3) -> tuple[Tensor, ...]:
    """q, k and v, split from the rows of linear layers, and what is visible."""
    random = torch.Generator().manual_seed(0)
    inner = case.heads * case.width
    rows = torch.randn(batch, case.queries, inner, generator=random)
    memory = torch.randn(batch, case.keys, 2 * inner, generator=random)
    q, k, v = (
        x.to(device, dtype).unflatten(-1, (case.heads, -1)).transpose(1, 2)
        for x in (rows, *memory.chunk(2, dim=-1))
    )
    visible = query_visibility(case.keys - case.queries, case.queries)
    if case.holes:
        active = torch.rand(batch, case.keys, generator=random) < 0.5
        active[:, case.keys // 2] = True
        visible = active[:, None, None]
    return q, k, v, visible.to(device)


def results(attend, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> list[Tensor]:
    """Output and gradients, in fp32 on the CPU."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = attend(q, k, v, visible)
    weight = torch.linspace(-1, 1, out[0].numel(), device=out.device).view(out[0].shape)
    return [x.float().cpu() for x in (out, *torch.autograd.grad((out * weight).sum(), (q, k, v)))]


def exact(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def assert_close(ours: list[Tensor], theirs: list[Tensor], error: float) -> None:
    """By the norm of the difference; a gradient that should vanish is judged by its size."""
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() <= error * max(other.norm(), 0.1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_cpu_computes_what_pytorch_does_bit_for_bit(case):
    inputs = draw(case, "cpu", torch.float32)
    pairs = zip(results(short_attention, *inputs), results(exact, *inputs), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shapes_are_known_without_a_gpu_and_heads_join_as_a_view(case):
    q, k, v, visible = draw(case, "meta", torch.bfloat16)
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out, _ = module._attend(q, k, v, visible[:, 0, 0] if case.holes else None)
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    for x in (out, *torch.autograd.grad(out.sum(), (q, k, v))):
        assert x.transpose(1, 2).is_contiguous()


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_kernels_compute_attention_and_its_gradients(case, dtype):
    q, k, v, visible = draw(case, "cuda", dtype)
    assert module._suits(q, k, v)
    ours = results(short_attention, q, k, v, visible)
    theirs = results(exact, q.double(), k.double(), v.double(), visible)
    assert_close(ours, theirs, 1e-2 if dtype == torch.bfloat16 else 2e-3)


@pytest.mark.gpu
@on_gpu
def test_tensors_in_other_layouts_are_taken_too():
    inputs = draw(CASES[0], "cuda", torch.bfloat16)
    copied = [x.contiguous() for x in inputs]
    assert_close(results(short_attention, *copied), results(short_attention, *inputs), 0.0)


@pytest.mark.gpu
@on_gpu
def test_what_does_not_suit_goes_to_pytorch():
    for case, dtype in [
        (CASES[0], torch.float32),
        (Case(80, 90, False), torch.bfloat16),
        (Case(16, 32, True, width=24), torch.bfloat16),
    ]:
        q, k, v, visible = draw(case, "cuda", dtype)
        assert not module._suits(q, k, v)
        short_attention(q, k, v, visible)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("case", [CASES[0], CASES[5]], ids=str)
def test_it_is_captured_in_a_cuda_graph(case):
    q, k, v, visible = draw(case, "cuda", torch.bfloat16)
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))

    def step() -> tuple[Tensor, ...]:
        out = short_attention(q, k, v, visible)
        return out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for x in (q, k, v):
            x.copy_(x.flip(0))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, step(), strict=True))


@pytest.mark.gpu
@on_gpu
def test_a_compiled_model_trains_and_probes_with_it(monkeypatch):
    sizes = {"width": 64, "depth": 2, "heads": 2, "feedforward": 128}
    torch.manual_seed(0)
    shape = {"field_width": 48, "locations": 100, "length": 24}
    generator = Generator(TransformerConfig(**sizes), **shape).cuda()
    interpreter = Interpreter(TransformerConfig(**sizes), code_width=64, **shape).cuda()
    parameters = [*generator.parameters(), *interpreter.parameters()]
    field = torch.randn(8, 100, 48, device="cuda")
    lengths = torch.arange(1, 9, device="cuda") * 3

    def step(field: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            raw = generator(field)
            loss = (interpreter(raw, prefix_mask(lengths, 24)).float() - field).square().mean()
            with torch.no_grad():
                probe = interpreter(raw.detach(), prefix_mask(lengths.flip(0), 24))
        return loss, probe

    def outcome(step) -> list[Tensor]:
        loss, probe = step(field, lengths)
        grads = torch.autograd.grad(loss, parameters)
        # All as one: some, such as those of the keys' biases, are zero but for rounding.
        flat = torch.cat([grad.flatten() for grad in grads])
        return [x.detach().float().cpu() for x in (loss, probe, flat)]

    compiled = outcome(torch.compile(step, fullgraph=True, dynamic=False))
    eager = outcome(step)
    monkeypatch.setattr(module, "ENABLED", False)
    without = outcome(step)
    assert_close(compiled, eager, 2e-2)
    assert_close(eager, without, 2e-2)
