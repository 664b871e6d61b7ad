"""Averaged weights against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from strop.training.forward import averaging_share
from strop.training.step import follow


def test_the_share_falls_to_its_least():
    # 9 spans: 9 / 10, 9 / 11, ..., 9 / 900 = 0.01, and then the least
    shares = [averaging_share(step, 9, 0.01) for step in (0, 1, 890, 5_000)]
    assert shares == pytest.approx([0.9, 9 / 11, 0.01, 0.01])
    assert averaging_share(49, 50) == pytest.approx(0.5)


@pytest.mark.parametrize("least", [0.0, 0.001])
def test_the_random_start_is_forgotten(least):
    # With a fixed share of 0.001 a twentieth would be left after 3,000 steps, and the average
    # would lie 950 steps behind; with these shares it lies a tenth of the steps behind.
    start, place = 1.0, 0.0
    for step in range(3_000):
        share = averaging_share(step, 9, least)
        start *= 1 - share
        place += share * (step - place)
    assert start < 1e-20
    assert 2_999 - place == pytest.approx(300, rel=0.01)


def test_an_average_follows_by_a_share():
    averaged, weights = (
        [torch.tensor([1.0, 2.0]), torch.tensor([[0.0]])],
        [
            torch.tensor([3.0, 2.0]),
            torch.tensor([[8.0]]),
        ],
    )
    follow(averaged, weights, torch.tensor(0.25))
    assert averaged[0].tolist() == [1.5, 2.0]
    assert averaged[1].tolist() == [[2.0]]
    assert weights[0].tolist() == [3.0, 2.0]
