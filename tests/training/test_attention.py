"""The context without cuDNN attention, and that it restores the setting."""

from __future__ import annotations

import pytest
import torch
from tiny_training import tiny_fields, tiny_preset

from strop.device import sound_attention
from strop.training.callbacks import Callback
from strop.training.loop import train


def test_cudnn_is_left_out():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with sound_attention():
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_a_run_is_inside_the_context(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", asked.append)

    class Recorder(Callback):
        def on_log(self, run, metrics):
            asked.append("step")

    train(tiny_preset(), tiny_fields(60), callbacks=[Recorder()])
    assert asked[0] is False
    assert "step" in asked[1:-1]
    assert asked[-1] is True


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_gradients_are_numbers_where_all_scores_are_low():
    random = torch.Generator("cuda").manual_seed(0)
    q, k, v = torch.randn(
        3, 4, 8, 64, 32, device="cuda", dtype=torch.bfloat16, generator=random
    ).unbind()
    q, k = 0.1 * q, 0.1 * k
    q[..., 0], k[..., 0] = 1.0, -120 * 32**0.5
    leaves = [each.detach().requires_grad_() for each in (q, k, v)]
    with sound_attention():
        torch.nn.functional.scaled_dot_product_attention(*leaves).float().square().sum().backward()
    assert all(each.grad.isfinite().all() for each in leaves)
