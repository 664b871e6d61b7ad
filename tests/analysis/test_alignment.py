"""Alignment: figures against strop.metrics, torchmetrics, scipy and hand-worked values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop import metrics
from strop.agreement import agree
from strop.analysis import usage
from strop.analysis.alignment import align, evaluate_model
from strop.analysis.subject import encode_fields
from strop.errors import DataError, ModelError
from strop.metrics import effective_rank
from strop.program import Program


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def program_of(codes, lengths, size):
    return Program(codes=torch.tensor(codes), lengths=torch.tensor(lengths), codebook_size=size)


# Agreement.


@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 5))
def test_chunks_add_up_to_the_metrics_of_the_whole(images, chunk, seed):
    target = 3 + 2 * draw(images, 4, 5, seed=seed) + draw(5, seed=99)
    predicted = target + 0.5 * draw(images, 4, 5, seed=seed + 50)
    pairs = zip(predicted.split(chunk), target.split(chunk), strict=True)
    scores = agree(pairs).scores()
    assert scores["r2"] == pytest.approx(metrics.r2(predicted, target).item(), rel=1e-5)
    expected = metrics.r2_centred(predicted, target).item()
    assert scores["r2_centred"] == pytest.approx(expected, rel=1e-5)
    assert scores["cosine"] == pytest.approx(metrics.cosine(predicted, target).item(), rel=1e-5)
    rmse = (predicted - target).square().mean().sqrt().item()
    assert scores["rmse"] == pytest.approx(rmse, rel=1e-5)


def test_r2_matches_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics.functional")
    target = draw(6, 9, 4) + torch.tensor([5.0, 0, -2, 1])
    predicted = target + 0.3 * draw(6, 9, 4, seed=1)
    scores = agree([(predicted, target)]).scores()
    flat = torchmetrics.r2_score(predicted.flatten(), target.flatten())
    assert scores["r2"] == pytest.approx(flat.item(), rel=1e-4)
    channels = torchmetrics.r2_score(
        predicted.flatten(0, 1), target.flatten(0, 1), multioutput="variance_weighted"
    )
    assert scores["r2_centred"] == pytest.approx(channels.item(), rel=1e-4)


def test_a_field_that_does_not_vary_has_no_r2():
    target = torch.full((3, 4, 5), 0.7)
    scores = agree([(target + 1, target)]).scores()
    assert math.isnan(scores["r2"])
    assert math.isnan(scores["r2_centred"])
    assert scores["rmse"] == pytest.approx(1, rel=1e-5)


def test_channels_that_do_not_vary_have_only_the_plain_r2():
    target = torch.tensor([1.0, -1.0]).expand(3, 4, 2)
    scores = agree([(target, target)]).scores()
    assert scores["r2"] == 1
    assert math.isnan(scores["r2_centred"])


def test_one_image_has_figures_and_an_interval_of_no_width():
    target = draw(1, 4, 5)
    found = agree([(target + 0.1, target)])
    low, high = found.intervals()["r2"]
    assert low == pytest.approx(high) == pytest.approx(found.scores()["r2"])


def test_intervals_hold_the_figure_and_follow_the_seed():
    target = draw(30, 4, 5)
    found = agree([(target + 0.3 * draw(30, 4, 5, seed=1), target)])
    first, again, other = (found.intervals(seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    for name, value in found.scores().items():
        low, high = first[name]
        assert low < value < high


# Codebook, lengths, bits, rank.


def test_codebook_by_hand():
    # Active: 0 0 1 1 (of four codes), the 3 lies behind the length.
    program = program_of([[0, 0, 3], [1, 1, 3]], [2, 2], 4)
    found = usage.codebook(program)
    assert found["codebook_used"] == 50
    assert found["perplexity"] == pytest.approx(2)
    assert found["codebook_effective"] == pytest.approx(50)


def test_erased_tokens_are_not_used():
    program = program_of([[0, 1, 2]], [3], 4).erase(1)
    assert usage.codebook(program)["codebook_used"] == 50


@pytest.mark.parametrize(("width", "times"), [(384, 4915), (768, 9830), (1024, 13107)])
def test_compression_is_the_papers(width, times):
    """DINO-S, DINO-B, DINO-L at 256 px: 64 codes of 1024 are 640 bits."""
    program = program_of([list(range(64))], [64], 1024)
    found = usage.bits(program, locations=256, width=width)
    assert found["bits_most"] == found["bits_fixed_rate"] == 640
    assert int(found["compression_least"]) == int(found["compression"]) == times


def test_bits_by_hand():
    program = program_of([[0, 1, 0, 0], [0, 1, 1, 0]], [2, 4], 16)
    found = usage.bits(program, locations=4, width=8)
    assert found["bits_fixed_rate"] == 3 * 4
    assert found["bits_entropy"] == pytest.approx(3 * 1)  # three of each code: one bit a token
    assert found["compression"] == pytest.approx(4 * 8 * 32 / 12)


def test_lengths_by_hand():
    fields = torch.stack([torch.zeros(4, 2), torch.tensor([[1.0, 0], [-1, 0], [1, 0], [-1, 0]])])
    program = program_of([[0] * 6] * 2, [2, 6], 4)
    found = usage.lengths(program, fields)
    assert (found["length_mean"], found["length_spread"]) == (4, 2)
    assert (found["length_least"], found["length_most"]) == (2, 6)
    assert found["length_detail_correlation"] == pytest.approx(1)
    assert usage.histogram(program) == [0, 1, 0, 0, 0, 1]


def test_effective_rank_counts_equal_directions():
    patches = torch.cat([torch.eye(3), -torch.eye(3)]) * 2 + 7
    fields = torch.nn.functional.pad(patches, (0, 4)).unflatten(0, (2, 3))
    assert effective_rank(fields) == pytest.approx(3, rel=1e-6)


def test_effective_rank_of_unequal_directions_by_hand():
    spread = torch.tensor([3.0, 1.0])
    patches = torch.cat([torch.diag(spread), -torch.diag(spread)])
    share = np.array([0.75, 0.25])
    expected = math.exp(-(share * np.log(share)).sum())
    assert effective_rank(patches[None]) == pytest.approx(expected, rel=1e-6)


def test_a_constant_field_has_no_rank():
    assert math.isnan(effective_rank(torch.full((2, 3, 4), 0.3)))


# The whole.


@pytest.fixture(scope="module")
def measured(tokenizer):
    fields, fit = 0.5 * draw(20, 16, 192), 0.5 * draw(40, 16, 192, seed=1)
    return fields, evaluate_model(tokenizer, fields, fit=fit)


def test_the_figures_are_those_of_the_library(tokenizer, measured):
    fields, found = measured
    program = encode_fields(tokenizer, fields)
    made = tokenizer.interpret(program)
    assert found["values"]["r2"] == pytest.approx(metrics.r2(made, fields).item(), rel=1e-4)
    assert found["values"]["cosine"] == pytest.approx(metrics.cosine(made, fields).item(), abs=1e-6)
    mean = fields.mean(0).expand_as(fields)
    floor = metrics.r2_centred(mean, fields).item()
    assert found["values"]["r2_centred_mean_field"] == pytest.approx(floor, abs=1e-6)
    assert sum(found["length_histogram"]) == found["images"] == len(fields)


def test_both_budgets_are_compared_and_the_margin_is_to_the_best(measured):
    _, found = measured
    own, most = found["budgets"]
    assert own["bits"] <= most["bits"] == 12 * 6
    for budget in (own, most):
        best = max(each["r2"] for each in budget["baselines"].values())
        assert budget["margin"]["r2"] == pytest.approx(budget["model"]["r2"] - best)
        assert all(each["bits"] <= budget["bits"] for each in budget["baselines"].values())
    assert found["values"]["margin_r2"] == own["margin"]["r2"]


def test_fields_of_another_teacher_are_refused(tokenizer):
    with pytest.raises(ModelError, match="random:tiny"):
        evaluate_model(tokenizer, draw(4, 16, 384))


def test_without_fields_to_fit_on_there_are_no_baselines(tokenizer):
    fields = draw(3, 16, 192)
    found = align(tokenizer, fields, encode_fields(tokenizer, fields))
    assert "budgets" not in found


def test_too_little_to_fit_on_is_refused(tokenizer):
    with pytest.raises(DataError):
        evaluate_model(tokenizer, draw(3, 16, 192), fit=draw(3, 16, 192))
