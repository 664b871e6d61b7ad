"""The rules for choosing lengths side by side: by hand on small curves, and on a real model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from strop.agreement import Agreement
from strop.analysis import length_rules
from strop.analysis.length_choice import Curves
from strop.analysis.length_rules import (
    CLASSES,
    ONE,
    ORACLE,
    PAPER,
    RATE,
    SEARCH,
    VERIFIED,
    Options,
    compare,
    crossed,
    error_at_mean,
    run,
    share,
    turned,
)
from strop.analysis.subject import Subject
from strop.data import ScenesDataset
from strop.errors import ModelError
from strop.model.length_head import LengthHeadConfig

COSINE = np.array([[0.7, 0.9, 0.95], [0.5, 0.6, 0.9]])
RESIDUAL = np.array([[3.0, 1.0, 0.5], [8.0, 6.0, 1.0]])
# The sum of squares about the mean of each channel is 100.
WHOLE = Agreement(
    residual=RESIDUAL[:, 2],
    cosine=COSINE[:, 2],
    square=np.array([50.0, 50.0]),
    channels=np.zeros((2, 2)),
    size=4,
)
CURVES = Curves(COSINE, RESIDUAL, WHOLE)


def one(knob: float) -> torch.Tensor:
    return torch.full((2,), 1 + int(knob * 2))


def test_the_knob_is_turned_until_the_lengths_are_enough():
    low, high = turned(one, lambda lengths: share(CURVES, lengths, 0.9) >= 0.5)
    assert (low.tolist(), high.tolist()) == ([1, 1], [2, 2])
    assert turned(one, lambda lengths: share(CURVES, lengths, 0.9) >= 1)[1].tolist() == [3, 3]
    assert turned(one, lambda lengths: False)[1].tolist() == [3, 3]
    assert turned(one, lambda lengths: True)[1].tolist() == [1, 1]


def test_errors_between_two_whole_lengths_are_interpolated():
    assert error_at_mean(one, CURVES, 2) == 7
    assert error_at_mean(one, CURVES, 1.5) == pytest.approx((11 + 7) / 2)


def test_what_is_fitted_to_one_half_speaks_of_the_other():
    def fitted(x, rows):
        assert torch.equal(x[:, 0], rows.float())
        return lambda other: other[:, 0] + 100 * (rows[0] % 2)

    found = crossed(fitted, torch.arange(6.0)[:, None])
    assert found.tolist() == [100, 1, 102, 3, 104, 5]


def rules() -> dict[str, length_rules.Rule]:
    def search(knob: float) -> torch.Tensor:
        reached = knob <= torch.from_numpy(COSINE)
        enough = torch.cat([reached, torch.ones(2, 1, dtype=torch.bool)], dim=1)
        return (1 + enough.int().argmax(dim=1)).clamp(max=3)

    return dict.fromkeys((ONE, CLASSES, PAPER, RATE), one) | {SEARCH: search, VERIFIED: search}


def test_rules_are_compared_at_one_quality_and_at_one_mean_by_hand():
    predicted = torch.from_numpy(RESIDUAL).log()[:, None].repeat(1, 2, 1)
    options = Options(quality=0.9, confidence=1 - 1e-9, means=(2, 9))
    found = compare(rules(), CURVES, predicted, options)
    assert found["at_quality"][ONE] == {"tokens": 3, "of_one_length": 1, "reached": 1}
    assert found["at_quality"][ORACLE] == {"tokens": 2.5, "of_one_length": 2.5 / 3, "reached": 1}
    assert found["at_quality"][VERIFIED] == found["at_quality"][ORACLE]
    assert found["r2_centred_of_one_length"] == {"2": 1 - 7 / 100}  # nine is above K
    # Four tokens: the second image's third saves 5 after 2, so 1 and 3 leave 3 + 1.
    assert found["r2_centred_gain"][RATE]["2"] == pytest.approx((7 - 4) / 100)
    assert found["r2_centred_gain"][ORACLE]["2"] == pytest.approx((7 - 4) / 100)
    assert found["able"] == 1


def test_the_study_runs_on_a_model_with_a_rate_head(make_tokenizer, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(length_rules, "STEPS", 10)
    tokenizer = make_tokenizer(length_head=LengthHeadConfig(kind="rate", hidden=(8,)))
    scenes = ScenesDataset(24, size=tokenizer.config.image_size)
    subject = Subject(tokenizer=tokenizer, dataset=scenes, data="scenes", folder=tmp_path)
    findings = run(subject, Options(quality=0.1, means=(4,), most=20))
    numbers = findings.numbers
    assert numbers["images_compared"] == 20
    rows = {row[0]: row for row in findings.tables[0].rows}
    assert rows.keys() == {ONE, SEARCH, CLASSES, PAPER, RATE, VERIFIED, ORACLE}
    oracle = numbers["at_quality"][ORACLE]
    assert numbers["at_quality"][VERIFIED]["reached"] == oracle["reached"]
    assert numbers["at_quality"][VERIFIED]["tokens"] >= oracle["tokens"]
    assert numbers["passes"][SEARCH] == tokenizer.config.max_length
    assert 1 <= numbers["passes"][VERIFIED] <= tokenizer.config.max_length
    best = numbers["r2_centred_gain"][ORACLE]["4"]
    assert all(gains["4"] <= best + 1e-9 for gains in numbers["r2_centred_gain"].values())
    assert findings.figures["rules"].axes


def test_a_model_without_a_rate_head_is_told_how_to_add_one(make_tokenizer, tmp_path: Path):
    scenes = ScenesDataset(2, size=32)
    subject = Subject(tokenizer=make_tokenizer(), dataset=scenes, data="scenes", folder=tmp_path)
    with pytest.raises(ModelError, match="strop train-lengths MODEL"):
        length_rules.check(subject, Options())
