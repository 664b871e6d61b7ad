"""Devices and the precision of products."""

from __future__ import annotations

import pytest
import torch

from strop.device import exact_products


def settings() -> tuple[str, str]:
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision


def test_exact_products_are_not_tf32_and_settings_come_back():
    before = settings()
    assert before[1] == "tf32", "what torch does by default"
    with exact_products():
        assert settings() == ("ieee", "ieee")
    assert settings() == before
    torch.set_float32_matmul_precision("high")
    try:
        with exact_products():
            assert settings() == ("ieee", "ieee")
        assert settings()[0] == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_fp32_on_a_gpu_gives_the_codes_of_a_cpu(make_tokenizer, images):
    exact = make_tokenizer()
    expected = exact.encode(images, length="max").codes
    fast = make_tokenizer().to("cuda")
    fast.precision = "fp32"
    assert torch.equal(fast.encode(images, length="max").codes.cpu(), expected)
