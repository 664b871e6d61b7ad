"""Rate and quality: the search, the best lengths of equal mean, the regret: by hand, by force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop import metrics
from strop.agreement import agree
from strop.analysis.length_choice import (
    best_residual,
    compare_lengths,
    curves_of,
    joined,
)
from strop.analysis.subject import encode_fields

curves = st.lists(st.lists(st.floats(0, 10), min_size=3, max_size=3), min_size=1, max_size=4).map(
    np.array
)


def test_tokens_go_where_they_save_most_by_hand():
    errors = np.array([[10.0, 0, 0], [10, 9, 0]])
    assert best_residual(errors, 1) == 20
    assert best_residual(errors, 1.5) == 10  # one token, to the first image
    assert best_residual(errors, 2) == 5  # half of the second image's two tokens
    assert best_residual(errors, 2.5) == 0
    assert best_residual(errors, 3) == 0  # one token is left over


@given(curves)
def test_no_lengths_of_equal_mean_are_better(errors):
    for lengths in itertools.product(range(3), repeat=len(errors)):
        mean = 1 + np.mean(lengths)
        spent = errors[np.arange(len(errors)), list(lengths)].sum()
        assert best_residual(errors, mean) <= spent + 1e-9


@given(curves)
def test_where_every_token_saves_less_than_the_last_the_best_is_reached(errors):
    falling = -np.sort(-np.abs(errors), axis=1)[:, :2]
    convex = np.cumsum(np.concatenate([np.full((len(errors), 1), 30.0), -falling], axis=1), axis=1)
    for total in range(2 * len(errors) + 1):
        every = itertools.product(range(3), repeat=len(errors))
        least = min(
            convex[np.arange(len(errors)), list(lengths)].sum()
            for lengths in every
            if sum(lengths) == total
        )
        assert best_residual(convex, 1 + total / len(errors)) == pytest.approx(least)


def fields_with_curve(errors):
    """The curves of images whose squared error at each length is given: (n, K)."""
    target = torch.stack([torch.eye(4)] * len(errors))
    made = []
    for column in np.array(errors).T:
        off = torch.tensor(column, dtype=torch.float32).sqrt()[:, None] * torch.tensor(
            [0.0, 0, 0, 1]
        )
        made.append(agree([(target + torch.nn.functional.pad(off[:, None], (0, 0, 0, 3)), target)]))
    return joined(made)


def test_regret_by_hand():
    errors = [[4.0, 1.0, 1.0], [4.0, 4.0, 0.0]]
    total = 2 * (4 - 1)  # eight ones in 32 scalars: 8 - 32 / 16
    found = compare_lengths(fields_with_curve(errors), torch.tensor([3, 1]))
    # Chosen: 1 + 4. Best of mean 2: the first image's token saves 3, half of the second's two 2.
    assert found["values"]["regret_r2"] == pytest.approx((5 - 3) / total, abs=1e-5)
    assert found["values"]["regret_r2_fixed"] == pytest.approx((5 - 3) / total, abs=1e-5)
    assert found["values"]["r2"] == pytest.approx(1 - 5 / total, abs=1e-5)
    assert found["values"]["length_mean"] == 2
    assert found["lengths"]["searched"] == [2, 3]
    assert found["values"]["search_correlation"] == pytest.approx(-1)
    assert found["curve"]["r2_best"][-1] == pytest.approx(1 - 1 / total, abs=1e-5)


def test_what_choosing_gains_has_an_interval():
    # Of mean 2 one length has errors 1 and 4. Chosen as the first would have it: 0 and 4.
    errors = [[4.0, 1.0, 0.0], [4.0, 4.0, 0.0]]
    found = compare_lengths(fields_with_curve(errors), torch.tensor([3, 1]))
    total = 2 * (4 - 1)
    assert found["values"]["choice_gain_r2"] == pytest.approx(1 / total, abs=1e-5)
    # Drawn twice, either image has but one length, and nothing is gained.
    low, high = found["intervals"]["choice_gain_r2"]
    assert (low, high) == pytest.approx((0.0, 1 / total), abs=1e-5)
    gain = found["values"]["regret_r2_fixed"] - found["values"]["regret_r2"]
    assert found["values"]["choice_gain_r2"] == pytest.approx(gain, abs=1e-6)


def test_choosing_the_best_lengths_has_no_regret():
    errors = [[4.0, 1.0, 1.0], [4.0, 2.0, 0.0]]
    found = compare_lengths(fields_with_curve(errors), torch.tensor([2, 3]))
    assert found["values"]["regret_r2"] == pytest.approx(0, abs=1e-6)
    assert found["values"]["search_correlation"] == pytest.approx(1)


def test_curves_are_what_interpreting_at_each_length_gives(tokenizer):
    fields = 0.5 * torch.randn(5, 16, 192, generator=torch.Generator().manual_seed(0))
    program = encode_fields(tokenizer, fields)
    found = compare_lengths(curves_of(tokenizer, program, fields), program.lengths)
    for length in (1, 7, 12):
        made = tokenizer.interpret(program.with_lengths(length))
        expected = metrics.r2(made, fields).item()
        assert found["curve"]["r2"][length - 1] == pytest.approx(expected, rel=1e-4)
    own = metrics.r2_centred(tokenizer.interpret(program), fields).item()
    assert found["values"]["r2_centred"] == pytest.approx(own, rel=1e-4)
