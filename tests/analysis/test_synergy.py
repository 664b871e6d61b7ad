"""Synergy: zero for independent tokens, positive for two tokens that replace each other."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from planted import BLOCK, SHARED, altered

from strop.analysis import synergy
from strop.analysis.counterfactual import pair_erasure
from strop.analysis.regions import erasure_maps
from strop.errors import ProgramError
from strop.statistics import paired_test


@pytest.fixture(scope="module")
def scored(planted):
    pairs = synergy.draw_pairs(planted.program, 0, seed=0)
    return synergy.measure(planted, erasure_maps(planted), pairs, synergy.Options())


def test_only_the_planted_pair_has_synergy(scored):
    together = (scored.pairs[:, 1:] == torch.tensor([0, 1])).all(dim=1).numpy()
    assert together.sum() == 48
    assert scored.scores[together] == pytest.approx(1 / 8)
    assert scored.scores[~together] == pytest.approx(0, abs=1e-7)


def test_synergy_is_at_the_shared_block(planted):
    alone = erasure_maps(planted)[0]
    ((_, both),) = pair_erasure(planted.tokenizer, planted.program, torch.tensor([[0, 0, 1]]))
    assert torch.equal(both[0].view(8, 8) - alone[0] - alone[1], (BLOCK == SHARED).float())


def test_the_pair_is_found_and_the_controls_are_at_chance(planted):
    found = synergy.run(planted, synergy.Options(draws=99))
    comparisons = found.numbers["comparisons"]
    inactive = comparisons["active pairs against inactive tokens"]
    assert inactive["second"] == 0
    assert inactive["p"] is None  # zero by construction: there is nothing to test
    best = comparisons["strongest pair against random active pairs"]
    assert best["first"] == pytest.approx(1 / 8)
    assert best["p"] == pytest.approx(0.01)


def test_all_pairs_or_the_requested_number_are_drawn(planted):
    program = planted.program
    lengths = program.lengths
    assert len(synergy.draw_pairs(program, 0, 0)) == int((lengths * (lengths - 1) // 2).sum())
    drawn = synergy.draw_pairs(program, 3, 0)
    assert len(drawn) == 3 * len(program)
    assert len(drawn.unique(dim=0)) == len(drawn)
    assert (drawn[:, 1] < drawn[:, 2]).all()
    assert (drawn[:, 2] < lengths[drawn[:, 0]]).all()
    inactive = synergy.draw_pairs(program, 3, 0, inactive=True)
    assert (inactive[:, 2] >= lengths[inactive[:, 0]]).all()


def test_a_pair_of_all_tokens_has_no_map(planted):
    program = planted.program[:2].truncate(torch.tensor([2, 3]))
    index = torch.tensor([[0, 0, 1], [1, 0, 1]])
    ((_, maps),) = pair_erasure(planted.tokenizer, program, index)
    assert maps[0].isnan().all()
    assert not maps[1].isnan().any()
    assert not len(synergy.draw_pairs(program[:1], 0, 0)), "so it is not drawn"


def test_programs_too_short_for_pairs_are_refused(planted):
    short = altered(planted, program=planted.program.truncate(2))
    with pytest.raises(ProgramError, match="three tokens"):
        synergy.run(short, synergy.Options())


def test_choosing_the_strongest_pair_of_noise_gains_nothing():
    generator = np.random.default_rng(1)
    ps = []
    for trial in range(200):
        index = torch.arange(12).repeat_interleave(10)[:, None].expand(-1, 3)
        halves = generator.normal(size=(120, 2))
        noise = synergy.Scored(index, halves.mean(axis=1), halves)
        options = synergy.Options(draws=99, seed=trial)
        ps.append(paired_test(*synergy.strongest(noise, 12), **options.sampling)["p"])
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01


def test_pairs_can_be_deleted_as_well(planted):
    program, tokenizer = planted.program, planted.tokenizer
    pairs = synergy.draw_pairs(program, 4, 0)
    (_, deleted), (_, erased) = (
        next(pair_erasure(tokenizer, program, pairs, edit=edit)) for edit in ("delete", "erase")
    )
    for (row, i, j), found in zip(pairs.tolist(), deleted, strict=True):
        one = program[[row]]
        before, after = (tokenizer.interpret(each) for each in (one, one.delete(j).delete(i)))
        assert torch.equal(found, 1 - torch.cosine_similarity(before, after, dim=-1)[0])
    assert not torch.equal(deleted, erased)
    found = synergy.run(planted, synergy.Options(draws=9, edit="delete"))
    assert any("move up" in note for note in found.notes)


def test_the_batch_of_interpreted_pairs_is_bounded(planted, monkeypatch):
    rows = []
    forward = planted.tokenizer.interpreter.forward
    monkeypatch.setattr(
        planted.tokenizer.interpreter,
        "forward",
        lambda z_q, active: rows.append(len(z_q)) or forward(z_q, active),
    )
    program = planted.program
    index = synergy.draw_pairs(program, 0, 0)
    for _, maps in pair_erasure(planted.tokenizer, program, index, batch=10):
        assert len(maps) <= 10
    assert max(rows) <= 10
    assert sum(rows) == len(index) + len(program)
