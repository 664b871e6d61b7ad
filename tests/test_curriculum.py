"""Every formula of the paper's Appendix A against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from strop.curriculum import (
    CurriculumConfig,
    CurriculumState,
    alpha,
    average,
    base_targets,
    cheapest_lengths,
    handoff,
    initial_state,
    knot_lengths,
    mixed_lengths,
    modulator,
    observe,
    observe_outlines,
    observe_rates,
    oracle_targets,
    phase,
    price,
    probe_lengths,
    probe_stride,
    random_lengths,
    scaled,
    shortest_lengths,
    slopes,
    total_variation,
)
from strop.errors import ConfigError

PAPER = CurriculumConfig()
K = 64


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values) if len(values) > 1 else torch.tensor(values[0])


def test_phases_switch_at_the_papers_steps():
    steps = (0, 99_999, 100_000, 149_999, 150_000, 200_000, 249_999, 250_000, 499_999)
    assert [phase(PAPER, s) for s in steps] == [1, 1, 2, 2, 3, 4, 4, 5, 5]
    assert phase(CurriculumConfig(enabled=False), 300_000) == 1


def test_alpha_falls_linearly_to_one_at_the_end_of_phase_one():
    assert [alpha(PAPER, s) for s in (0, 25_000, 50_000, 100_000, 400_000)] == [3, 2.5, 2, 1, 1]
    assert alpha(CurriculumConfig(bias_steps=50_000), 25_000) == 2
    assert alpha(CurriculumConfig(bias_steps=0), 0) == 1


def test_the_ramp_at_its_ends_and_middle():
    steps = (0, 200_000, 225_000, 250_000, 500_000)
    assert [handoff(PAPER, s) for s in steps] == [0, 0, 0.5, 1, 1]
    kept = CurriculumConfig(handoff_ceiling=0.8)
    assert [handoff(kept, s) for s in steps] == [0, 0, 0.4, 0.8, 0.8]
    abrupt = CurriculumConfig(phase_ends=(1, 2, 3, 3))
    assert [handoff(abrupt, s) for s in (2, 3, 4)] == [0, 1, 1]
    assert handoff(CurriculumConfig(enabled=False), 500_000) == 0


def test_random_lengths_are_beta_of_uniform_numbers():
    # alpha 2: u = sqrt(U). 8 + .5 * 56 = 36; 8 + 1 * 56 = 64; 8 + sqrt(.5) * 56 = 47.598 -> 48
    uniform = t(0.25, 0.0, 1.0, 0.5)
    assert random_lengths(uniform, t(2.0), 8, K).tolist() == [36, 8, 64, 48]
    # alpha 1: 8 + .25 * 56 = 22
    assert random_lengths(uniform, t(1.0), 8, K).tolist() == [22, 8, 64, 36]


def test_random_lengths_have_the_mean_of_their_beta():
    uniform = torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    # the mean of Beta(3, 1) is 3/4: 8 + .75 * 56 = 50
    assert random_lengths(uniform, t(3.0), 8, K).float().mean().item() == pytest.approx(50, abs=0.1)
    assert random_lengths(uniform, t(1.0), 8, K).float().mean().item() == pytest.approx(36, abs=0.1)


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


def test_contrast_pushes_targets_away_from_the_average_samples():
    config = CurriculumConfig(oracle_contrast=2.0)
    # beta K = 48. e = mean: 48; half: 48 / 4; 1.1 of it: 48 * 1.21; a tenth: .48 -> 2
    base = base_targets(t(0.5, 0.25, 0.55, 0.05), t(0.5), config, K)
    assert base.tolist() == pytest.approx([48, 12, 58.08, 2], rel=1e-5)


def test_contrast_reaches_targets_read_off_rate_curves():
    # The curve reaches 1.05 of its least a little before 8 tokens, at 7.8; beta K = 16, contrast 2:
    # 16 * (7.8 / 16) ** 2
    config = CurriculumConfig(
        oracle="tolerance", oracle_scale=0.25, oracle_contrast=2.0, oracle_minimum=1, rate_knots=7
    )
    assert knot_lengths(config, K) == (1, 2, 4, 8, 16, 32, 64)
    curve = torch.tensor([[4.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0]])
    _, targets = observe_rates(initial_state(), curve, config, K)
    assert targets.tolist() == pytest.approx([3.8025], rel=1e-5)


def test_contrast_comes_before_the_modulator():
    # Flat slopes: m = .4. Errors .4 and .8 about .6, beta K = 48, contrast 2: bases 48 * 4 / 9 and
    # 48 * 16 / 9 -> 64, then .4 of each.
    config = CurriculumConfig(oracle_contrast=2.0)
    error = t(0.4, 0.8)
    probes = probe_lengths(torch.tensor([20, 30]), config, K)
    _, targets, _ = observe(initial_state(), error, error, probes, error, error, config, K)
    assert targets.tolist() == pytest.approx([0.4 * 64 / 3, 25.6], rel=1e-4)


def test_corrected_targets_are_clipped_at_both_ends():
    base = t(48.0, 60.0, 2.0, 10.0)
    assert oracle_targets(base, t(1.3), PAPER, K).tolist() == pytest.approx([62.4, 64, 2.6, 13])
    assert oracle_targets(base, t(0.4), PAPER, K).tolist() == pytest.approx([19.2, 24, 2, 4])
    capped = CurriculumConfig(oracle_maximum=32)
    assert oracle_targets(base, t(1.0), capped, K).tolist() == [32, 32, 2, 10]


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
    state = CurriculumState(t(0.5), t(1.0), t(0.1), t(1.0), t(0.2), t(1.0), t(0.0))
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


def test_two_processes_observe_what_one_does():
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

    def run(rows: slice, reduce):
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
            reduce=reduce,
        )

    for rows in halves:
        run(rows, gather)
    total = shares[0] + shares[1]
    for rows in halves:
        state, part, _ = run(rows, lambda _: total)
        assert torch.allclose(torch.stack(state), torch.stack(whole))
        assert torch.allclose(part, targets[rows])


def test_everything_in_steps_scales_with_the_run():
    config = scaled(CurriculumConfig(bias_steps=50_000), 5_000)
    assert config.phase_ends == (1_000, 1_500, 2_000, 2_500)
    assert config.bias_steps == 500
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
        ({"oracle_maximum": -3}, "oracle_maximum"),
        ({"oracle_maximum": 3, "oracle_minimum": 4}, "oracle_maximum"),
        ({"handoff_ceiling": -0.1}, "handoff_ceiling"),
        ({"oracle_contrast": 0.0}, "oracle_contrast"),
        ({"truncation_minimum": 0}, "truncation_minimum"),
        ({"fixed_length": 0}, "fixed_length"),
        ({"probe_temperature": 0.0}, "probe_temperature"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, names):
    with pytest.raises(ConfigError, match=names):
        CurriculumConfig(**values)


# --- oracles that read rate curves ------------------------------------------------------------


def test_knots_are_even_in_the_logarithm_from_the_shortest_target_to_k():
    # ratios of 2: 2, 4, 8, 16, 32, 64
    assert knot_lengths(CurriculumConfig(rate_knots=6), K) == (2, 4, 8, 16, 32, 64)
    # few tokens leave fewer knots than asked for, never the same one twice
    assert knot_lengths(CurriculumConfig(rate_knots=10), 6) == (2, 3, 4, 5, 6)
    assert knot_lengths(CurriculumConfig(rate_knots=4, oracle_minimum=8), 8) == (8,)


def test_the_cheapest_length_is_at_the_vertex():
    # In x = log2 L: knots at 1, 2, 3. Costs 3, 1, 3: the middle. Costs 2, 1, 2.5: the parabola
    # through (1, 2), (2, 1), (3, 2.5) is 1.25 x^2 - 4.75 x + 5.5, its vertex x = 1.9.
    knots = (2, 4, 8)
    curves = torch.tensor([[3.0, 1.0, 3.0], [2.0, 1.0, 2.5]])
    assert cheapest_lengths(curves, knots, t(0.0)).tolist() == pytest.approx([4.0, 2**1.9])


def test_tokens_cost_their_share_of_the_price():
    # price 4: L/K * 4 is 1, 2, 4. Errors 4, 1, 0 become 5, 3, 4: vertex of (1, 5), (2, 3), (3, 4)
    # is 2 + .5 * (5 - 4) / (5 - 6 + 4) = 2 + 1/6
    found = cheapest_lengths(torch.tensor([[4.0, 1.0, 0.0]]), (2, 4, 8), t(4.0))
    assert found.item() == pytest.approx(2 ** (2 + 1 / 6))


def test_doublings_cost_alike():
    # price 1: log2 L is 1, 2, 3. Errors 4, 1, .5 become 5, 3, 3.5: the vertex of (1, 5), (2, 3),
    # (3, 3.5) is 2 + .5 * (5 - 3.5) / (5 - 6 + 3.5) = 2.3
    found = cheapest_lengths(torch.tensor([[4.0, 1.0, 0.5]]), (2, 4, 8), t(1.0), "doubling")
    assert found.item() == pytest.approx(2**2.3)


def test_a_price_for_doublings_tells_images_further_apart():
    # Errors b / sqrt(L): at a price per token L goes with b^(2/3), at one per doubling with b^2.
    config = CurriculumConfig()
    knots = knot_lengths(config, K)
    curves = torch.tensor([[1.0], [1.5]]) * torch.tensor(knots).float() ** -0.5
    ratios = {}
    for per, cost in (("token", 1.0), ("doubling", 0.1)):
        short, long = cheapest_lengths(curves, knots, t(cost), per).tolist()
        assert 2 < short < long < K
        ratios[per] = long / short
    assert ratios["token"] == pytest.approx(1.5 ** (2 / 3), rel=0.05)
    assert ratios["doubling"] == pytest.approx(1.5**2, rel=0.05)


def test_a_curve_that_only_falls_takes_all_and_one_that_only_rises_takes_least():
    curves = torch.tensor(
        [[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0], [0.0, 3.0, 4.0, 4.1], [9.0, 4.0, 1.0, 0.0]]
    )
    found = cheapest_lengths(curves, (2, 4, 8, 16), t(0.0)).tolist()
    assert found[0] == pytest.approx(16)
    assert found[1] == pytest.approx(2)
    assert found[2] == pytest.approx(2)
    # convex: the vertex of 9, 4, 1, 0 = (4 - x)^2 lies at the last knot itself
    assert found[3] == pytest.approx(16)


def test_a_dip_half_way_does_not_hide_a_lower_end():
    curves = torch.tensor([[0.0, 3.0, 2.0, 2.5], [5.0, 1.0, 2.0, 0.0]])
    assert cheapest_lengths(curves, (2, 4, 8, 16), t(0.0)).tolist() == pytest.approx([2.0, 16.0])


def test_two_knots_are_no_parabola():
    assert cheapest_lengths(torch.tensor([[1.0, 0.5]]), (2, 3), t(0.0)).tolist() == [3.0]


def test_a_higher_price_never_buys_more():
    curves = torch.tensor([[0.9, 0.5, 0.3, 0.2, 0.15, 0.13]])
    lengths = [
        cheapest_lengths(curves, (2, 4, 8, 16, 32, 64), t(p)).item() for p in (0.0, 0.1, 1, 9)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == pytest.approx(64)
    assert lengths[-1] < 4


def test_the_shortest_length_within_a_tolerance():
    # least 1.0, limit 1.5. Row 1 crosses halfway between 4 (2.0) and 8 (1.0): 6.
    # Row 2 is within it from the start. Row 3 is exactly at the limit at 4.
    curves = torch.tensor([[3.0, 2.0, 1.0], [1.2, 1.1, 1.0], [3.0, 1.5, 1.0]])
    assert shortest_lengths(curves, (2, 4, 8), 0.5).tolist() == pytest.approx([6.0, 2.0, 4.0])


def test_the_price_is_steered_to_the_mean_length():
    config = CurriculumConfig(oracle="price", oracle_scale=0.25, price_rate=0.1, rate_knots=6)
    falling = torch.tensor([[3.0, 2.9, 2.0, 1.5, 0.5, 0.0]])
    state, targets = observe_rates(initial_state(), falling, config, K)
    # nearly free, so all 64 tokens are bought where 16 are meant: excess 64 / 16 - 1 = 3
    assert targets.item() == pytest.approx(64)
    assert state.log_price.item() == pytest.approx(0.3)
    assert price(state).item() == pytest.approx(0.01 * math.exp(0.3))
    flat = torch.ones(1, 6)
    state, targets = observe_rates(state, flat, config, K)
    # nothing to gain: the shortest target, 2 of 16, excess -7/8
    assert targets.item() == pytest.approx(2)
    assert state.log_price.item() == pytest.approx(0.3 - 0.0875)


def test_the_price_of_a_doubling_reaches_the_targets():
    # A price of 1, as in `test_doublings_cost_alike`; per token it would be 2 ** 2.5.
    config = CurriculumConfig(
        oracle="price", oracle_scale=0.5, rate_knots=3, price_per="doubling", price_rate=0.1
    )
    assert knot_lengths(config, 8) == (2, 4, 8)
    state = CurriculumState(*initial_state()[:-1], t(math.log(100)))
    state, targets = observe_rates(state, torch.tensor([[4.0, 1.0, 0.5]]), config, 8)
    assert targets.item() == pytest.approx(2**2.3)
    # 4.925 tokens where 4 are meant
    assert state.log_price.item() == pytest.approx(math.log(100) + 0.1 * (2**2.3 / 4 - 1))


def test_the_price_is_steered_by_the_targets_that_are_asked_for():
    # Contrast 2 about 16: targets 16 and 24 ** 2 / 16 = 36, mean 26, not the mean 20 before it.
    config = CurriculumConfig(
        oracle="residue", oracle_scale=0.25, oracle_contrast=2.0, price_rate=0.1
    )
    state, targets = observe_rates(initial_state(), t(0.01, 0.015)[:, None], config, K)
    assert targets.tolist() == pytest.approx([16, 36])
    assert state.log_price.item() == pytest.approx(0.0625)


def test_two_processes_steer_the_price_as_one_does():
    config = CurriculumConfig(oracle="price", oracle_scale=0.25, rate_knots=6)
    curves = torch.tensor([[3.0, 2.9, 2.0, 1.5, 0.5, 0.0], [1.0] * 6])
    whole, targets = observe_rates(initial_state(), curves, config, K)
    # 64 and 2 tokens, so 66 of two samples, whichever process they are in
    for row in range(2):
        state, part = observe_rates(
            initial_state(), curves[row : row + 1], config, K, reduce=lambda _: t(66.0, 2.0)
        )
        assert part.item() == pytest.approx(targets[row].item())
        assert state.log_price.item() == pytest.approx(whole.log_price.item())


def test_with_a_tolerance_there_is_no_price():
    config = CurriculumConfig(oracle="tolerance", oracle_tolerance=0.5, rate_knots=3)
    curves = torch.tensor([[3.0, 2.0, 1.0]])  # knots 2, 11, 64; the limit 1.5 lies halfway
    state, targets = observe_rates(initial_state(), curves, config, K)
    assert targets.item() == pytest.approx((11 + 64) / 2)
    assert state.log_price.item() == 0


def test_lengths_in_proportion_to_what_all_tokens_leave():
    config = CurriculumConfig(oracle="residue", oracle_scale=0.25, price_rate=0.1)
    assert knot_lengths(config, K) == (64,)
    # The first price is .01, the mean 16. An error of .01 has 16, of .02 32, of .001 1.6 -> 2.
    state, targets = observe_rates(initial_state(), t(0.01, 0.02, 0.001)[:, None], config, K)
    assert targets.tolist() == pytest.approx([16, 32, 2])
    assert state.log_price.item() == pytest.approx(0.1 * (50 / 3 / 16 - 1))
    squared = CurriculumConfig(oracle="residue", oracle_scale=0.25, oracle_contrast=2.0)
    _, targets = observe_rates(initial_state(), t(0.01, 0.015, 0.1)[:, None], squared, K)
    assert targets.tolist() == pytest.approx([16, 36, 64])


def test_total_variation_is_the_mean_step_between_neighbours():
    # On the grid [[0, 1], [3, 7]]: steps of 3 and 6 down, 1 and 4 across.
    field = torch.tensor([[[[0.0], [1.0]], [[3.0], [7.0]]]])
    assert total_variation(field).item() == pytest.approx(14 / 4)
    # Channels are averaged as squares: of two that differ, one stands still.
    still = torch.cat([field, torch.ones_like(field)], dim=3)
    assert total_variation(still).item() == pytest.approx(14 / 4 / math.sqrt(2))
    assert total_variation(field + 5).item() == pytest.approx(14 / 4)
    assert total_variation(torch.ones(2, 3, 4, 5)).tolist() == [0, 0]


def test_total_variation_follows_outlines_and_not_what_they_enclose():
    def shown(*squares: tuple[int, int, int]) -> float:
        field = torch.zeros(1, 32, 32, 1)
        for top, left, side in squares:
            field[0, top : top + side, left : left + side] = 1
        return total_variation(field).item() * 2 * 31 * 32

    # A square of side a has 4 a steps of one: 16 of 256 locations have as many as one of 64.
    assert shown((4, 4, 16)) == pytest.approx(64)
    assert shown((4, 4, 4)) == pytest.approx(16)
    apart = ((4, 4, 4), (4, 20, 4), (20, 4, 4), (20, 20, 4))
    assert shown(*apart) == pytest.approx(64)


def test_lengths_in_proportion_to_outlines():
    config = CurriculumConfig(oracle="outlines", oracle_scale=0.25, error_decay=0.5)
    # The first average is that of the batch, 2; of 64 tokens an average sample gets 16.
    state, targets = observe_outlines(initial_state(), t(1.0, 2.0, 3.0, 2.0), config, K)
    assert targets.tolist() == pytest.approx([8, 16, 24, 16], rel=1e-5)
    assert (state.error.item(), state.error_seen.item()) == (2.0, 1.0)
    # Then half of it is that of the new batch: (2 + 6) / 2. What would be 0.4 tokens are 2.
    state, targets = observe_outlines(state, t(0.1, 11.9), config, K)
    assert state.error.item() == pytest.approx(4)
    assert targets.tolist() == pytest.approx([2, 47.6], rel=1e-5)
    assert state[2:] == initial_state()[2:]  # no slopes, no price
    squared = CurriculumConfig(oracle="outlines", oracle_scale=0.25, oracle_contrast=2.0)
    _, targets = observe_outlines(initial_state(), t(1.0, 3.0), squared, K)
    assert targets.tolist() == pytest.approx([4, 36], rel=1e-5)


def test_two_processes_know_the_mean_outlines_of_both():
    config = CurriculumConfig(oracle="outlines")
    whole, targets = observe_outlines(initial_state(), t(1.0, 2.0, 3.0, 6.0), config, K)
    both = t(12.0, 4.0)
    part, half = observe_outlines(
        initial_state(), t(1.0, 2.0), config, K, reduce=lambda own: both + 0 * own
    )
    assert torch.equal(half, targets[:2])
    assert part.error == whole.error


def test_the_teacher_looks_closer_only_where_the_oracle_asks():
    assert CurriculumConfig(oracle="outlines", oracle_zoom=3).zoom == 3
    assert CurriculumConfig(oracle="price", oracle_zoom=3).zoom is None
    assert CurriculumConfig(oracle="outlines", enabled=False).zoom is None


@pytest.mark.parametrize("oracle", ["price", "residue"])
def test_the_steered_mean_is_reached(oracle):
    generator = torch.Generator().manual_seed(0)
    config = CurriculumConfig(oracle=oracle, oracle_scale=0.4, price_rate=0.05)
    knots = torch.tensor(knot_lengths(config, K)).float()
    state, means = initial_state(), []
    for _ in range(400):
        detail = 0.2 + torch.rand(32, 1, generator=generator)  # images of different detail
        state, targets = observe_rates(state, detail * (-knots / (20 * detail)).exp(), config, K)
        means.append(targets.mean().item())
    assert sum(means[-50:]) / 50 == pytest.approx(0.4 * K, rel=0.05)
