"""Borrowed generators: the numbers of the seed, and the caller's as they were."""

from __future__ import annotations

import pytest
import torch

from strop.random import seeded


def test_the_block_draws_by_its_seed_and_the_caller_is_unaffected():
    torch.manual_seed(5)
    of_five = torch.rand(2)
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    with seeded(5):
        assert torch.equal(torch.rand(2), of_five)
    assert torch.equal(torch.rand(2), expected)


def test_the_caller_is_unaffected_also_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="oh"), seeded(5):
        raise ValueError("oh")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_gpu_not_yet_in_use_is_left_no_seed(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with seeded(5):
        pass
    assert not seeds


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpus_generator_is_seeded_and_given_back():
    torch.cuda.manual_seed(5)
    of_five = torch.rand(2, device="cuda")
    torch.cuda.manual_seed(7)
    expected = torch.rand(2, device="cuda")
    torch.cuda.manual_seed(7)
    with seeded(5):
        assert torch.equal(torch.rand(2, device="cuda"), of_five)
    assert torch.equal(torch.rand(2, device="cuda"), expected)
