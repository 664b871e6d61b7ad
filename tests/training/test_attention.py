"""The context without cuDNN attention, and that it restores the setting."""

from __future__ import annotations

import pytest
import torch
from tiny_training import tiny_fields, tiny_preset

from strop.model import short_attention
from strop.model.layers import TransformerConfig
from strop.model.teacher import TeacherConfig
from strop.model.tokenizer import TokenizerConfig
from strop.training.attention import attended, sound_attention
from strop.training.callbacks import Callback
from strop.training.loop import train


@pytest.mark.parametrize(("locations", "kept"), [(64, False), (192, False), (256, True), (4, True)])
def test_cudnn_is_left_out_where_half_a_tile_is_left_over(locations, kept):
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with sound_attention(locations):
        assert torch.backends.cuda.cudnn_sdp_enabled() == (before and kept)
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def config(*, k: int = 64, heads: int = 8) -> TokenizerConfig:
    """Of the paper's shape, 64 locations at 128 px; the heads are 32 wide by default."""
    return TokenizerConfig(
        teacher=TeacherConfig(name="dinov3-s", width=384),
        image_size=128,
        max_length=k,
        generator=TransformerConfig(heads=heads),
        interpreter=TransformerConfig(heads=heads),
    )


def test_keys_count_where_our_kernel_is_not_used(monkeypatch):
    monkeypatch.setattr(short_attention, "ENABLED", True)
    assert attended(config()) == [64]
    assert attended(config(heads=2)) == [64, 128, 64]  # no kernel for so wide a head
    assert attended(config(k=192)) == [64, 256]  # of 192 queries; few locations read as many keys
    monkeypatch.setattr(short_attention, "ENABLED", False)
    assert attended(config(k=32)) == [64, 96, 32]


def test_a_run_is_inside_the_context(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", asked.append)

    class Recorder(Callback):
        def on_log(self, run, metrics):
            asked.append("step")

    train(tiny_preset(), tiny_fields(60), callbacks=[Recorder()])
    assert asked[0] is True  # 4 locations
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
    with sound_attention(64):
        torch.nn.functional.scaled_dot_product_attention(*leaves).float().square().sum().backward()
    assert all(each.grad.isfinite().all() for each in leaves)
