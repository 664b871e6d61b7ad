"""R² in both definitions and cosine, against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import r2_score

from strop.errors import ModelError
from strop.metrics import cosine, r2, r2_centred

TARGET = torch.tensor([[[1.0, 10.0], [3.0, 14.0]]])  # scalar mean 7, channel means 2 and 12


def test_perfect_is_one() -> None:
    assert r2(TARGET, TARGET) == r2_centred(TARGET, TARGET) == 1
    assert cosine(TARGET, TARGET) == pytest.approx(1)


def test_hand_worked() -> None:
    predicted = TARGET + torch.tensor([[[1.0, -1.0], [0.0, 2.0]]])  # residual 1 + 1 + 0 + 4 = 6
    assert r2(predicted, TARGET) == pytest.approx(1 - 6 / (36 + 9 + 16 + 49))
    assert r2_centred(predicted, TARGET) == pytest.approx(1 - 6 / (1 + 4 + 1 + 4))


def test_a_constant_scores_zero_about_its_own_mean() -> None:
    assert r2(torch.full_like(TARGET, 7.0), TARGET) == pytest.approx(0)
    assert r2_centred(torch.tensor([2.0, 12.0]).expand_as(TARGET), TARGET) == pytest.approx(0)


def test_centred_agrees_with_scikit_learn() -> None:
    torch.manual_seed(0)
    target, noise = torch.randn(4, 9, 5), torch.randn(4, 9, 5)
    flat = target.flatten(0, 1), (target + 0.3 * noise).flatten(0, 1)
    expected = r2_score(*(x.numpy() for x in flat), multioutput="variance_weighted")
    assert r2_centred(target + 0.3 * noise, target) == pytest.approx(expected, rel=1e-6)


def test_cosine_hand_worked() -> None:
    a, b = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]), torch.tensor([[[1.0, 1.0], [0.0, -1.0]]])
    assert cosine(a, b) == pytest.approx((2**-0.5 - 1) / 2)


@pytest.mark.parametrize("metric", [cosine, r2, r2_centred])
def test_fields_of_different_shapes_are_refused(metric) -> None:
    with pytest.raises(ModelError, match=r"shapes \(2, 4, 3\) and \(1, 4, 3\) were compared"):
        metric(torch.ones(2, 4, 3), torch.ones(1, 4, 3))
