"""Training of probes: who is seen when, how the weight decay is chosen, that seeds decide."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from strop.analysis.probes.fitting import HELD_OUT, batches_of, fit_probe
from strop.analysis.probes.heads import READER_RATE, Tokens, make_probe
from strop.analysis.probes.protocol import PAPER

SCHEDULE = replace(PAPER, steps=8, batch=4, warmup=2)
CPU = torch.device("cpu")
FIELDS = torch.randn(20, 4, 6, generator=torch.Generator().manual_seed(0))
MAKE = partial(make_probe, FIELDS, 1, locations=4)


class Spy:
    """A loss that remembers on which images it was asked, in training and otherwise."""

    def __init__(self) -> None:
        self.trained: list[list[int]] = []
        self.measured: list[list[int]] = []

    def __call__(self, probe, rows):
        (self.trained if probe.training else self.measured).append(rows.tolist())
        return (probe(FIELDS[rows]) - FIELDS[rows].sum(-1, keepdim=True)).square().mean()


def flat(batches: list[list[int]]) -> set[int]:
    return {row for batch in batches for row in batch}


def test_every_image_comes_once_before_any_comes_again():
    batches = batches_of(torch.arange(10), 4, seed=0)
    rows = torch.cat([next(batches) for _ in range(5)])
    assert sorted(rows[:10].tolist()) == list(range(10))
    assert sorted(rows[10:].tolist()) == list(range(10))


def test_the_weight_decay_is_chosen_on_images_that_were_not_trained_on():
    spy = Spy()
    schedule = replace(SCHEDULE, weight_decays=(0.0, 1e6))
    probe = fit_probe(MAKE, spy, 20, schedule, seed=0, device=CPU)
    tried = spy.trained[: -schedule.steps]
    assert len(tried) == 2 * schedule.steps
    assert len(flat(spy.measured)) == 20 // HELD_OUT
    assert not flat(tried) & flat(spy.measured)
    assert flat(spy.trained[-schedule.steps :]) == set(range(20))
    assert probe.weight_decay == 0.0  # the other is absurd


def test_a_single_weight_decay_is_not_tried():
    spy = Spy()
    fit_probe(MAKE, spy, 20, replace(SCHEDULE, weight_decays=(0.1,)), seed=0, device=CPU)
    assert len(spy.trained) == SCHEDULE.steps
    assert not spy.measured


def test_a_seed_decides_everything_and_leaves_the_callers_chance_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = fit_probe(MAKE, Spy(), 20, SCHEDULE, seed=1, device=CPU).state_dict()
    assert torch.equal(torch.rand(3), expected)
    again = fit_probe(MAKE, Spy(), 20, SCHEDULE, seed=1, device=CPU).state_dict()
    other = fit_probe(MAKE, Spy(), 20, SCHEDULE, seed=2, device=CPU).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["readout.linear.weight"], other["readout.linear.weight"])


def test_the_interpreter_learns_at_its_own_rate():
    tokens = Tokens(torch.randn(4, 3, 6), torch.ones(4, 3, dtype=torch.bool))
    probe = make_probe(tokens, 1, locations=2, sequence=True)
    reader, readout = probe.groups(3.0)
    assert reader["lr"] == 3 * READER_RATE < 3
    assert "lr" not in readout
    plain, _ = make_probe(tokens, 1, locations=2).groups(3.0)
    assert plain["lr"] == 3


def test_a_probe_is_returned_ready_to_be_asked():
    probe = fit_probe(MAKE, Spy(), 20, SCHEDULE, seed=0, device=CPU)
    assert not probe.training
    assert probe.weight_decay in SCHEDULE.weight_decays
