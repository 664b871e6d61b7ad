"""Recorded functions return and change the same as called functions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from strop.recorded import WARM_STEPS, Recorded

STEPS = WARM_STEPS + 5


def stepped(device: torch.device, *, recorded: bool) -> tuple[list[float], nn.Linear]:
    """Losses of a small regression, and the trained layer."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, capturable=device.type == "cuda")

    def step(x: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = (layer(x) - x.sum(1, keepdim=True)).square().mean() * rate
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = Recorded(step, device)
    run.recording = run.recording and recorded
    random = torch.Generator().manual_seed(1)
    losses = []
    for number in range(STEPS):
        x = torch.randn(8, 4, generator=random).to(device)
        losses.append(run(x, torch.tensor(1.0 + number, device=device)).item())
    return losses, layer


def test_without_a_gpu_the_function_is_called():
    losses, layer = stepped(torch.device("cpu"), recorded=True)
    assert len(set(losses)) == STEPS
    assert layer.weight.isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_replayed_steps_equal_called_ones():
    device = torch.device("cuda")
    (replayed, one), (called, other) = (stepped(device, recorded=each) for each in (True, False))
    assert replayed == pytest.approx(called, rel=1e-5)
    assert torch.allclose(one.weight, other.weight, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_capture_that_a_forbidden_call_breaks_is_tried_again():
    device = torch.device("cuda")
    x = torch.ones(4, device=device)
    attempts = []

    def double(x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            attempts.append(1)
            if len(attempts) < 2:
                torch.cuda.current_stream().synchronize()  # forbidden during a capture
        return 2 * x

    run = Recorded(double, device)
    for _ in range(STEPS):
        assert torch.equal(run(x), 2 * x)
    assert run.recorded
    assert len(attempts) == 2
