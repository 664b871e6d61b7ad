"""Erasure: planted owners and regions are found, and unrelated masks are at chance."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from planted import BLOCK, LENGTH, SHARED, altered

from strop.analysis import erasure
from strop.analysis.regions import NOBODY, erasure_maps, owners


@pytest.fixture(scope="module")
def found(planted):
    return erasure.run(planted, erasure.Options(draws=99))


def test_owners_are_the_planted_ones(planted):
    program = planted.program
    maps = erasure_maps(planted)
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


def test_p_is_uniform_for_regions_unrelated_to_masks():
    random = torch.Generator().manual_seed(0)
    ps = []
    for trial in range(100):
        regions, ids = torch.randint(0, 4, (2, 6, 16), generator=random)
        shares = torch.nn.functional.one_hot(ids).double()
        ps.append(erasure.mask_agreement(regions, shares, False, 29, trial)["p"])
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01


def test_programs_of_one_token_are_left_out(planted):
    short = altered(planted, program=planted.program.truncate(1))
    found = erasure.run(short, erasure.Options(draws=9))
    assert np.isnan(found.numbers["localisation"]["area"].value)
    assert found.numbers["profile"] == []
