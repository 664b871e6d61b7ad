"""Rate control: a budget met to the token, and a quality met by the shortest prefix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.errors import ProgramError
from strop.model.rate import lengths_for_mean, shortest_within

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
