"""The forward pass of training: a batch of fields to losses, metrics and the curriculum's state.

Pure tensors, so that it compiles to one graph without probes and one with the probes of the
paper's oracle. Values that change from step to step are tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from strop import curriculum, objective
from strop.curriculum import CurriculumConfig, CurriculumState, Modulator
from strop.model.interpreter import prefix_mask
from strop.model.tokenizer import Tokenizer
from strop.training import draws
from strop.training.distributed import Workers
from strop.training.preset import Preset, learning_rate

TERMS = ("latent", "commitment", "diversity", "length", "extra")
"""The terms of the loss, in the order of `Outcome.terms`."""

METRICS = (
    *TERMS,
    "loss",
    "raw_norm",
    "m",
    "u_short",
    "u_long",
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

A step without a finite gradient is spoilt: it changes no weight, and its norm counts as 0.
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
"""Values that depend on the step alone, in the order of `step_values`."""

SPANS = 9
"""Averaged weights span a ninth of the steps so far, until `weight_average` is reached."""

ALONE = Workers()


class Interpretation(NamedTuple):
    """The input of an extra loss term. Fields are in the scaled space.

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


class StepConfig:
    """The settings of a preset, scaled to its number of steps, and its place among the processes.

    rate_head  whether the length head predicts rate curves: no oracle, no probes
    fixed      whether all programs have one length: no oracle and no random lengths either
    """

    def __init__(
        self, preset: Preset, workers: Workers = ALONE, extra_loss: ExtraLoss | None = None
    ) -> None:
        steps = preset.training.steps
        self.objective = curriculum.scaled(preset.objective, steps)
        self.curriculum = curriculum.scaled(preset.curriculum, steps)
        self.training = curriculum.scaled(preset.training, steps)
        self.workers, self.extra_loss = workers, extra_loss
        kind = preset.model.length_head.kind
        self.rate_head, self.fixed = kind == "rate", kind == "fixed"

    @property
    def has_oracle(self) -> bool:
        """Whether there are phases with oracle and probes."""
        return not (self.rate_head or self.fixed)

    def phase(self, step: int) -> int:
        """The phase of the curriculum at `step`; always 1 without an oracle."""
        return curriculum.phase(self.curriculum, step) if self.has_oracle else 1

    def length_gate(self, step: int) -> float:
        """1 while the length head is trained: from phase 3 on, a rate head always."""
        trains = self.has_oracle and curriculum.trains_length_head(self.curriculum, step)
        return float(self.rate_head or trains)

    def handoff(self, step: int) -> float:
        """The share of deployed lengths at `step`."""
        return 1.0 if self.fixed else curriculum.handoff(self.curriculum, step)


def step_values(config: StepConfig, step: int) -> Tensor:
    """The numbers of `step`, one float32 vector on the CPU: `SCALARS`, then two per row.

    The two are uniform draws: for the random length, and for the choice of the handoff.
    """
    scalars = torch.tensor(
        [
            learning_rate(config.training, step),
            curriculum.alpha(config.curriculum, step),
            config.handoff(step),
            config.length_gate(step),
            objective.diversity_warmup(config.objective, step),
            averaging_share(step, SPANS, 1 - config.training.weight_average),
            float(step),
        ]
    )
    random = draws.uniform(config.training.seed, "lengths", step, 2, config.training.batch)
    return torch.cat([scalars, random[:, config.workers.share(config.training.batch)].flatten()])


def averaging_share(step: int, spans: int, least: float = 0.0) -> float:
    """The share by which the average moves to the weights after `step` (from 0 on).

    It is `spans / (spans + 1 + step)`, at least `least`: the average spans about the last
    `1 / spans` of the steps so far. A fixed share would keep the random start in short runs.
    """
    return max(least, spans / (spans + 1 + step))


def forward(
    tokenizer: Tokenizer,
    field: Tensor,
    values: Tensor,
    state: CurriculumState,
    config: StepConfig,
    *,
    probing: bool,
    precision: torch.dtype,
) -> Outcome:
    """The losses of one batch, `L` of Section 2.2, and the curriculum's next state.

    field    (B, S, d_enc) in the teacher's own scale
    values   see `step_values`
    probing  whether the oracle sets targets (from phase 2 on)
    """
    weights, k, world = config.objective, tokenizer.config.max_length, config.workers.world
    scalar = dict(zip(SCALARS, values[: len(SCALARS)].unbind(), strict=True))
    uniform = values[len(SCALARS) :].view(2, -1)
    autocast = torch.autocast(field.device.type, torch.bfloat16, enabled=precision != torch.float32)
    field = field.float() * tokenizer.config.teacher.scale

    with autocast:
        predicted_length = head_output = tokenizer.length_head(field)
        if config.rate_head:
            cosine_curves = head_output.detach()[:, 0]
            predicted_length = curriculum.equal_error_lengths(
                cosine_curves, config.curriculum
            ).float()
        lengths = curriculum.active_lengths(
            predicted_length.detach(),
            uniform,
            scalar["alpha"],
            scalar["handoff"],
            config.curriculum,
            k,
        )
        active = prefix_mask(lengths, k)

        raw = tokenizer.generator(field)
        quantized = tokenizer.quantizer(raw)
        predicted = tokenizer.interpreter(quantized.z_q, active)
        cosine_error = objective.cosine_error(predicted, field)
        squared_error = objective.squared_error(predicted, field)
        error = cosine_error + squared_error

        zero = torch.zeros_like(scalar["alpha"])
        # Without an oracle the predictions stand in for targets.
        target, decision = predicted_length.detach(), Modulator(*[zero] * len(Modulator._fields))
        length = zero
        if config.rate_head:
            errors = torch.stack([cosine_error, squared_error], dim=1)
            length = objective.rate_loss(head_output, lengths, errors) / world
        elif probing:
            state, target, decision = _observe(
                tokenizer, quantized.z_q, field, lengths, error, state, config.curriculum
            )
            length = objective.length_loss(predicted_length, target, k) / world

        latent = error.mean() / world
        commitment = objective.commitment(quantized.z, quantized.z_q, active)
        diversity = objective.diversity(quantized.similarity, active, weights.diversity_temperature)
        extra = zero
        if config.extra_loss is not None:
            given = Interpretation(field, predicted, quantized.z, active)
            extra = config.extra_loss(given).float() / world

    diversity_weight = weights.diversity_weight * scalar["diversity_warmup"]
    loss = (
        latent
        + weights.commitment_weight * commitment
        + diversity_weight * diversity
        + weights.length_weight * scalar["length_gate"] * length
        + extra
    )
    # Every process has the diversity of the whole batch; its share is an equal part.
    terms = torch.stack([latent, commitment, diversity / world, length, extra]).detach()
    hat = predicted_length.detach()
    measured = torch.stack(
        [
            loss.detach() - diversity_weight * diversity.detach() * (1 - 1 / world),
            raw.detach().float().norm(dim=-1).mean() / world,
            decision.m / world,
            decision.u_short / world,
            decision.u_long / world,
            lengths.float().mean() / world,
            hat.mean() / world,
            hat.square().mean() / world,
            target.mean() / world,
            target.square().mean() / world,
            (hat * target).mean() / world,
        ]
    )
    return Outcome(
        loss,
        terms,
        torch.cat([terms, measured]),
        quantized.codes,
        quantized.projected.detach(),
        quantized.z.detach(),
        active,
        state,
    )


@torch.no_grad()
def _observe(
    tokenizer: Tokenizer,
    z_q: Tensor,
    field: Tensor,
    lengths: Tensor,
    error: Tensor,
    state: CurriculumState,
    config: CurriculumConfig,
) -> tuple[CurriculumState, Tensor, Modulator]:
    """The next state, targets (B,) for all rows and the modulator, from the errors at their lengths
    and probes at the neighbours of these."""
    k, stride = tokenizer.config.max_length, curriculum.probe_stride(config)
    probes = curriculum.probe_lengths(lengths[::stride], config, k)
    at = torch.stack([probes.short, probes.long], dim=1)
    # Both probes of a program in one call of the interpreter.
    active = prefix_mask(at.flatten(), k)
    interpreted = tokenizer.interpreter(z_q[::stride].detach().repeat_interleave(2, dim=0), active)
    target = field[::stride].repeat_interleave(2, dim=0)
    errors = objective.latent_alignment(interpreted, target).unflatten(0, at.shape)
    short, long = errors.unbind(1)
    return curriculum.observe(state, error, error[::stride], probes, short, long, config, k)
