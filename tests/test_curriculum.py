"""Every formula of the paper's Appendix A against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from strop import curriculum
from strop.curriculum import (
    CurriculumConfig,
    CurriculumState,
    alpha,
    average,
    base_targets,
    equal_error_lengths,
    handoff,
    initial_state,
    mixed_lengths,
    modulator,
    observe,
    oracle_targets,
    phase,
    probe_lengths,
    probe_stride,
    random_lengths,
    scaled,
    slopes,
)
from strop.errors import ConfigError

PAPER = CurriculumConfig()
K = 64


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values) if len(values) > 1 else torch.tensor(values[0])


def test_phases_switch_at_the_papers_steps():
    steps = (0, 99_999, 100_000, 149_999, 150_000, 200_000, 249_999, 250_000, 499_999)
    assert [phase(PAPER, s) for s in steps] == [1, 1, 2, 2, 3, 4, 4, 5, 5]


def test_alpha_falls_linearly_to_one_at_the_end_of_phase_one():
    assert [alpha(PAPER, s) for s in (0, 25_000, 50_000, 100_000, 400_000)] == [3, 2.5, 2, 1, 1]
    assert alpha(CurriculumConfig(phase_ends=(50_000, 60_000, 70_000, 80_000)), 25_000) == 2
    assert alpha(CurriculumConfig(phase_ends=(0, 1, 2, 3)), 0) == 1


def test_the_ramp_at_its_ends_and_middle():
    steps = (0, 200_000, 225_000, 250_000, 500_000)
    assert [handoff(PAPER, s) for s in steps] == [0, 0, 0.5, 1, 1]
    kept = CurriculumConfig(handoff_ceiling=0.8)
    assert [handoff(kept, s) for s in steps] == [0, 0, 0.4, 0.8, 0.8]
    abrupt = CurriculumConfig(phase_ends=(1, 2, 3, 3))
    assert [handoff(abrupt, s) for s in (2, 3, 4)] == [0, 1, 1]


def test_random_lengths_are_beta_of_uniform_numbers():
    # alpha 2: u = sqrt(U). 8 + .5 * 56 = 36; 8 + 1 * 56 = 64; 8 + sqrt(.5) * 56 = 47.598 -> 48
    uniform = t(0.25, 0.0, 1.0, 0.5)
    assert random_lengths(uniform, t(2.0), PAPER, K).tolist() == [36, 8, 64, 48]
    # alpha 1: 8 + .25 * 56 = 22
    assert random_lengths(uniform, t(1.0), PAPER, K).tolist() == [22, 8, 64, 36]


def test_random_lengths_have_the_mean_of_their_beta():
    uniform = torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    # the mean of Beta(3, 1) is 3/4: 8 + .75 * 56 = 50
    for alpha_, mean in ((3.0, 50), (1.0, 36)):
        lengths = random_lengths(uniform, t(alpha_), PAPER, K)
        assert lengths.float().mean().item() == pytest.approx(mean, abs=0.1)


def test_uniform_lengths_are_all_equally_likely():
    config = CurriculumConfig(truncation="uniform", truncation_minimum=5)
    # 6 lengths, 5 to 10: the ends of U belong to the shortest and the longest
    uniform = t(0.0, 0.16, 0.17, 0.84, 0.9999999, 1.0)
    assert random_lengths(uniform, t(3.0), config, 10).tolist() == [5, 5, 6, 10, 10, 10]
    drawn = random_lengths((torch.arange(600) + 0.5) / 600, t(3.0), config, 10)
    assert drawn.bincount().tolist() == [0] * 5 + [100] * 6


@pytest.mark.parametrize(
    ("minimum", "k", "lengths"),
    [
        (1, 64, [1, 2, 4, 8, 16, 32, 64]),
        (3, 48, [4, 8, 16, 32, 48]),
        (8, 8, [8]),
        (9, 10, [10]),
        (20, 10, [10]),
        (1, 1, [1]),
    ],
)
def test_powers_of_two_are_equally_likely_and_end_with_k(minimum, k, lengths):
    config = CurriculumConfig(truncation="powers-of-two", truncation_minimum=minimum)
    uniform = (torch.arange(100 * len(lengths)) + 0.5) / (100 * len(lengths))
    drawn = random_lengths(torch.cat([uniform, t(0.0, 1.0)]), t(1.0), config, k)
    assert drawn.unique().tolist() == lengths
    assert drawn[:-2].bincount()[lengths].tolist() == [100] * len(lengths)


@pytest.mark.parametrize("truncation", ["beta", "uniform", "powers-of-two"])
def test_a_minimum_beyond_k_is_k(truncation):
    config = CurriculumConfig(truncation=truncation, truncation_minimum=12)
    assert (random_lengths(torch.rand(50), t(2.0), config, 10) == 10).all()


def test_equal_error_lengths_reach_the_batch_mean_at_a_share_of_k(monkeypatch):
    config = CurriculumConfig(oracle_scale=0.5)
    curves = -torch.tensor([[1.0, 2, 3, 4], [0, 1, 2, 3], [3, 4, 5, 6], [0, 0.1, 0.2, 0.3]])
    # at 2 of 4 tokens: -2, -1, -4, -0.1, mean -1.775. The last row never gets there.
    assert equal_error_lengths(curves, config).tolist() == [2, 3, 1, 4]
    whole = CurriculumConfig(oracle_scale=2.0)  # a share above 1 is all of K
    assert equal_error_lengths(curves, whole).tolist() == [4, 4, 2, 4]
    monkeypatch.setattr(curriculum, "summed", lambda _: t(-7.1, 4.0))  # over two processes
    parts = [equal_error_lengths(c, config) for c in curves.split(2)]
    assert torch.cat(parts).tolist() == [2, 3, 1, 4]


def test_mixing_takes_the_predicted_length_with_the_ramps_probability():
    random, deployed = torch.tensor([10, 11, 12]), torch.tensor([20, 21, 22])
    uniform = t(0.0, 0.4, 0.999)
    assert mixed_lengths(random, deployed, uniform, t(0.0)).tolist() == [10, 11, 12]
    assert mixed_lengths(random, deployed, uniform, t(0.5)).tolist() == [20, 21, 12]
    assert mixed_lengths(random, deployed, uniform, t(1.0)).tolist() == [20, 21, 22]


def test_an_average_starts_at_its_first_value():
    mean, seen = average(t(0.0), t(0.0), t(6.0), t(3.0), 0.9)
    assert (mean.item(), seen.item()) == (2.0, 1.0)
    mean, seen = average(mean, seen, t(4.0), t(1.0), 0.9)
    assert mean.item() == pytest.approx(0.9 * 2 + 0.1 * 4)
    assert seen.item() == 1.0


def test_an_average_ignores_an_empty_batch():
    assert [x.item() for x in average(t(0.0), t(0.0), t(0.0), t(0.0), 0.9)] == [0.0, 0.0]
    assert [x.item() for x in average(t(5.0), t(1.0), t(0.0), t(0.0), 0.9)] == [5.0, 1.0]


def test_probes_clamped_at_both_ends_are_invalid():
    probes = probe_lengths(torch.tensor([8, 9, 10, 30, 62, 63, 64]), PAPER, K)
    assert probes.short.tolist() == [8, 8, 8, 28, 60, 61, 62]
    assert probes.long.tolist() == [10, 11, 12, 32, 64, 64, 64]
    assert probes.short_valid.tolist() == [False, False, True, True, True, True, True]
    assert probes.long_valid.tolist() == [True, True, True, True, True, False, False]


def test_the_shorter_probe_of_a_length_under_the_minimum_is_not_longer():
    # L = 5: 3 and 7 are both clipped to 8, so neither counts, and the shorter one stays at 5.
    # L = 6: 4 is clipped, 8 is not. L = 7: 5 is clipped, 9 is not.
    probes = probe_lengths(torch.tensor([5, 6, 7, 1]), PAPER, K)
    assert probes.short.tolist() == [5, 6, 7, 1]
    assert probes.long.tolist() == [8, 8, 9, 8]
    assert probes.short_valid.tolist() == [False] * 4
    assert probes.long_valid.tolist() == [False, True, True, False]


def test_a_fraction_of_the_batch_is_probed():
    fractions = (1.0, 0.5, 0.25, 0.333, 1 / 3, 0.0625)
    strides = [probe_stride(CurriculumConfig(probe_fraction=f)) for f in fractions]
    assert strides == [1, 2, 4, 3, 3, 16]


def test_slopes_are_relative_and_one_sided():
    short, long = slopes(t(0.5, 0.5, 0.5), t(0.6, 0.4, 0.5), t(0.4, 0.6, 0.45))
    assert short.tolist() == pytest.approx([0.2, 0.0, 0.0], abs=1e-5)
    assert long.tolist() == pytest.approx([0.2, 0.0, 0.1], abs=1e-5)


def test_the_partition_sums_to_one_and_m_has_its_three_corners():
    flat = modulator(t(0.0), t(0.0), PAPER)
    elbow = modulator(t(30.0), t(0.0), PAPER)
    steep = modulator(t(30.0), t(30.0), PAPER)
    pays = modulator(t(0.0), t(30.0), PAPER)
    assert [d.m.item() for d in (flat, elbow, steep, pays)] == pytest.approx([0.4, 1.0, 1.3, 1.3])
    for a in (0.0, 0.05, 0.3, 2.0):
        for b in (0.0, 0.05, 0.3, 2.0):
            d = modulator(t(a), t(b), PAPER)
            assert (d.compress + d.keep + d.extend).item() == pytest.approx(1.0)


def test_the_modulator_in_between():
    # u_short = tanh(.3 / .3), u_long = tanh(.15 / .3)
    u_short, u_long = math.tanh(1.0), math.tanh(0.5)
    d = modulator(t(0.3), t(0.15), PAPER)
    assert (d.u_short.item(), d.u_long.item()) == pytest.approx((u_short, u_long))
    expected = 0.4 * (1 - u_short) * (1 - u_long) + u_short * (1 - u_long) + 1.3 * u_long
    assert d.m.item() == pytest.approx(expected)


def test_base_targets_follow_the_error_and_are_clipped_at_both_ends():
    # beta K = 48. e = mean: 48; half: 24; twice: 96 -> 64; a hundredth: .48 -> 2
    base = base_targets(t(0.5, 0.25, 1.0, 0.005), t(0.5), PAPER, K)
    assert base.tolist() == pytest.approx([48, 24, 64, 2], rel=1e-5)


def test_corrected_targets_are_clipped_at_both_ends():
    base = t(48.0, 60.0, 2.0, 10.0)
    assert oracle_targets(base, t(1.3), PAPER, K).tolist() == pytest.approx([62.4, 64, 2.6, 13])
    assert oracle_targets(base, t(0.4), PAPER, K).tolist() == pytest.approx([19.2, 24, 2, 4])
    assert oracle_targets(base, t(1.0), PAPER, 32).tolist() == [32, 32, 2, 10]


def test_two_steps_of_the_oracle_by_hand():
    config = CurriculumConfig(error_decay=0.9, slope_decay=0.5)
    error = t(0.4, 0.8, 0.6)
    probes = probe_lengths(torch.tensor([20, 64]), config, K)  # the longer probe of 64 is clamped
    state, targets, decision = observe(
        initial_state(), error, error[:2], probes, t(0.5, 0.8), t(0.3, 0.1), config, K
    )
    # error: first value (.4 + .8 + .6) / 3 = .6. short: (.25 + 0) / 2. long: .25 from one probe.
    assert state.error.item() == pytest.approx(0.6)
    assert state.slope_short.item() == pytest.approx(0.125, rel=1e-4)
    assert state.slope_long.item() == pytest.approx(0.25, rel=1e-4)
    u_short, u_long = math.tanh(0.125 / 0.3), math.tanh(0.25 / 0.3)
    m = (1 - u_long) * (0.4 * (1 - u_short) + u_short) + 1.3 * u_long
    assert decision.m.item() == pytest.approx(m, rel=1e-4)
    # bases: .4/.6 * 48 = 32; .8/.6 * 48 = 64; 48
    expected = [m * 32, min(m * 64, 64), m * 48]
    assert targets.tolist() == pytest.approx(expected, rel=1e-4)

    state, _, _ = observe(
        state, t(1.0, 1.0, 1.0), t(1.0, 1.0), probes, t(1.5, 1.1), t(1.0, 0.0), config, K
    )
    assert state.error.item() == pytest.approx(0.9 * 0.6 + 0.1 * 1.0)
    assert state.slope_short.item() == pytest.approx(0.5 * 0.125 + 0.5 * 0.3, rel=1e-4)
    assert state.slope_long.item() == pytest.approx(0.5 * 0.25 + 0.5 * 0.0, rel=1e-4)


def test_no_valid_probe_leaves_the_slopes_alone():
    state = CurriculumState(t(0.5), t(1.0), t(0.1), t(1.0), t(0.2), t(1.0))
    probes = probe_lengths(torch.tensor([5]), PAPER, K)
    error, short, long = (torch.tensor([value]) for value in (0.5, 9.0, 0.0))
    new, _, _ = observe(state, error, error, probes, short, long, PAPER, K)
    assert (new.slope_short.item(), new.slope_long.item()) == pytest.approx((0.1, 0.2))


def test_the_oracle_leaves_no_gradient():
    error = torch.tensor([0.5, 0.6], requires_grad=True)
    probes = probe_lengths(torch.tensor([20, 30]), PAPER, K)
    short = torch.tensor([0.6, 0.7], requires_grad=True)
    state, targets, decision = observe(
        initial_state(), error, error, probes, short, short, PAPER, K
    )
    assert not any(x.requires_grad for x in (*state, targets, *decision))


def test_two_processes_observe_what_one_does(monkeypatch):
    error, short, long = t(0.4, 0.8, 0.6, 0.9), t(0.5, 0.9, 0.6, 0.9), t(0.3, 0.7, 0.6, 0.8)
    lengths = torch.tensor([8, 20, 64, 30])
    whole, targets, _ = observe(
        initial_state(), error, error, probe_lengths(lengths, PAPER, K), short, long, PAPER, K
    )
    shares: list[torch.Tensor] = []
    halves = [slice(0, 2), slice(2, 4)]

    def gather(value: torch.Tensor) -> torch.Tensor:
        shares.append(value)
        return value

    def run(rows: slice, summed):
        monkeypatch.setattr(curriculum, "summed", summed)
        probes = probe_lengths(lengths[rows], PAPER, K)
        return observe(
            initial_state(),
            error[rows],
            error[rows],
            probes,
            short[rows],
            long[rows],
            PAPER,
            K,
        )

    for rows in halves:
        run(rows, gather)
    total = shares[0] + shares[1]
    for rows in halves:
        state, part, _ = run(rows, lambda _: total)
        assert torch.allclose(torch.stack(state), torch.stack(whole))
        assert torch.allclose(part, targets[rows])


def test_everything_in_steps_scales_with_the_run():
    config = scaled(PAPER, 5_000)
    assert config.phase_ends == (1_000, 1_500, 2_000, 2_500)
    assert config.error_decay == pytest.approx(0.999**100)
    assert config.slope_decay == pytest.approx(0.99**100)
    assert config.oracle_scale == 0.75
    assert config.truncation_minimum == 8
    assert scaled(PAPER, 500_000) == PAPER


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"phase_ends": (1, 2, 3)}, "phase_ends"),
        ({"phase_ends": (4, 3, 2, 1)}, "phase_ends"),
        ({"probe_fraction": 1.5}, "probe_fraction"),
        ({"probe_fraction": 0.0}, "probe_fraction"),
        ({"probe_fraction": 0.9}, "probe_fraction"),
        ({"probe_fraction": 0.67}, "probe_fraction"),
        ({"probe_fraction": 0.3}, "probe_fraction"),
        ({"oracle_minimum": 0}, "oracle_minimum"),
        ({"handoff_ceiling": -0.1}, "handoff_ceiling"),
        ({"truncation_minimum": 0}, "truncation_minimum"),
        ({"probe_temperature": 0.0}, "probe_temperature"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, names):
    with pytest.raises(ConfigError, match=names):
        CurriculumConfig(**values)
