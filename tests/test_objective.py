"""Each loss against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from strop import objective
from strop.curriculum import scaled
from strop.errors import ConfigError
from strop.objective import (
    ObjectiveConfig,
    commitment,
    cosine_error,
    diversity,
    diversity_warmup,
    latent_alignment,
    length_loss,
    rate_loss,
    squared_error,
)


def test_latent_alignment_is_one_minus_mean_cosine_plus_mse_per_sample():
    target = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[3.0, 4.0], [1.0, 0.0]]])
    predicted = torch.tensor([[[1.0, 0.0], [2.0, 0.0]], [[3.0, 4.0], [-1.0, 0.0]]])
    # sample 0: cosines 1 and 0, mean .5; squared differences 0 0 4 4 over 4 numbers: 2
    # sample 1: cosines 1 and -1, mean 0; squared differences 0 0 4 0: 1
    expected = torch.tensor([1 - 0.5 + 2.0, 1 - 0.0 + 1.0])
    assert torch.allclose(latent_alignment(predicted, target), expected)
    assert torch.allclose(cosine_error(predicted, target), torch.tensor([0.5, 1.0]))
    assert torch.allclose(squared_error(predicted, target), torch.tensor([2.0, 1.0]))


def test_latent_alignment_of_equal_fields_is_zero():
    field = torch.randn(3, 5, 7)
    assert torch.allclose(latent_alignment(field, field), torch.zeros(3), atol=1e-6)


def test_commitment_sums_channels_and_averages_active_tokens():
    z = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [1.0, 0.0]]], requires_grad=True)
    code = torch.tensor([[[0.0, 1.0], [0.0, -1.0]], [[0.6, 0.8], [0.0, 1.0]]], requires_grad=True)
    active = torch.tensor([[True, False], [True, True]])
    # active distances: 1 + 1 = 2, 0, 1 + 1 = 2; the inactive one (4) counts nowhere
    loss = commitment(z, code, active)
    assert loss.item() == pytest.approx(4 / 3)
    loss.backward()
    assert code.grad is None
    assert torch.equal(z.grad[0, 1], torch.zeros(2))
    assert torch.allclose(z.grad[0, 0], torch.tensor([2 / 3, -2 / 3]))


def test_diversity_against_numbers_worked_by_hand():
    # temperature .1: softmax of (1, 0, 0, 0) / .1 is (e^10, 1, 1, 1) / (e^10 + 3)
    similarity = torch.tensor([[[1.0, 0, 0, 0], [0.0, 1, 0, 0]]])
    first = math.exp(10) / (math.exp(10) + 3)
    rest = 1 / (math.exp(10) + 3)

    def lost(p: list[float]) -> float:
        return 1 + sum(x * math.log(x) for x in p) / math.log(4)

    both = torch.tensor([[True, True]])
    one = torch.tensor([[True, False]])
    halves = [(first + rest) / 2, (first + rest) / 2, rest, rest]
    assert diversity(similarity, both, 0.1).item() == pytest.approx(lost(halves), abs=1e-6)
    assert diversity(similarity, one, 0.1).item() == pytest.approx(
        lost([first, rest, rest, rest]), abs=1e-6
    )


def test_diversity_is_zero_when_all_codes_are_used_alike():
    # Over the batch, not per position: each position uses a single code, the batch all four.
    similarity = torch.eye(4)[:, None, :] * 2
    active = torch.ones(4, 1, dtype=torch.bool)
    assert diversity(similarity, active, 0.1).item() == pytest.approx(0.0, abs=1e-6)


def test_diversity_pushes_towards_unused_codes():
    similarity = torch.tensor([[[0.5, 0.4]], [[0.5, 0.4]]], requires_grad=True)
    diversity(similarity, torch.ones(2, 1, dtype=torch.bool), 0.1).backward()
    assert (similarity.grad[..., 0] > 0).all()
    assert (similarity.grad[..., 1] < 0).all()


def test_length_loss_stops_at_the_target():
    predicted = torch.tensor([16.0, 40.0], requires_grad=True)
    target = torch.tensor([32.0, 24.0], requires_grad=True)
    loss = length_loss(predicted, target, 64)
    assert loss.item() == pytest.approx((0.25**2 + 0.25**2) / 2)
    loss.backward()
    assert target.grad is None
    assert predicted.grad.tolist() == pytest.approx([-0.25 / 64, 0.25 / 64])


def test_rate_loss_compares_log_errors_at_the_active_lengths():
    curves = torch.zeros(2, 2, 3)
    curves[0, :, 1] = torch.tensor([-1.0, -4.0])  # length 2
    curves[1, :, 2] = torch.tensor([-2.0, 0.5])  # length 3
    curves.requires_grad_()
    errors = torch.tensor([[math.exp(-1.5), math.exp(-1.0)], [math.exp(-2.0), 1.0]])
    errors = errors.requires_grad_()
    # distances .5, 3, 0, .5; smooth L1: .125, 2.5, 0, .125
    loss = rate_loss(curves, torch.tensor([2, 3]), errors)
    assert loss.item() == pytest.approx(2.75 / 4, abs=1e-5)
    loss.backward()
    assert errors.grad is None
    expected = torch.zeros(2, 2, 3)
    expected[0, :, 1], expected[1, :, 2] = torch.tensor([0.5, -1.0]), torch.tensor([0.0, 0.5])
    assert torch.allclose(curves.grad, expected / 4, atol=1e-4)
    assert rate_loss(curves, torch.tensor([1, 1]), torch.zeros(2, 2)).isfinite()


def test_shares_of_two_processes_sum_to_the_whole_batch(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4, 3, 2, generator=generator)
    code = torch.randn(4, 3, 2, generator=generator)
    similarity = torch.randn(4, 3, 5, generator=generator)
    active = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]], dtype=torch.bool)
    whole_z, whole_s = z.clone().requires_grad_(), similarity.clone().requires_grad_()
    (commitment(whole_z, code, active) + diversity(whole_s, active, 0.1)).backward()

    soft = torch.softmax(similarity / 0.1, -1)
    totals = {5: (soft * active[..., None]).sum((0, 1)), 1: active.float().sum()}

    # What an all-reduce would answer.
    monkeypatch.setattr(objective, "summed", lambda value: totals[value.numel()])
    half_z, half_s = z.clone().requires_grad_(), similarity.clone().requires_grad_()
    for rows in (slice(0, 2), slice(2, 4)):
        share = commitment(half_z[rows], code[rows], active[rows])
        share = share + diversity(half_s[rows], active[rows], 0.1)
        share.backward()
    assert torch.allclose(whole_z.grad, half_z.grad, atol=1e-7)
    assert torch.allclose(whole_s.grad, half_s.grad, atol=1e-7)


def test_diversity_warmup_is_linear_and_scales_with_the_run():
    config = ObjectiveConfig()
    assert [diversity_warmup(config, s) for s in (0, 20_000, 40_000, 90_000)] == [0, 0.5, 1, 1]
    short = scaled(config, 5_000)
    assert short.diversity_warmup == 400
    assert diversity_warmup(short, 100) == 0.25
    assert diversity_warmup(ObjectiveConfig(diversity_warmup=0), 0) == 1


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ConfigError, match="diversity_temperature"):
        ObjectiveConfig(diversity_temperature=0.0)
