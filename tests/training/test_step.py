"""One step: what each loss moves, what the oracle leaves alone, and that nothing recompiles."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
import torch._dynamo
from tiny_training import GRID, WIDTH, K, tiny_centred_config, tiny_fields, tiny_tokenizer
from torch import nn

from strop.curriculum import CurriculumConfig, Oracle, initial_state, observe_rates, scaled
from strop.objective import ObjectiveConfig
from strop.training.config import TrainingConfig
from strop.training.forward import (
    METRICS,
    SCALARS,
    TERMS,
    Recipe,
    forward,
    rate_curves,
    step_values,
)
from strop.training.loop import stepper_trouble
from strop.training.recorded import WARM_STEPS
from strop.training.step import MOST_SPOILT, Stepper, parameter_groups, trainable

CPU = torch.device("cpu")
STEPS = 40
ORACLES = pytest.mark.parametrize("oracle", get_args(Oracle))


def recipe(*, extra_loss=None, objective=None, curriculum=None, **training) -> Recipe:
    training = {"steps": STEPS, "batch": 8, "reseed_every": 5, **training}
    curriculum = {"truncation_minimum": 4, "oracle_minimum": 1, **(curriculum or {})}
    steps = training["steps"]
    return Recipe(
        scaled(ObjectiveConfig(**(objective or {})), steps),
        scaled(CurriculumConfig(**curriculum), steps),
        scaled(TrainingConfig(**training), steps),
        extra_loss=extra_loss,
    )


def batch() -> torch.Tensor:
    return tiny_fields(8)[:, 0]


OUTLINES = torch.linspace(1, 2, 8)


def outlined(plan) -> Stepper:
    return Stepper(
        tiny_tokenizer(),
        lambda loaded: loaded[0],
        plan,
        device=CPU,
        outlines_of=lambda loaded: OUTLINES,
    )


def run_forward(tokenizer, plan, step, *, probing=True):
    return forward(
        tokenizer,
        batch(),
        step_values(plan, step),
        initial_state(),
        plan,
        probing=probing,
        precision=torch.float32,
        outlines=OUTLINES,
    )


@ORACLES
def test_the_length_loss_moves_the_head_alone(oracle):
    tokenizer = tiny_tokenizer()
    plan = recipe(
        objective={"commitment_weight": 0.0, "diversity_weight": 0.0},
        curriculum={"oracle": oracle, "probe_fraction": 0.5},
    )
    gate = SCALARS.index("length_gate")
    values = step_values(plan, STEPS - 1)
    assert values[gate] == 1
    gradients = {}
    for on in (0.0, 1.0):
        values[gate] = on
        tokenizer.zero_grad()
        forward(
            tokenizer,
            batch(),
            values,
            initial_state(),
            plan,
            probing=True,
            precision=torch.float32,
            outlines=OUTLINES,
        ).loss.backward()
        gradients[on] = {n: p.grad.clone() for n, p in trainable(tokenizer).items()}
    for name, gradient in gradients[1.0].items():
        if name.startswith("length_head."):
            assert not gradients[0.0][name].any()
        else:
            assert torch.equal(gradient, gradients[0.0][name]), name
    assert any(gradients[1.0][n].any() for n in gradients[1.0] if n.startswith("length_head."))


@ORACLES
def test_the_oracle_and_its_probes_leave_no_gradient(oracle):
    tokenizer = tiny_tokenizer()
    plan = recipe(curriculum={"oracle": oracle})
    gradients = []
    for probing in (False, True):  # phase 2: probes, but no length loss yet
        tokenizer.zero_grad()
        outcome = run_forward(tokenizer, plan, 9, probing=probing)
        outcome.loss.backward()
        gradients.append(
            {
                name: p.grad.clone()
                for name, p in trainable(tokenizer).items()
                if not name.startswith("length_head.")
            }
        )
        assert not any(value.requires_grad for value in outcome.state)
        assert not outcome.metrics.requires_grad
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name


def test_the_head_rests_until_phase_three():
    tokenizer = tiny_tokenizer()
    plan = recipe()
    stepper = Stepper(tokenizer, lambda loaded: loaded[0], plan, device=CPU)
    before = {n: p.detach().clone() for n, p in tokenizer.length_head.named_parameters()}
    first = plan.curriculum.phase_ends[1]
    for step in range(first):
        stepper((batch(),), step_values(plan, step), step)
    for name, parameter in tokenizer.length_head.named_parameters():
        assert torch.equal(parameter, before[name]), name
    stepper((batch(),), step_values(plan, first), first)
    assert any(not torch.equal(p, before[n]) for n, p in tokenizer.length_head.named_parameters())


def test_lengths_are_random_then_predicted():
    tokenizer = tiny_tokenizer()
    plan = recipe(batch=8)
    early = run_forward(tokenizer, plan, 0).active.sum(-1)
    assert early.min() >= 4
    assert len(early.unique()) > 1
    late = run_forward(tokenizer, plan, STEPS - 1).active.sum(-1)
    expected = tokenizer.length_head(batch().float() * 0.5).round().clamp(1, K).long()
    assert torch.equal(late, expected)


def test_without_a_curriculum_every_program_has_its_fixed_length():
    tokenizer = tiny_tokenizer()
    plan = recipe(curriculum={"enabled": False})
    assert (run_forward(tokenizer, plan, 0, probing=False).active.sum(-1) == K).all()
    plan = recipe(curriculum={"enabled": False, "fixed_length": 3})
    assert (run_forward(tokenizer, plan, STEPS - 1, probing=False).active.sum(-1) == 3).all()
    stepper = Stepper(tokenizer, lambda loaded: loaded[0], plan, device=CPU)
    assert stepper.variants == (False,)


def test_probing_a_fraction_changes_the_slopes_alone():
    tokenizer = tiny_tokenizer()
    whole = run_forward(tokenizer, recipe(), 9)
    half = run_forward(tokenizer, recipe(curriculum={"probe_fraction": 0.5}), 9)
    assert torch.equal(whole.state.error, half.state.error)
    assert torch.equal(whole.loss, half.loss)


def test_the_targets_of_a_rate_curve_are_of_the_probed_rows_and_steered_by_the_price():
    tokenizer = tiny_tokenizer()
    seen = []
    for fraction in (1.0, 0.5):
        plan = recipe(curriculum={"oracle": "price", "probe_fraction": fraction})
        outcome = run_forward(tokenizer, plan, 9)
        seen.append(dict(zip(METRICS, outcome.metrics.tolist(), strict=False)))
        mean = seen[-1]["target_length"] / (0.75 * K)
        assert outcome.state.log_price.item() == pytest.approx(0.02 * (mean - 1), abs=1e-6)
    assert seen[0]["target_length"] != seen[1]["target_length"]
    assert seen[0]["latent"] == seen[1]["latent"]


def test_decay_spares_norms_biases_and_embeddings():
    tokenizer = tiny_tokenizer()
    rates = torch.tensor(0.1), torch.tensor(0.2)
    groups = parameter_groups(tokenizer, 0.5, *rates)
    names = {id(p): n for n, p in tokenizer.named_parameters()}
    spared = {names[id(p)] for g in groups if not g["weight_decay"] for p in g["params"]}
    decayed = {names[id(p)] for g in groups if g["weight_decay"] == 0.5 for p in g["params"]}
    assert spared | decayed == set(trainable(tokenizer))
    assert {"generator.queries", "generator.source_positions", "interpreter.grid"} <= spared
    assert all(n.endswith("weight") for n in decayed)
    assert all("norm" not in n for n in decayed)
    assert {"generator.project.weight", "quantizer.project.weight"} <= decayed
    head = {names[id(p)] for g in groups if g["lr"] is rates[1] for p in g["params"]}
    assert head == {n for n in trainable(tokenizer) if n.startswith("length_head.")}


def test_an_extra_term_joins_the_loss():
    tokenizer = tiny_tokenizer()
    plain = run_forward(tokenizer, recipe(), 9)
    more = run_forward(
        tokenizer, recipe(extra_loss=lambda seen: seen.predicted.square().mean() + 1), 9
    )
    extra = more.metrics[METRICS.index("extra")]
    assert extra > 1
    assert torch.allclose(more.loss, plain.loss + extra)


def test_distillation_aligns_a_prefix_with_the_whole_program():
    tokenizer, plan = tiny_tokenizer(), recipe(objective={"distillation_weight": 2.0})
    plain, more = run_forward(tokenizer, recipe(), 3), run_forward(tokenizer, plan, 3)
    # By hand: the same lengths, interpreted once at those and once with all K tokens.
    field = batch().float() * tokenizer.config.teacher.scale
    z_q = tokenizer.quantizer(tokenizer.generator(field)).z_q
    short, whole = (
        tokenizer.interpreter(z_q, x) for x in (more.active, torch.ones_like(more.active))
    )
    cosine = torch.nn.functional.cosine_similarity(short, whole, dim=-1).mean()
    expected = 1 - cosine + (short - whole).square().mean()
    found = more.terms[TERMS.index("distillation")]
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    assert more.loss.item() == pytest.approx(plain.loss.item() + 2 * expected.item(), rel=1e-4)


class Counting(nn.Module):
    """An interpreter whose field is `a` times the number of active tokens, everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(()))

    def forward(self, z_q: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        return (self.a * active.sum(-1))[:, None, None].expand(-1, GRID * GRID, WIDTH)


def test_distillation_teaches_the_prefix_alone():
    # Two tokens say 2 where all ten say 10: cosine 1, squared error 64. Its gradient in `a` is
    # 2 * (2 - 10) * 2 = -32 as long as the ten stand still; with them it would be 2 * 64.
    terms, gradients = [], []
    for weight in (0.0, 1.0):
        tokenizer = tiny_tokenizer()
        tokenizer.interpreter = Counting()
        plan = recipe(
            objective={"distillation_weight": weight},
            curriculum={"enabled": False, "fixed_length": 2},
        )
        outcome = run_forward(tokenizer, plan, 3, probing=False)
        outcome.loss.backward()
        terms.append(outcome.terms[TERMS.index("distillation")].item())
        gradients.append(tokenizer.interpreter.a.grad.item())
    assert terms == pytest.approx([0.0, 64.0], rel=1e-5)
    assert gradients[1] - gradients[0] == pytest.approx(-32.0, rel=1e-4)


def test_a_program_shown_whole_has_nothing_to_learn_from_itself():
    tokenizer = tiny_tokenizer()
    plan = recipe(objective={"distillation_weight": 1.0}, curriculum={"enabled": False})
    outcome = run_forward(tokenizer, plan, 3, probing=False)
    assert outcome.terms[TERMS.index("distillation")].item() == pytest.approx(0, abs=1e-6)


def test_rate_curves_are_squared_errors():
    # Fields of -1 where L tokens say L: (L + 1) ** 2. Latent alignment would add 2, the cosine's.
    tokenizer = tiny_tokenizer()
    tokenizer.interpreter = Counting()
    config = CurriculumConfig(oracle="price", oracle_minimum=1, rate_knots=3)
    z_q, field = torch.zeros(2, K, 4), -torch.ones(2, GRID * GRID, WIDTH)
    curves = rate_curves(tokenizer, z_q, field, config)
    assert curves.tolist() == [[4.0, 16.0, 121.0]] * 2  # at 1, 3 and all 10 tokens


def test_an_oracle_that_probes_every_second_row_teaches_those_rows():
    tokenizer = tiny_tokenizer()
    config = {"oracle": "price", "probe_fraction": 0.5, "rate_knots": 3}
    outcome = run_forward(tokenizer, recipe(curriculum=config), 9)
    found = dict(zip(METRICS, outcome.metrics.tolist(), strict=False))
    field = batch().float() * tokenizer.config.teacher.scale
    hat = tokenizer.length_head(field)[::2]
    z_q = tokenizer.quantizer(tokenizer.generator(field)).z_q
    plan = recipe(curriculum=config).curriculum
    curves = rate_curves(tokenizer, z_q[::2], field[::2], plan)
    _, target = observe_rates(initial_state(), curves, plan, K)
    assert found["predicted_length"] == pytest.approx(hat.mean().item(), rel=1e-5)
    assert found["target_length"] == pytest.approx(target.mean().item(), rel=1e-5)
    assert found["length"] == pytest.approx(((hat - target) / K).square().mean().item(), rel=1e-4)


def test_outlines_reach_the_targets_of_all_rows():
    # From 1 to 2, so 1.5 on average: a sample of average outlines gets half of ten tokens.
    config = {"oracle": "outlines", "oracle_scale": 0.5, "probe_fraction": 0.5}
    outcome = run_forward(tiny_tokenizer(), recipe(curriculum=config), 9)
    found = dict(zip(METRICS, outcome.metrics.tolist(), strict=False))
    targets = 5 * OUTLINES / 1.5
    assert found["target_length"] == pytest.approx(targets.mean().item(), rel=1e-4)
    assert found["target_length_squared"] == pytest.approx(targets.square().mean().item(), rel=1e-4)
    assert outcome.state.error.item() == pytest.approx(1.5)


def test_outlines_are_looked_at_only_when_the_oracle_is_at_work():
    asked = []

    def outlines_of(loaded):
        asked.append(loaded)
        return loaded[1]

    plan = recipe(curriculum={"oracle": "outlines"})
    stepper = Stepper(
        tiny_tokenizer(), lambda loaded: loaded[0], plan, device=CPU, outlines_of=outlines_of
    )
    first = plan.curriculum.phase_ends[0]
    for step in (0, first - 1, first):
        stepper((batch(), OUTLINES), step_values(plan, step), step)
    assert len(asked) == 1


def test_the_ceiling_reaches_the_step():
    share = SCALARS.index("handoff")
    kept = recipe(curriculum={"handoff_ceiling": 0.5})
    assert step_values(kept, STEPS - 1)[share] == 0.5
    assert step_values(recipe(), STEPS - 1)[share] == 1.0


def test_clipping_bounds_the_update_and_reports_the_norm():
    tokenizer = tiny_tokenizer()
    plan = recipe(clip=1e-3)
    stepper = Stepper(tokenizer, lambda loaded: loaded[0], plan, device=CPU)
    stepper((batch(),), step_values(plan, 0), 0)
    norm = torch.cat(
        [p.grad.flatten() for p in tokenizer.parameters() if p.grad is not None]
    ).norm()
    assert norm.item() <= 1.01e-3
    assert stepper.take_metrics()["gradient_norm"] > 1e-2


def test_averaged_weights_follow_and_can_be_looked_at():
    tokenizer = tiny_tokenizer()
    plan = recipe(weight_average=0.5)
    expected = tokenizer.generator.queries.detach().clone()
    stepper = Stepper(tokenizer, lambda loaded: loaded[0], plan, device=CPU)
    for step, share in ((0, 9 / 10), (1, 9 / 11), (30, 0.5)):  # 9 / 40 is below the least share
        stepper((batch(),), step_values(plan, step), step)
        now = tokenizer.generator.queries.detach().clone()
        expected += share * (now - expected)
    with stepper.averaged_weights():
        assert torch.allclose(tokenizer.generator.queries, expected)
    assert torch.equal(tokenizer.generator.queries, now)
    assert not torch.allclose(expected, now)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_recorded_steps_average_weights_as_plain_ones_do():
    found = []
    for compile_ in ("on", "off"):
        plan = recipe(weight_average=0.9, compile=compile_, precision="fp32")
        device = torch.device("cuda")
        tokenizer = tiny_tokenizer().to(device)
        stepper = Stepper(tokenizer, lambda loaded: loaded[0], plan, device=device)
        loaded = (batch().to(device),)
        stepper.initialise_codebook(loaded)
        for step in range(WARM_STEPS + 6):
            stepper(loaded, step_values(plan, step).to(device), step)
        assert stepper.graphed == (compile_ == "on")
        found.append({name: x.cpu() for name, x in stepper.averaged.items()})
    for name, averaged in found[0].items():
        assert torch.allclose(averaged, found[1][name], atol=1e-3), name


def test_the_means_of_positions_follow_and_are_averaged_with_the_weights():
    # Averaged weights put tokens elsewhere than the latest do: the latest means would not fit.
    tokenizer = tiny_tokenizer(quantizer=tiny_centred_config().quantizer)
    plan = recipe(weight_average=0.5)
    stepper = Stepper(tokenizer, lambda loaded: loaded[0], plan, device=CPU)
    stepper.initialise_codebook((batch(),))
    start = tokenizer.quantizer.centre.clone()
    assert torch.equal(stepper.averaged["quantizer.centre"], start)
    for step, share in ((0, 9 / 10), (1, 9 / 11)):  # the first sees what the means were taken from
        stepper((batch(),), step_values(plan, step), step)
        now = tokenizer.quantizer.centre.clone()
        start += share * (now - start)
    with stepper.averaged_weights():
        assert torch.allclose(tokenizer.quantizer.centre, start)
    assert torch.equal(tokenizer.quantizer.centre, now)
    assert not torch.allclose(now, start)


def test_trouble_remembers_the_first_step_and_its_terms():
    tokenizer = tiny_tokenizer()
    plan = recipe()
    stepper = Stepper(tokenizer, lambda loaded: loaded[0], plan, device=CPU)
    for step in range(2):
        stepper((batch(),), step_values(plan, step), step)
    assert not stepper.trouble.any()
    for step in (2, 3):
        stepper((batch() * float("nan"),), step_values(plan, step), step)
    flag, step, latent, *_ = stepper.trouble.tolist()
    assert (flag, step) == (1, 2)
    assert latent != latent


def spoiling(when):
    """A loss term of 0 whose gradient is infinite while `when` is 0."""
    return lambda seen: ((seen.predicted - seen.predicted.detach()).sum() + when).sqrt() - when


def test_a_step_without_a_finite_gradient_moves_no_weight_and_the_run_goes_on():
    when = torch.ones(())
    tokenizer, plan = tiny_tokenizer(), recipe(extra_loss=spoiling(when))
    stepper = Stepper(tokenizer, lambda loaded: loaded[0], plan, device=CPU)
    stepper((batch(),), step_values(plan, 0), 0)
    before = {name: value.detach().clone() for name, value in stepper.parameters.items()}
    when.zero_()
    stepper((batch(),), step_values(plan, 1), 1)
    assert all(torch.equal(value, before[name]) for name, value in stepper.parameters.items())
    when.fill_(1)
    stepper((batch(),), step_values(plan, 2), 2)
    assert any(not torch.equal(v, before[name]) for name, v in stepper.parameters.items())
    assert all(value.isfinite().all() for value in stepper.parameters.values())
    assert max(kept["step"].item() for kept in stepper.optimizer.state.values()) == 2
    metrics = stepper.take_metrics()
    assert metrics["spoilt_steps"] == pytest.approx(1 / 3)
    assert 0 < metrics["gradient_norm"] < float("inf")
    assert not stepper.trouble.any()


def test_many_gradients_in_a_row_that_are_not_finite_are_trouble():
    plan = recipe(extra_loss=spoiling(torch.zeros(())))
    stepper = Stepper(tiny_tokenizer(), lambda loaded: loaded[0], plan, device=CPU)
    for step in range(MOST_SPOILT):
        assert stepper_trouble(stepper) is None
        stepper((batch(),), step_values(plan, step), step)
    step, what = stepper_trouble(stepper)
    assert step == MOST_SPOILT - 1
    assert what.startswith(f"the gradient is not finite in {MOST_SPOILT} steps in a row")
    others = int(stepper.unsound.sum()) - 1
    assert f"that of generator.source_positions and of {others} other parameters" in what
    assert not stepper.unsound[list(stepper.parameters).index("length_head.mlp.0.weight")]


@ORACLES
def test_nothing_recompiles_across_the_phases_and_the_graph_says_what_eager_does(oracle):
    torch._dynamo.reset()
    compiled = []

    def counting(graph, example_inputs):
        compiled.append(graph)
        return graph.forward

    original = torch.compile
    torch.compile = lambda function, **options: original(function, backend=counting, **options)
    try:
        plan = recipe(compile="on", curriculum={"oracle": oracle, "probe_fraction": 0.5})
        stepper = outlined(plan)
    finally:
        torch.compile = original
    stepper.warm_up((batch(),), step_values(plan, 0))
    warm = len(compiled)
    assert warm == 2, "one graph without probes, one with: fullgraph holds"
    plain = recipe(compile="off", curriculum={"oracle": oracle, "probe_fraction": 0.5})
    eager = outlined(plain)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(STEPS):
            for each in (stepper, eager):
                each((batch(),), step_values(plan, step), step)
            assert torch.equal(stepper.totals, eager.totals)
    assert len(compiled) == warm


@pytest.mark.slow
def test_the_compiled_step_agrees_with_eager():
    torch._dynamo.reset()
    seen = []
    for compile_ in ("off", "on"):
        plan = recipe(compile=compile_)
        stepper = Stepper(tiny_tokenizer(), lambda loaded: loaded[0], plan, device=CPU)
        stepper.warm_up((batch(),), step_values(plan, 0))
        stepper((batch(),), step_values(plan, 12), 12)
        seen.append(stepper.totals)
    assert torch.allclose(*seen, rtol=1e-4, atol=1e-5)
