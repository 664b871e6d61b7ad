"""Rate control: a budget met to the token, and a quality met by the shortest prefix."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.errors import ProgramError
from strop.model.length_rule import (
    allocated_lengths,
    hull_savings,
    lengths_for_mean,
    shortest_within,
    verified_lengths,
)

K = 64
PREDICTED = st.lists(st.floats(0, K, width=32), min_size=1, max_size=40).map(torch.tensor)


@settings(max_examples=200)
@given(predicted=PREDICTED, mean=st.floats(1, K))
def test_the_mean_is_met_to_the_token_and_the_order_is_kept(predicted, mean):
    lengths = lengths_for_mean(predicted, mean, K)
    assert lengths.dtype == torch.int64
    assert lengths.min() >= 1
    assert lengths.max() <= K
    assert abs(int(lengths.sum()) - mean * len(predicted)) <= 0.5 + 1e-9
    by_prediction = lengths[predicted.argsort(stable=True)]
    distinct = predicted.sort().values.diff() > 1e-3
    assert (by_prediction.diff()[distinct] >= 0).all()


@pytest.mark.parametrize("mean", [1, 1.5, 16, 63.9, 64])
def test_a_budget_at_either_end_is_met(mean):
    predicted = torch.tensor([0.0, 1e-6, 3.0, 20.0, 63.999, 64.0])
    assert int(lengths_for_mean(predicted, mean, K).sum()) == round(6 * mean)


def test_images_that_want_more_get_more():
    lengths = lengths_for_mean(torch.tensor([4.0, 16.0, 40.0]), 24, K)
    assert lengths[0] < lengths[1] < lengths[2]
    assert lengths.sum() == 72


@pytest.mark.parametrize("mean", [0, 0.99, 64.01, float("nan"), float("inf")])
def test_a_mean_outside_one_and_k_is_refused(mean):
    with pytest.raises(ProgramError, match=r"mean length .* Give a mean length from 1 to 64"):
        lengths_for_mean(torch.tensor([3.0]), mean, K)


def test_the_shortest_length_within_tolerance_of_the_best():
    errors = torch.tensor([[0.9, 0.5, 0.2, 0.1, 0.15], [0.3, 0.31, 0.3, 0.29, 0.3]])
    assert shortest_within(errors, 0.0).tolist() == [4, 4]
    assert shortest_within(errors, 0.1001).tolist() == [3, 1]
    assert shortest_within(errors, 10.0).tolist() == [1, 1]


@settings(max_examples=100)
@given(
    errors=st.lists(
        st.lists(st.floats(0, 2, width=32), min_size=6, max_size=6), min_size=1, max_size=5
    ).map(torch.tensor),
    tolerances=st.lists(st.floats(0, 2), min_size=2, max_size=6).map(sorted),
)
def test_more_tolerance_never_gives_a_longer_program(errors, tolerances):
    lengths = torch.stack([shortest_within(errors, tolerance) for tolerance in tolerances])
    assert (lengths.diff(dim=0) <= 0).all()
    for tolerance, row in zip(tolerances, lengths, strict=True):
        reached = errors.gather(1, row[:, None] - 1)[:, 0]
        assert (reached <= errors.amin(dim=1) + tolerance).all()


RISING = st.lists(st.floats(0, 1, width=32), min_size=K, max_size=K)
CURVES = st.lists(RISING, min_size=1, max_size=6).map(
    lambda rows: torch.tensor(rows).flip(1).cumsum(1).flip(1) + 1e-3
)


@settings(max_examples=60)
@given(errors=CURVES, means=st.lists(st.floats(1, K), min_size=2, max_size=4).map(sorted))
def test_allocation_meets_each_budget_and_nests(errors, means):
    lengths = torch.stack([allocated_lengths(errors, mean) for mean in means])
    assert lengths.dtype == torch.int64
    assert ((lengths >= 1) & (lengths <= K)).all()
    assert (lengths.diff(dim=0) >= 0).all()
    for mean, row in zip(means, lengths, strict=True):
        assert abs(int(row.sum()) - mean * len(errors)) <= 0.5 + 1e-9


@settings(max_examples=60)
@given(decay=st.lists(st.floats(0.3, 3), min_size=2, max_size=3), mean=st.floats(1, 6))
def test_allocation_is_the_best_of_all_on_convex_curves(decay, mean):
    k = 6
    lengths = torch.arange(1, k + 1, dtype=torch.float64)
    errors = torch.stack([lengths**-each for each in decay])
    chosen = allocated_lengths(errors, mean)
    found = errors.gather(1, chosen[:, None] - 1).sum()
    every = torch.cartesian_prod(*[torch.arange(k)] * len(decay))
    allowed = every[(every + 1).sum(dim=1) <= chosen.sum()]
    totals = sum(errors[row, allowed[:, row]] for row in range(len(decay)))
    assert found <= totals.min() + 1e-12


def test_savings_follow_the_hull_where_a_curve_is_not_convex():
    errors = torch.tensor([[1.0, 1.0, 0.4, 0.3, 0.0]])
    torch.testing.assert_close(hull_savings(errors), torch.tensor([[0.3, 0.3, 0.2, 0.2]]))


def measured(errors: torch.Tensor) -> tuple[Callable[..., torch.Tensor], list[int]]:
    """A function that looks at curves, and how often it did for each length asked of it."""
    looks: list[int] = []

    def measure(rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        looks.extend(lengths.tolist())
        return (1 - errors)[rows, lengths - 1]

    return measure, looks


NOISE = st.lists(st.floats(-0.25, 0.25, width=32), min_size=K, max_size=K)


@settings(max_examples=200)
@given(
    shift=st.floats(-1, 1),
    decay=st.floats(0.05, 1.5),
    noise=NOISE,
    qualities=st.lists(st.floats(0.3, 0.99), min_size=2, max_size=5).map(sorted),
)
def test_verified_programs_reach_their_quality_and_nest_on_any_curve(
    shift, decay, noise, qualities
):
    lengths = torch.arange(1, K + 1)
    predicted = (-1.0 - 0.5 * lengths.log())[None]
    errors = (shift - 1.5 - decay * lengths.log() + torch.tensor(noise))[None].exp().clamp(max=1.5)
    measure, _ = measured(errors)
    found = [verified_lengths(predicted, quality, measure) for quality in qualities]
    for quality, (length, reached) in zip(qualities, found, strict=True):
        assert reached == (1 - errors)[0, length - 1]
        assert reached >= quality or length == K
    assert all((a <= b).all() for (a, _), (b, _) in pairwise(found))


@pytest.mark.parametrize("quality", [0.7, 0.85, 0.9, 0.93])
def test_a_falling_curve_gets_its_shortest_length_after_a_few_evaluations(quality):
    lengths = torch.arange(1, K + 1)
    decay = torch.linspace(0.3, 0.9, 20)[:, None]
    errors = 0.6 * lengths**-decay
    predicted = errors.log() + 0.2 * torch.linspace(-1, 1, 20)[:, None]
    measure, looks = measured(errors)
    found, reached = verified_lengths(predicted, quality, measure)
    shortest = 1 + (1 - errors < quality).sum(dim=1)
    assert torch.equal(found, shortest.clamp(max=K))
    assert torch.equal(reached >= quality, shortest <= K)
    assert len(looks) <= 20 * 5
