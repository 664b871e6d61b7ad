"""The study of erasure, on the planted model and on nothing at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from planted import BLOCK, LENGTH, SHARED

from strop.structure import erasure
from strop.structure.counterfactual import erasure_maps
from strop.structure.regions import NOBODY, owners


@pytest.fixture(scope="module")
def found(planted, planted_encoded, tmp_path_factory):
    options = erasure.Options(draws=99, examples=2)
    job = erasure.Job(tmp_path_factory.mktemp("erasure"))
    return erasure.run(planted, planted_encoded, options, job)


def test_owners_are_those_that_were_planted(planted, planted_encoded):
    program = planted_encoded.program
    maps = erasure_maps(planted, program, lambda *_: None)
    block = BLOCK.flatten().expand(len(program), -1)
    expected = torch.where(block < program.lengths[:, None], block, NOBODY)
    assert torch.equal(owners(maps), expected)
    assert (expected[:, BLOCK.flatten() == SHARED] == NOBODY).all()


def test_regions_are_the_objects(found):
    instance = found.numbers["agreement"]["instance"]
    assert instance["iou"] == pytest.approx((1, 1, 1))
    assert instance["ari"] == pytest.approx((1, 1, 1))
    assert instance["ari_other_image"] < 0.8
    assert instance["p"] == pytest.approx(0.01)


def test_shuffled_maps_are_at_chance(found):
    for kind in ("instance", "semantic"):
        assert found.numbers["agreement"][kind]["ari_shuffled"] == pytest.approx(0, abs=0.02)


def test_a_token_is_as_large_as_its_block(found):
    assert found.numbers["localisation"]["area"].value == pytest.approx(1 / 8)
    assert found.numbers["localisation"]["mean"].value == pytest.approx(1 / 8)
    assert found.numbers["localisation"]["entropy"].value == pytest.approx(np.log(8) / np.log(64))
    assert [entry["position"] for entry in found.numbers["profile"]] == list(range(LENGTH))
    assert found.numbers["profile"][0]["n"] == 48


def test_edits_are_compared(found):
    edits = found.numbers["edits"]
    assert edits["replace"]["correlation"] == pytest.approx(1), "another code, the same block"
    assert edits["delete"]["same_owner"] < 0.9, "what follows moves to other blocks"


def test_p_is_uniform_when_regions_know_nothing_of_masks():
    random = torch.Generator().manual_seed(0)
    ps = []
    for trial in range(100):
        regions, ids = torch.randint(0, 4, (2, 6, 16), generator=random)
        shares = torch.nn.functional.one_hot(ids).double()
        ps.append(erasure.mask_agreement(regions, shares, False, 29, trial)["p"])
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01


def test_programs_of_one_token_are_left_out(planted, planted_encoded, job):
    short = replace(planted_encoded, program=planted_encoded.program.truncate(1))
    found = erasure.run(planted, short, erasure.Options(draws=9, examples=1), job)
    assert np.isnan(found.numbers["localisation"]["area"].value)
    assert found.numbers["profile"] == []
