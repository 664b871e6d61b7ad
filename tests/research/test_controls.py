"""Order, prefix and position, where their effect is known."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planted import LENGTH

import controls
from strop.analysis.regions import RemovalOptions


@pytest.fixture(scope="module")
def found(planted):
    return controls.run(planted, RemovalOptions(draws=99)).numbers


def test_programs_as_written_give_the_teachers_field(found):
    written = found["order"]["as written"]
    assert written["cosine"] == pytest.approx((1, 1, 1))
    assert written["r2"] == written["r2_centred"] == pytest.approx(1)
    assert written["changed"] == pytest.approx(0)


def test_a_swap_costs_its_two_blocks(found, planted):
    """Two of eight blocks change, unless both tokens hold the same code."""
    program = planted.program
    for swap in found["swaps"]:
        k = swap["position"]
        both = program.lengths > k + 1
        other = (program.codes[both, k] != program.codes[both, k + 1]).double().mean().item()
        assert swap["n"] == int(both.sum())
        assert swap["swap"] == pytest.approx(other / 4)
        assert swap["erase"] == pytest.approx(1 / 8)


def test_a_program_of_another_image_is_worse_than_the_mean_field(found):
    order = found["order"]
    assert order["another image's program"]["cosine"].high < order["shuffled"]["cosine"].low
    assert order["another image's program"]["r2"] < 0 < order["mean field, no program"]["r2"]


def test_tokens_at_their_own_positions_have_equal_value(found):
    """Each owns one block. A prefix is better by the shared block alone, as it has token 0."""
    for entry in found["sizes"]:
        gap = entry["prefix"] - entry["random subset"]
        assert 0 <= gap <= 1 / 8
        assert entry["random subset, moved up"] < entry["random subset"]
    assert [entry["size"] for entry in found["sizes"]] == [1, 2, 4]


def test_a_moved_token_brings_its_content_to_its_place(found):
    content = found["transplants"]["brings its content (cosine gained)"]
    assert content["first"] == pytest.approx(1)
    assert content["second"] < 0.2
    assert content["p"] == pytest.approx(0.01)
    where = found["transplants"]["acts where it did (correlation)"]
    assert where["first"] == where["second"] == pytest.approx(1)
    assert where["p"] == 1, "every token of a position owns the same block"


@given(st.integers(1, 9))
def test_orders_are_permutations(length):
    everywhere = controls.swapped(length, range(0, length - 1, 2))
    assert everywhere == [k ^ 1 if k < length - length % 2 else k for k in range(length)]
    for place in range(max(length - 1, 1)):
        one = controls.swapped(length, [place])
        assert sorted(one) == list(range(length))
        moved = [k for k in range(length) if one[k] != k]
        assert moved == ([place, place + 1] if length > 1 else [])


def test_subsets_hold_active_tokens_and_have_the_requested_size():
    lengths = torch.tensor([3, 5, LENGTH])
    chosen = controls.random_subsets(lengths, LENGTH, 3, torch.Generator().manual_seed(0))
    assert chosen.sum(dim=1).tolist() == [3, 3, 3]
    assert chosen[0].nonzero()[:, 0].tolist() == [0, 1, 2]
