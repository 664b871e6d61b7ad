"""The forward pass of training: a batch of fields to losses, metrics and the curriculum's state.

Pure tensors, so that it is compiled as one graph, once for phase 1 and once with the probes of
phases 2 to 4. What changes from step to step is a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from strop import curriculum, objective
from strop.curriculum import CurriculumConfig, CurriculumState
from strop.model.interpreter import prefix_mask
from strop.model.length_head import whole_lengths
from strop.model.tokenizer import Tokenizer
from strop.objective import ObjectiveConfig
from strop.training import distributed, draws
from strop.training.averaging import averaging_share
from strop.training.config import TrainingConfig, learning_rate

TERMS = ("latent", "commitment", "diversity", "length", "distillation", "extra")
"""The terms of the loss, in the order of `Outcome.terms`."""

METRICS = (
    *TERMS,
    "loss",
    "raw_norm",
    "m",
    "u_short",
    "u_long",
    "price",
    "active_length",
    "predicted_length",
    "predicted_length_squared",
    "target_length",
    "target_length_squared",
    "predicted_times_target",
    "gradient_norm",
    "spoilt_steps",
)
"""What a step measures. All are shares: summed over processes they are means over the batch.

Steps without a finite gradient are spoilt: they move no weight, and their norm counts as 0.
"""

SCALARS = (
    "learning_rate",
    "alpha",
    "handoff",
    "length_gate",
    "diversity_warmup",
    "averaging_share",
    "step",
)
"""What depends on the step alone, in the order it has in the step's values."""

SPANS = 9
"""Weights are averaged over a ninth of the steps so far, until `weight_average` is reached."""

ALONE = distributed.Workers()


class Interpretation(NamedTuple):
    """What an extra loss term may look at. Fields are in the scaled space.

    field      (B, S, d_enc) the teacher's
    predicted  (B, S, d_enc) the interpreter's
    z          (B, K, d_c) normalised raw tokens, which carry gradient
    active     (B, K) bool
    """

    field: Tensor
    predicted: Tensor
    z: Tensor
    active: Tensor


ExtraLoss = Callable[[Interpretation], Tensor]


class Outcome(NamedTuple):
    """What `forward` returns. Only `loss` carries gradient."""

    loss: Tensor
    terms: Tensor
    metrics: Tensor
    codes: Tensor
    projected: Tensor
    z: Tensor
    active: Tensor
    state: CurriculumState


@dataclass(frozen=True)
class Recipe:
    """The scaled configs of a run and what follows from them."""

    objective: ObjectiveConfig
    curriculum: CurriculumConfig
    training: TrainingConfig
    workers: distributed.Workers = ALONE
    extra_loss: ExtraLoss | None = None


def step_values(recipe: Recipe, step: int) -> Tensor:
    """The numbers of `step`, one float32 vector on the CPU: `SCALARS`, then two per row.

    The two are uniform draws: for the random length, and for the choice of the handoff.
    """
    scalars = torch.tensor(
        [
            learning_rate(recipe.training, step),
            curriculum.alpha(recipe.curriculum, step),
            curriculum.handoff(recipe.curriculum, step),
            float(curriculum.phase(recipe.curriculum, step) >= 3),
            objective.diversity_warmup(recipe.objective, step),
            averaging_share(step, SPANS, 1 - recipe.training.weight_average),
            float(step),
        ]
    )
    random = draws.uniform(recipe.training.seed, "lengths", step, 2, recipe.training.batch)
    return torch.cat([scalars, random[:, recipe.workers.share(recipe.training.batch)].flatten()])


def forward(
    tokenizer: Tokenizer,
    field: Tensor,
    values: Tensor,
    state: CurriculumState,
    recipe: Recipe,
    *,
    probing: bool,
    precision: torch.dtype,
    outlines: Tensor | None = None,
) -> Outcome:
    """The losses of one batch and the curriculum's next state.

    field     (B, S, d_enc) in the teacher's own scale
    values    see `step_values`
    probing   whether the oracle is at work (from phase 2 on)
    outlines  (B,) what the oracle `outlines` goes by
    """
    config, k = recipe.curriculum, tokenizer.config.max_length
    world = recipe.workers.world
    scalar = dict(zip(SCALARS, values[: len(SCALARS)].unbind(), strict=True))
    uniform = values[len(SCALARS) :].view(2, -1)
    autocast = torch.autocast(field.device.type, torch.bfloat16, enabled=precision != torch.float32)
    field = field.float() * tokenizer.config.teacher.scale

    with autocast:
        predicted_length = tokenizer.length_head(field)
        if config.enabled:
            random = curriculum.random_lengths(
                uniform[0], scalar["alpha"], min(config.truncation_minimum, k), k
            )
            deployed = whole_lengths(predicted_length.detach(), k)
            lengths = curriculum.mixed_lengths(random, deployed, uniform[1], scalar["handoff"])
        else:
            lengths = torch.full_like(uniform[0], config.fixed_length or k, dtype=torch.long)
        active = prefix_mask(lengths, k)

        raw = tokenizer.generator(field)
        quantized = tokenizer.quantizer(raw)
        predicted = tokenizer.interpreter(quantized.z_q, active)
        error = objective.latent_alignment(predicted, field)

        zero = torch.zeros_like(scalar["alpha"])
        seen = _unmodulated(state, predicted_length.detach())
        probed, length = predicted_length, zero
        if probing:
            every = curriculum.probe_stride(config)
            if config.oracle == "error":
                seen = _paper_oracle(
                    tokenizer, quantized.z_q, field, lengths, error, state, config, every
                )
            elif config.oracle == "outlines":
                assert outlines is not None
                seen = _outline_oracle(outlines, state, config, k)
            else:
                seen = _rate_oracle(tokenizer, quantized.z_q, field, state, config, every)
                probed = predicted_length[::every]
            length = objective.length_loss(probed, seen.target, k) / world

        latent = error.mean() / world
        commitment = objective.commitment(
            quantized.z, quantized.z_q, active, reduce=distributed.summed
        )
        diversity = objective.diversity(
            quantized.similarity,
            active,
            recipe.objective.diversity_temperature,
            reduce=distributed.summed,
        )
        distillation = zero
        if recipe.objective.distillation_weight:
            with torch.no_grad():
                whole = tokenizer.interpreter(quantized.z_q.detach(), torch.ones_like(active))
            distillation = objective.latent_alignment(predicted, whole).mean() / world
        extra = zero
        if recipe.extra_loss is not None:
            look = Interpretation(field, predicted, quantized.z, active)
            extra = recipe.extra_loss(look).float() / world

    weights = recipe.objective
    loss = (
        latent
        + weights.commitment_weight * commitment
        + weights.diversity_weight * scalar["diversity_warmup"] * diversity
        + weights.length_weight * scalar["length_gate"] * length
        + weights.distillation_weight * distillation
        + extra
    )
    # The diversity is the whole batch's in every process; its share is an equal part.
    every_term = [latent, commitment, diversity / world, length, distillation, extra]
    terms = torch.stack(every_term).detach()
    hat, goal = probed.detach(), seen.target
    measured = torch.stack(
        [
            loss.detach()
            - weights.diversity_weight
            * scalar["diversity_warmup"]
            * diversity.detach()
            * (1 - 1 / world),
            raw.detach().float().norm(dim=-1).mean() / world,
            seen.m / world,
            seen.u_short / world,
            seen.u_long / world,
            curriculum.price(seen.state) / world,
            lengths.float().mean() / world,
            hat.mean() / world,
            hat.square().mean() / world,
            goal.mean() / world,
            goal.square().mean() / world,
            (hat * goal).mean() / world,
        ]
    )
    metrics = torch.cat([terms, measured])
    return Outcome(
        loss,
        terms,
        metrics,
        quantized.codes,
        quantized.projected.detach(),
        quantized.z.detach(),
        active,
        seen.state,
    )


class Observation(NamedTuple):
    """What an oracle makes of a batch: the curriculum's next state, the targets of the rows it
    looked at, and the paper's modulator with its two slopes, zeros where it plays no part."""

    state: CurriculumState
    target: Tensor
    m: Tensor
    u_short: Tensor
    u_long: Tensor


def _unmodulated(state: CurriculumState, target: Tensor) -> Observation:
    zero = torch.zeros_like(state.log_price)
    return Observation(state, target, zero, zero, zero)


@torch.no_grad()
def _paper_oracle(
    tokenizer: Tokenizer,
    z_q: Tensor,
    field: Tensor,
    lengths: Tensor,
    error: Tensor,
    state: CurriculumState,
    config: CurriculumConfig,
    every: int,
) -> Observation:
    """Targets for all rows, from the error at their own length and probes beside it."""
    k = tokenizer.config.max_length
    probes = curriculum.probe_lengths(lengths[::every], config, k)
    at = torch.stack([probes.short, probes.long], dim=1)
    interpreted, true = _interpreted_at(tokenizer, z_q[::every], field[::every], at)
    errors = objective.latent_alignment(interpreted, true).unflatten(0, at.shape)
    error_short, error_long = errors.unbind(1)
    state, target, decision = curriculum.observe(
        state,
        error,
        error[::every],
        probes,
        error_short,
        error_long,
        config,
        k,
        reduce=distributed.summed,
    )
    return Observation(state, target, decision.m, decision.u_short, decision.u_long)


@torch.no_grad()
def _rate_oracle(
    tokenizer: Tokenizer,
    z_q: Tensor,
    field: Tensor,
    state: CurriculumState,
    config: CurriculumConfig,
    every: int,
) -> Observation:
    """Targets for the probed rows, from the rate curve of each.

    In squared error, so that tokens go where they raise R²; latent alignment is mostly cosine,
    which has each location count alike however much there is to reproduce.
    """
    k = tokenizer.config.max_length
    curves = rate_curves(tokenizer, z_q[::every], field[::every], config)
    state, target = curriculum.observe_rates(state, curves, config, k, reduce=distributed.summed)
    return _unmodulated(state, target)


def _outline_oracle(
    outlines: Tensor, state: CurriculumState, config: CurriculumConfig, k: int
) -> Observation:
    """Targets for all rows, from what the teacher saw."""
    reduce = distributed.summed
    state, target = curriculum.observe_outlines(state, outlines, config, k, reduce=reduce)
    return _unmodulated(state, target)


def rate_curves(
    tokenizer: Tokenizer, z_q: Tensor, field: Tensor, config: CurriculumConfig
) -> Tensor:
    """(P, n): the squared error of P programs at the n `knot_lengths`.

    z_q    (P, K, d_c) their code vectors
    field  (P, S, d_enc) what they are to reproduce, in the scaled space
    """
    knots = curriculum.knot_lengths(config, tokenizer.config.max_length)
    at = torch.tensor(knots, device=field.device).expand(len(z_q), -1)
    interpreted, true = _interpreted_at(tokenizer, z_q, field, at)
    return objective.squared_error(interpreted, true).unflatten(0, at.shape)


def _interpreted_at(
    tokenizer: Tokenizer, z_q: Tensor, field: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """P programs interpreted at n lengths each, `lengths` (P, n), in one call: (P n, S, d_enc),
    and beside them the fields they should be."""
    n = lengths.shape[1]
    active = prefix_mask(lengths.flatten(), z_q.shape[1])
    interpreted = tokenizer.interpreter(z_q.detach().repeat_interleave(n, dim=0), active)
    return interpreted, field.repeat_interleave(n, dim=0)
