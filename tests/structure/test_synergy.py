"""Synergy: nothing for independent tokens, something for two that stand in for each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from planted import BLOCK, SHARED

from strop.errors import ProgramError
from strop.structure import synergy
from strop.structure.counterfactual import erasure_maps, pair_erasure, rows_within


@pytest.fixture(scope="module")
def pairs(planted, planted_encoded, tmp_path_factory):
    program = planted_encoded.program
    maps = erasure_maps(planted, program, lambda *_: None)
    index = synergy.draw_pairs(program, 0, seed=0)
    job = synergy.Job(tmp_path_factory.mktemp("synergy"))
    return synergy.measure(planted, program, maps, index, 16, job)


def test_only_the_planted_pair_has_synergy(pairs):
    together = (pairs.index[:, 1:] == torch.tensor([0, 1])).all(dim=1).numpy()
    assert together.sum() == 48
    assert pairs.scores[together] == pytest.approx(1 / 8)
    assert pairs.scores[~together] == pytest.approx(0, abs=1e-7)


def test_it_lies_where_it_was_planted(planted, planted_encoded):
    program = planted_encoded.program[:1]
    alone = erasure_maps(planted, program, lambda *_: None)[0]
    ((_, both),) = pair_erasure(planted, program, torch.tensor([[0, 0, 1]]))
    assert torch.equal(both[0].view(8, 8) - alone[0] - alone[1], (BLOCK == SHARED).float())


def test_the_study_finds_the_pair_and_its_controls_are_at_chance(planted, planted_encoded, job):
    found = synergy.run(planted, planted_encoded, synergy.Options(draws=99, examples=2), job)
    comparisons = found.numbers["comparisons"]
    inactive = comparisons["active pairs against inactive tokens"]
    assert inactive["second"] == 0
    assert inactive["p"] == pytest.approx(0.01)
    best = comparisons["strongest pair against random active pairs"]
    assert best["first"] == pytest.approx(1 / 8)
    assert best["p"] == pytest.approx(0.01)


def test_all_pairs_or_as_many_as_asked_for(planted_encoded):
    program = planted_encoded.program
    lengths = program.lengths
    assert len(synergy.draw_pairs(program, 0, 0)) == int((lengths * (lengths - 1) // 2).sum())
    drawn = synergy.draw_pairs(program, 3, 0)
    assert len(drawn) == 3 * len(program)
    assert len(drawn.unique(dim=0)) == len(drawn)
    assert (drawn[:, 1] < drawn[:, 2]).all()
    assert (drawn[:, 2] < lengths[drawn[:, 0]]).all()
    inactive = synergy.draw_inactive(program, 3, 0)
    assert (inactive[:, 2] >= lengths[inactive[:, 0]]).all()


def test_a_pair_that_is_all_there_is_has_no_map(planted, planted_encoded):
    program = planted_encoded.program[:2].truncate(torch.tensor([2, 3]))
    index = torch.tensor([[0, 0, 1], [1, 0, 1]])
    ((_, maps),) = pair_erasure(planted, program, index)
    assert maps[0].isnan().all()
    assert not maps[1].isnan().any()
    assert not len(synergy.draw_pairs(program[:1], 0, 0)), "so it is not drawn"


def test_programs_too_short_for_pairs_are_refused(planted, planted_encoded, job):
    short = replace(planted_encoded, program=planted_encoded.program.truncate(2))
    with pytest.raises(ProgramError, match="three tokens"):
        synergy.run(planted, short, synergy.Options(), job)


def test_choosing_the_strongest_gains_nothing_where_nothing_is():
    generator = np.random.default_rng(1)
    ps = []
    for trial in range(200):
        index = torch.arange(12).repeat_interleave(10)[:, None].expand(-1, 3)
        halves = generator.normal(size=(120, 2))
        nothing = synergy.Pairs(index, halves.mean(axis=1), halves)
        options = synergy.Options(draws=99, seed=trial)
        ps.append(synergy._compare(*synergy.strongest(nothing), options)["p"])
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01


def test_pairs_stay_within_their_memory(planted, planted_encoded, monkeypatch):
    """However many pairs there are, no more rows are interpreted at once than memory allows."""
    rows = []
    forward = planted.interpreter.forward
    monkeypatch.setattr(
        planted.interpreter,
        "forward",
        lambda z_q, active: rows.append(len(z_q)) or forward(z_q, active),
    )
    program = planted_encoded.program
    index = synergy.draw_pairs(program, 0, 0)
    for _, maps in pair_erasure(planted, program, index, batch=10):
        assert len(maps) <= 10
    assert max(rows) <= 10
    assert sum(rows) == len(index) + len(program)


def test_memory_grows_with_the_model(tokenizer, make_tokenizer):
    small = rows_within(tokenizer, 0.01)
    large = rows_within(make_tokenizer(image_size=128), 0.01)
    assert small == pytest.approx(4 * large, rel=0.05)
    assert rows_within(tokenizer, 1e-9) == 1
