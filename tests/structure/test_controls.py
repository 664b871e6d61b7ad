"""Order, prefix and place, where it is known how much they matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planted import LENGTH

from strop.structure import controls


@pytest.fixture(scope="module")
def found(planted, planted_encoded, tmp_path_factory):
    job = controls.Job(tmp_path_factory.mktemp("controls"))
    options = controls.Options(draws=99)
    return controls.run(planted, planted_encoded, options, job).numbers


def test_what_is_written_is_the_teachers(found):
    written = found["order"]["as written"]
    assert written["cosine"] == pytest.approx((1, 1, 1))
    assert written["r2"] == written["r2_centred"] == pytest.approx(1)
    assert written["changed"] == pytest.approx(0)


def test_a_swap_costs_its_two_blocks(found, planted_encoded):
    """Two of eight blocks change, unless both tokens hold the same code."""
    program = planted_encoded.program
    for swap in found["swaps"]:
        k = swap["position"]
        both = program.lengths > k + 1
        other = (program.codes[both, k] != program.codes[both, k + 1]).double().mean().item()
        assert swap["n"] == int(both.sum())
        assert swap["swap"] == pytest.approx(other / 4)
        assert swap["erase"] == pytest.approx(1 / 8)


def test_another_image_says_less_than_none_at_all(found):
    order = found["order"]
    assert order["another image's program"]["cosine"].high < order["shuffled"]["cosine"].low
    assert order["another image's program"]["r2"] < 0 < order["mean field, no program"]["r2"]


def test_tokens_at_their_own_positions_are_worth_the_same(found):
    """Each owns one block; only the shared block makes a prefix, which has token 0, better."""
    for entry in found["sizes"]:
        gap = entry["prefix"] - entry["random subset"]
        assert 0 <= gap <= 1 / 8
        assert entry["random subset, moved up"] < entry["random subset"]
    assert [entry["size"] for entry in found["sizes"]] == [1, 2, 4]


def test_a_moved_token_brings_its_content_to_its_place(found):
    content = found["transplants"]["brings its content (cosine gained)"]
    assert content["it"] == pytest.approx(1)
    assert content["control"] < 0.2
    assert content["p"] == pytest.approx(0.01)
    where = found["transplants"]["acts where it did (correlation)"]
    assert where["it"] == where["control"] == pytest.approx(1)
    assert where["p"] == 1, "every token of a position owns the same block"


@given(st.integers(1, 9))
def test_orders_are_orders(length):
    random = torch.Generator().manual_seed(length)
    assert sorted(controls._swap_all(length)) == list(range(length))
    one = controls._swap_one(length, random)
    moved = [k for k in range(length) if one[k] != k]
    assert len(moved) == (2 if length > 1 else 0)


def test_subsets_are_of_active_tokens_and_of_the_size_asked_for():
    lengths = torch.tensor([3, 5, LENGTH])
    chosen = controls.random_subsets(lengths, LENGTH, 3, torch.Generator().manual_seed(0))
    assert chosen.sum(dim=1).tolist() == [3, 3, 3]
    assert chosen[0].nonzero()[:, 0].tolist() == [0, 1, 2]
