"""One step: the parameters that each loss changes, gradients, and no recompilation."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from tiny_training import K, tiny_centred_config, tiny_config, tiny_fields, tiny_tokenizer

from strop.curriculum import (
    CurriculumConfig,
    equal_error_lengths,
    initial_state,
    random_lengths,
)
from strop.model.length_head import LengthHeadConfig
from strop.objective import ObjectiveConfig, cosine_error, latent_alignment, squared_error
from strop.recorded import WARM_STEPS
from strop.training.forward import METRICS, SCALARS, StepConfig, forward, step_values
from strop.training.loop import stepper_trouble
from strop.training.preset import Preset, TrainingConfig
from strop.training.step import MOST_SPOILT, Stepper, parameter_groups, trainable

CPU = torch.device("cpu")
STEPS = 40
HEADS = pytest.mark.parametrize("head", ["paper", "rate"])


def step_config(
    *, extra_loss=None, objective=None, curriculum=None, head="paper", **training
) -> StepConfig:
    training = {"steps": STEPS, "batch": 8, "reseed_every": 5, **training}
    curriculum = {"truncation_minimum": 4, "oracle_minimum": 1, **(curriculum or {})}
    fixed = 4 if head == "fixed" else None
    preset = Preset(
        model=tiny_config(length_head=LengthHeadConfig(kind=head, fixed=fixed)),
        objective=ObjectiveConfig(**(objective or {})),
        curriculum=CurriculumConfig(**curriculum),
        training=TrainingConfig(**training),
    )
    return StepConfig(preset, extra_loss=extra_loss)


def with_head(head: str):
    return tiny_tokenizer(length_head=LengthHeadConfig(kind=head, hidden=(16,)))


def batch() -> torch.Tensor:
    return tiny_fields(8)[:, 0]


def make_stepper(tokenizer, config, device=CPU) -> Stepper:
    return Stepper(tokenizer, lambda loaded: loaded[0], config, device=device)


def run_forward(tokenizer, config, step, *, probing=None, values=None):
    return forward(
        tokenizer,
        batch(),
        step_values(config, step) if values is None else values,
        initial_state(),
        config,
        probing=config.has_oracle if probing is None else probing,
        precision=torch.float32,
    )


@HEADS
def test_the_length_loss_changes_the_head_alone(head):
    tokenizer = with_head(head)
    config = step_config(
        head=head,
        objective={"commitment_weight": 0.0, "diversity_weight": 0.0},
        curriculum={"probe_fraction": 0.5},
    )
    gate = SCALARS.index("length_gate")
    values = step_values(config, STEPS - 1)
    assert values[gate] == 1
    gradients = {}
    for on in (0.0, 1.0):
        values[gate] = on
        tokenizer.zero_grad()
        run_forward(tokenizer, config, STEPS - 1, values=values).loss.backward()
        gradients[on] = {n: p.grad.clone() for n, p in trainable(tokenizer).items()}
    for name, gradient in gradients[1.0].items():
        if name.startswith("length_head."):
            assert not gradients[0.0][name].any()
        else:
            assert torch.equal(gradient, gradients[0.0][name]), name
    assert any(gradients[1.0][n].any() for n in gradients[1.0] if n.startswith("length_head."))


def test_the_oracle_and_its_probes_leave_no_gradient():
    tokenizer = tiny_tokenizer()
    config = step_config()
    gradients = []
    for probing in (False, True):  # phase 2: probes, but no length loss yet
        tokenizer.zero_grad()
        outcome = run_forward(tokenizer, config, 9, probing=probing)
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


def test_probes_compare_every_second_row_with_its_own_field():
    tokenizer = tiny_tokenizer()
    config = step_config(curriculum={"probe_fraction": 0.5, "truncation_minimum": 2})
    outcome = run_forward(tokenizer, config, 9, probing=True)
    lengths = outcome.active.sum(-1)
    field = batch().float() * tokenizer.config.teacher.scale
    rises, falls = [], []
    with torch.no_grad():
        z_q = tokenizer.quantizer(tokenizer.generator(field)).z_q

        def error(row: int, length: int) -> float:
            seen = tokenizer.interpreter(z_q[[row], :length], torch.ones(1, length).bool())
            return latent_alignment(seen, field[[row]]).item()

        for row in range(0, 8, 2):
            at = int(lengths[row])
            now = error(row, at)
            if at - 2 >= 2:
                rises.append(max(error(row, at - 2) - now, 0) / now)
            if at + 2 <= K:
                falls.append(max(now - error(row, at + 2), 0) / now)
    assert rises
    assert falls
    assert outcome.state.slope_short.item() == pytest.approx(sum(rises) / len(rises), rel=1e-3)
    assert outcome.state.slope_long.item() == pytest.approx(sum(falls) / len(falls), rel=1e-3)


def test_a_rate_head_learns_the_errors_at_the_random_lengths():
    tokenizer, config = with_head("rate"), step_config(head="rate")
    assert not config.has_oracle
    assert [config.phase(step) for step in (0, STEPS - 1)] == [1, 1]
    outcome = run_forward(tokenizer, config, 3)
    # By hand: the lengths drawn, one interpretation, two errors for each image.
    values = step_values(config, 3)
    uniform = values[len(SCALARS) :].view(2, -1)[0]
    alpha = values[SCALARS.index("alpha")]
    lengths = random_lengths(uniform, alpha, config.curriculum, K)
    assert torch.equal(outcome.active.sum(-1), lengths)
    with torch.no_grad():
        field = batch().float() * tokenizer.config.teacher.scale
        z_q = tokenizer.quantizer(tokenizer.generator(field)).z_q
        seen = tokenizer.interpreter(z_q, outcome.active)
        errors = torch.stack([cosine_error(seen, field), squared_error(seen, field)], dim=1)
        curves = tokenizer.length_head(field)
        predicted = torch.stack([curves[row, :, n - 1] for row, n in enumerate(lengths.tolist())])
        expected = torch.nn.functional.smooth_l1_loss(predicted, (errors + 1e-6).log())
        deployed = equal_error_lengths(curves[:, 0], config.curriculum)
    found = dict(zip(METRICS, outcome.metrics.tolist(), strict=False))
    assert found["length"] == pytest.approx(expected.item(), rel=1e-4)
    assert found["latent"] == pytest.approx(errors.sum(1).mean().item(), rel=1e-5)
    assert found["predicted_length"] == pytest.approx(deployed.float().mean().item())
    assert outcome.state == initial_state()


def test_a_rate_head_is_trained_from_the_first_step_and_predicts_the_error():
    tokenizer, config = with_head("rate"), step_config(head="rate", learning_rate=1e-2, warmup=0)
    stepper = make_stepper(tokenizer, config)
    assert stepper.variants == (False,)
    before = tokenizer.length_head(batch().float()).detach().clone()
    losses = []
    for step in range(STEPS):
        stepper((batch(),), step_values(config, step), step)
        losses.append(stepper.take_metrics()["length"])
        if not step:
            assert not torch.equal(tokenizer.length_head(batch().float()), before)
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])


def test_a_rate_head_may_be_handed_a_share_of_its_lengths():
    tokenizer = with_head("rate")
    late = run_forward(tokenizer, step_config(head="rate"), STEPS - 1)
    config = step_config(head="rate").curriculum
    curves = tokenizer.length_head(batch().float() * tokenizer.config.teacher.scale)
    assert torch.equal(late.active.sum(-1), equal_error_lengths(curves[:, 0], config))
    random = step_config(head="rate", curriculum={"handoff_ceiling": 0.0})
    drawn = run_forward(tokenizer, random, STEPS - 1).active.sum(-1)
    uniform = step_values(random, STEPS - 1)[len(SCALARS) :].view(2, -1)[0]
    assert torch.equal(drawn, random_lengths(uniform, torch.tensor(1.0), random.curriculum, K))


def test_the_head_rests_until_phase_three():
    tokenizer = tiny_tokenizer()
    config = step_config()
    stepper = make_stepper(tokenizer, config)
    before = {n: p.detach().clone() for n, p in tokenizer.length_head.named_parameters()}
    first = config.curriculum.phase_ends[1]
    for step in range(first):
        stepper((batch(),), step_values(config, step), step)
    for name, parameter in tokenizer.length_head.named_parameters():
        assert torch.equal(parameter, before[name]), name
    stepper((batch(),), step_values(config, first), first)
    assert any(not torch.equal(p, before[n]) for n, p in tokenizer.length_head.named_parameters())


def test_lengths_are_random_then_predicted():
    tokenizer = tiny_tokenizer()
    config = step_config(batch=8)
    early = run_forward(tokenizer, config, 0).active.sum(-1)
    assert early.min() >= 4
    assert len(early.unique()) > 1
    late = run_forward(tokenizer, config, STEPS - 1).active.sum(-1)
    expected = tokenizer.length_head(batch().float() * 0.5).round().clamp(1, K).long()
    assert torch.equal(late, expected)


def test_with_a_fixed_length_every_program_has_it_and_nothing_is_probed():
    tokenizer = tiny_tokenizer(length_head=LengthHeadConfig(fixed=3))
    config = step_config(head="fixed")
    assert (run_forward(tokenizer, config, 0, probing=False).active.sum(-1) == 3).all()
    assert (run_forward(tokenizer, config, STEPS - 1, probing=False).active.sum(-1) == 3).all()
    stepper = make_stepper(tokenizer, config)
    assert stepper.variants == (False,)


def test_probing_a_fraction_changes_the_slopes_alone():
    tokenizer = tiny_tokenizer()
    whole = run_forward(tokenizer, step_config(), 9)
    half = run_forward(tokenizer, step_config(curriculum={"probe_fraction": 0.5}), 9)
    assert torch.equal(whole.state.error, half.state.error)
    assert torch.equal(whole.loss, half.loss)


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
    plain = run_forward(tokenizer, step_config(), 9)
    more = run_forward(
        tokenizer, step_config(extra_loss=lambda seen: seen.predicted.square().mean() + 1), 9
    )
    extra = more.metrics[METRICS.index("extra")]
    assert extra > 1
    assert torch.allclose(more.loss, plain.loss + extra)


def test_the_ceiling_reaches_the_step():
    share = SCALARS.index("handoff")
    kept = step_config(curriculum={"handoff_ceiling": 0.5})
    assert step_values(kept, STEPS - 1)[share] == 0.5
    assert step_values(step_config(), STEPS - 1)[share] == 1.0


def test_clipping_bounds_the_update_and_reports_the_norm():
    tokenizer = tiny_tokenizer()
    config = step_config(clip=1e-3)
    stepper = make_stepper(tokenizer, config)
    stepper((batch(),), step_values(config, 0), 0)
    norm = torch.cat(
        [p.grad.flatten() for p in tokenizer.parameters() if p.grad is not None]
    ).norm()
    assert norm.item() <= 1.01e-3
    assert stepper.take_metrics()["gradient_norm"] > 1e-2


def test_averaged_weights_follow_and_can_be_read():
    tokenizer = tiny_tokenizer()
    config = step_config(weight_average=0.5)
    expected = tokenizer.generator.queries.detach().clone()
    stepper = make_stepper(tokenizer, config)
    for step, share in ((0, 9 / 10), (1, 9 / 11), (30, 0.5)):  # 9 / 40 is below the least share
        stepper((batch(),), step_values(config, step), step)
        now = tokenizer.generator.queries.detach().clone()
        expected += share * (now - expected)
    with stepper.averaged_weights():
        assert torch.allclose(tokenizer.generator.queries, expected)
    assert torch.equal(tokenizer.generator.queries, now)
    assert not torch.allclose(expected, now)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@HEADS
def test_recorded_steps_average_weights_as_plain_ones_do(head):
    found = []
    for compile_ in ("on", "off"):
        config = step_config(head=head, weight_average=0.9, compile=compile_, precision="fp32")
        device = torch.device("cuda")
        stepper = make_stepper(with_head(head).to(device), config, device)
        loaded = (batch().to(device),)
        stepper.initialise_codebook(loaded)
        # Both variants of the paper's steps, from before to after their recording.
        first_probe = config.curriculum.phase_ends[0]
        for step in (*range(WARM_STEPS + 2), *range(first_probe, first_probe + WARM_STEPS + 6)):
            stepper(loaded, step_values(config, step).to(device), step)
        assert stepper.recording == (compile_ == "on")
        found.append({name: x.cpu() for name, x in stepper.averaged.items()})
    for name, averaged in found[0].items():
        assert torch.allclose(averaged, found[1][name], atol=1e-3), name


def test_the_means_of_positions_follow_and_are_averaged_with_the_weights():
    # Averaged weights put tokens elsewhere than the latest do: the latest means would not fit.
    tokenizer = tiny_tokenizer(quantizer=tiny_centred_config().quantizer)
    config = step_config(weight_average=0.5)
    stepper = make_stepper(tokenizer, config)
    stepper.initialise_codebook((batch(),))
    start = tokenizer.quantizer.centre.clone()
    assert torch.equal(stepper.averaged["quantizer.centre"], start)
    for step, share in ((0, 9 / 10), (1, 9 / 11)):  # the first sees what the means were taken from
        stepper((batch(),), step_values(config, step), step)
        now = tokenizer.quantizer.centre.clone()
        start += share * (now - start)
    with stepper.averaged_weights():
        assert torch.allclose(tokenizer.quantizer.centre, start)
    assert torch.equal(tokenizer.quantizer.centre, now)
    assert not torch.allclose(now, start)


def test_trouble_remembers_the_first_step_and_its_terms():
    tokenizer = tiny_tokenizer()
    config = step_config()
    stepper = make_stepper(tokenizer, config)
    for step in range(2):
        stepper((batch(),), step_values(config, step), step)
    assert not stepper.trouble.any()
    for step in (2, 3):
        stepper((batch() * float("nan"),), step_values(config, step), step)
    flag, step, latent, *_ = stepper.trouble.tolist()
    assert (flag, step) == (1, 2)
    assert latent != latent


def spoiling(when):
    """A loss term of 0 whose gradient is infinite while `when` is 0."""
    return lambda seen: ((seen.predicted - seen.predicted.detach()).sum() + when).sqrt() - when


def test_a_step_without_a_finite_gradient_moves_no_weight_and_the_run_continues():
    when = torch.ones(())
    tokenizer, config = tiny_tokenizer(), step_config(extra_loss=spoiling(when))
    stepper = make_stepper(tokenizer, config)
    stepper((batch(),), step_values(config, 0), 0)
    before = {name: value.detach().clone() for name, value in stepper.parameters.items()}
    when.zero_()
    stepper((batch(),), step_values(config, 1), 1)
    assert all(torch.equal(value, before[name]) for name, value in stepper.parameters.items())
    when.fill_(1)
    stepper((batch(),), step_values(config, 2), 2)
    assert any(not torch.equal(v, before[name]) for name, v in stepper.parameters.items())
    assert all(value.isfinite().all() for value in stepper.parameters.values())
    assert max(kept["step"].item() for kept in stepper.optimizers[0].state.values()) == 2
    metrics = stepper.take_metrics()
    assert metrics["spoilt_steps"] == pytest.approx(1 / 3)
    assert 0 < metrics["gradient_norm"] < float("inf")
    assert not stepper.trouble.any()


def test_many_gradients_in_a_row_that_are_not_finite_are_trouble():
    config = step_config(extra_loss=spoiling(torch.zeros(())))
    stepper = make_stepper(tiny_tokenizer(), config)
    for step in range(MOST_SPOILT):
        assert stepper_trouble(stepper) is None
        stepper((batch(),), step_values(config, step), step)
    step, what = stepper_trouble(stepper)
    assert step == MOST_SPOILT - 1
    assert what.startswith(f"the gradient is not finite in {MOST_SPOILT} steps in a row")
    others = int(stepper.unsound.sum()) - 1
    assert f"that of generator.source_positions and of {others} other parameters" in what
    assert not stepper.unsound[list(stepper.parameters).index("length_head.mlp.0.weight")]


@pytest.mark.parametrize(("head", "graphs"), [("paper", 2), ("rate", 1)])
def test_nothing_recompiles_across_the_phases_and_the_graph_equals_eager(head, graphs):
    torch._dynamo.reset()
    compiled = []

    def counting(graph, example_inputs):
        compiled.append(graph)
        return graph.forward

    original = torch.compile
    torch.compile = lambda function, **options: original(function, backend=counting, **options)
    try:
        config = step_config(head=head, compile="on", curriculum={"probe_fraction": 0.5})
        stepper = make_stepper(with_head(head), config)
    finally:
        torch.compile = original
    stepper.warm_up((batch(),), step_values(config, 0))
    warm = len(compiled)
    assert warm == graphs, "one graph without probes, one with: fullgraph holds"
    plain = step_config(head=head, compile="off", curriculum={"probe_fraction": 0.5})
    eager = make_stepper(with_head(head), plain)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(STEPS):
            for each in (stepper, eager):
                each((batch(),), step_values(config, step), step)
            assert torch.equal(stepper.totals, eager.totals)
    assert len(compiled) == warm


@pytest.mark.slow
@pytest.mark.parametrize(("head", "truncation"), [("paper", "beta"), ("rate", "powers-of-two")])
def test_the_compiled_step_agrees_with_eager(head, truncation):
    torch._dynamo.reset()
    seen = []
    for compile_ in ("off", "on"):
        config = step_config(head=head, compile=compile_, curriculum={"truncation": truncation})
        stepper = make_stepper(with_head(head), config)
        stepper.warm_up((batch(),), step_values(config, 0))
        stepper((batch(),), step_values(config, 12), 12)
        seen.append(stepper.totals)
    assert torch.allclose(*seen, rtol=1e-4, atol=1e-5)
