"""One optimizer step: losses, gradients, update, codebook, all without a word to the host.

`forward` is compiled as one graph, once for phase 1 and once with the probes of phases 2 to 4.
What changes from step to step is a tensor. On a GPU the whole step, optimizer and codebook
included, is captured in a CUDA graph and replayed.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from strop import curriculum, objective
from strop.curriculum import CurriculumConfig, CurriculumState
from strop.model.interpreter import prefix_mask
from strop.model.length_head import whole_lengths
from strop.model.tokenizer import Tokenizer
from strop.objective import ObjectiveConfig
from strop.training import distributed, draws
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
)
"""What a step measures. All are shares: summed over processes they are means over the batch."""

SCALARS = ("learning_rate", "alpha", "handoff", "length_gate", "diversity_warmup", "step")
"""What depends on the step alone, in the order it has in the step's values."""

ALONE = distributed.Workers()

WARM_STEPS = 3
"""Steps before a CUDA graph is captured: kernels are chosen and optimizer state made by then."""


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

    @property
    def rows(self) -> int:
        """Rows of the batch in this process."""
        return self.training.batch // self.workers.world


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
) -> Outcome:
    """The losses of one batch and the curriculum's next state.

    field    (B, S, d_enc) in the teacher's own scale
    values   see `step_values`
    probing  whether the oracle is at work (from phase 2 on)
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
        seen = Observation(state, predicted_length.detach(), zero, zero, zero)
        probed, length = predicted_length, zero
        if probing:
            every = curriculum.probe_stride(config)
            if config.oracle == "error":
                seen = _paper_oracle(
                    tokenizer, quantized.z_q, field, lengths, error, state, config, every
                )
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
    return Outcome(loss, terms, metrics, quantized.codes, quantized.z.detach(), active, seen.state)


class Observation(NamedTuple):
    """What an oracle makes of a batch: the curriculum's next state, the targets of the rows it
    looked at, and the paper's modulator with its two slopes, zeros where it plays no part."""

    state: CurriculumState
    target: Tensor
    m: Tensor
    u_short: Tensor
    u_long: Tensor


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
    knots = torch.tensor(curriculum.knot_lengths(config, k), device=field.device)
    rows = z_q[::every]
    at = knots.expand(len(rows), -1)
    interpreted, true = _interpreted_at(tokenizer, rows, field[::every], at)
    curves = objective.squared_error(interpreted, true).unflatten(0, at.shape)
    state, target = curriculum.observe_rates(state, curves, config, k, reduce=distributed.summed)
    zero = torch.zeros_like(state.log_price)
    return Observation(state, target, zero, zero, zero)


def _interpreted_at(
    tokenizer: Tokenizer, z_q: Tensor, field: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """P programs interpreted at n lengths each, `lengths` (P, n), in one call: (P n, S, d_enc),
    and beside them the fields they should be."""
    n = lengths.shape[1]
    active = prefix_mask(lengths.flatten(), z_q.shape[1])
    interpreted = tokenizer.interpreter(z_q.detach().repeat_interleave(n, dim=0), active)
    return interpreted, field.repeat_interleave(n, dim=0)


class Stepper:
    """The parts of a run that a step changes, and the step.

    tokenizer, optimizer  the model and its AdamW
    state                 the curriculum's averages
    averaged              the averaged weights by name, or None
    totals, counted       sum of `METRICS` since `take_metrics`, and over how many steps
    trouble               (2 + len(TERMS),): whether a term was ever not finite or above the
                          limit, and step and terms when it first was
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        field_of: Callable[[tuple[Tensor, ...]], Tensor],
        recipe: Recipe,
        *,
        device: torch.device,
    ) -> None:
        training = recipe.training
        self.tokenizer, self.recipe, self.device = tokenizer, recipe, device
        self.field_of = field_of
        cuda = device.type == "cuda"
        bf16 = training.precision == "bf16" or (training.precision == "auto" and cuda)
        self.precision = torch.bfloat16 if bf16 else torch.float32
        self.compiled = training.compile in ("on", "max") or (training.compile == "auto" and cuda)
        self.parameters = trainable(tokenizer)
        # Two rates, because the length head rests until phase 3. Tensors, so that neither a
        # graph nor a compiled function ever holds a rate of the past.
        self.rate, self.head_rate = torch.zeros(2, device=device).unbind()
        self.optimizer = torch.optim.AdamW(
            parameter_groups(tokenizer, training.weight_decay, self.rate, self.head_rate),
            betas=(training.betas[0], training.betas[1]),
            fused=True,
            capturable=cuda,
        )
        with warnings.catch_warnings():
            # It warns, once, of steps outside a graph; the first few are meant to be.
            warnings.simplefilter("ignore", UserWarning)
            _materialise(self.optimizer)
        self.state = curriculum.initial_state(device)
        self.averaged: dict[str, Tensor] | None = None
        if training.weight_average:
            self.averaged = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.totals = torch.zeros(len(METRICS), device=device)
        self.counted = 0
        self.trouble = torch.zeros(2 + len(TERMS), device=device)
        self.steps_done = 0
        self._forward = {probing: self._compiled_forward(probing) for probing in self.variants}
        self._graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self._static: tuple[Tensor, tuple[Tensor, ...]] | None = None
        self._outcome: dict[bool, Outcome] = {}
        self._stream: torch.cuda.Stream | None = None
        self.graphed = cuda and self.compiled and recipe.workers.world == 1

    @property
    def variants(self) -> tuple[bool, ...]:
        """With and without probes; one of them without a curriculum."""
        return (False, True) if self.recipe.curriculum.enabled else (False,)

    def _compiled_forward(self, probing: bool) -> Callable[..., Outcome]:
        tokenizer, recipe, precision = self.tokenizer, self.recipe, self.precision

        def run(field: Tensor, values: Tensor, state: CurriculumState) -> Outcome:
            return forward(
                tokenizer, field, values, state, recipe, probing=probing, precision=precision
            )

        if not self.compiled:
            return run
        # Collectives may break the graph; alone there is nothing that may.
        whole = self.recipe.workers.world == 1
        mode = "max-autotune-no-cudagraphs" if recipe.training.compile == "max" else None
        compiled: Callable[..., Outcome] = torch.compile(
            run, fullgraph=whole, dynamic=False, mode=mode
        )
        return compiled

    def warm_up(self, loaded: tuple[Tensor, ...], values: Tensor) -> None:
        """Compile every variant, forward and backward, ahead of its phase. Changes nothing."""
        if not self.compiled:
            return
        for probing in self.variants:
            with self._aside():
                outcome = self._forward[probing](self.field_of(loaded), values, self.state)
                outcome.loss.backward()
                self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def initialise_codebook(self, loaded: tuple[Tensor, ...]) -> None:
        """Place the codes on tokens of the first batch."""
        field = self.field_of(loaded).float() * self.tokenizer.config.teacher.scale
        z = self.tokenizer.quantizer(self.tokenizer.generator(field)).z
        everywhere = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device)
        uniform = draws.uniform(self.recipe.training.seed, "initialise", 0, self._codes)
        self.tokenizer.quantizer.initialise(z, everywhere, uniform.to(self.device))

    def __call__(self, loaded: tuple[Tensor, ...], values: Tensor, step: int) -> None:
        """Take `step`, whose batch is `loaded` and whose numbers are `values`, on the device."""
        probing = curriculum.phase(self.recipe.curriculum, step) >= 2
        if self.graphed and self.steps_done >= WARM_STEPS:
            outcome = self._replay(loaded, values, probing)
        else:
            with self._aside():
                outcome = self._step(loaded, values, probing)
        self.steps_done += 1
        self.counted += 1
        if (step + 1) % self.recipe.training.reseed_every == 0:
            uniform = draws.uniform(self.recipe.training.seed, "reseed", step, self._codes)
            self.tokenizer.quantizer.reseed(
                outcome.z,
                outcome.active,
                uniform.to(self.device, non_blocking=True),
                below=self.recipe.training.reseed_below,
            )

    @property
    def _codes(self) -> int:
        return len(self.tokenizer.quantizer.codebook)

    def _step(self, loaded: tuple[Tensor, ...], values: Tensor, probing: bool) -> Outcome:
        training = self.recipe.training
        self.optimizer.zero_grad(set_to_none=True)
        outcome = self._forward[probing](self.field_of(loaded), values, self.state)
        outcome.loss.backward()
        with torch.no_grad():
            parameters = list(self.parameters.values())
            distributed.sum_gradients(parameters)
            norm = _clip(parameters, training.clip)
            rate = values[SCALARS.index("learning_rate")]
            self.rate.copy_(rate)
            self.head_rate.copy_(rate * values[SCALARS.index("length_gate")])
            self.optimizer.step()
            self.tokenizer.quantizer.update(outcome.z, outcome.codes, outcome.active)
            for kept, new in zip(self.state, outcome.state, strict=True):
                kept.copy_(new)
            if self.averaged is not None:
                torch._foreach_lerp_(
                    list(self.averaged.values()),
                    [parameter.detach() for parameter in parameters],
                    1 - training.weight_average,
                )
            world = self.recipe.workers.world
            self.totals.add_(torch.cat([outcome.metrics, norm[None] / world]))
            self._note_trouble(outcome.terms * world, norm, values[SCALARS.index("step")])
        # Without its history, which would keep the gradient's nodes of this stream alive.
        return outcome._replace(loss=outcome.loss.detach())

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """On a stream of its own, if graphs are to be recorded: what runs before must not leave
        work on the default stream that a recording would depend on."""
        if not self.graphed:
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def _note_trouble(self, terms: Tensor, norm: Tensor, step: Tensor) -> None:
        good = (terms.abs() <= self.recipe.training.loss_limit).all() & torch.isfinite(norm)
        now = torch.cat([torch.ones_like(step)[None], step[None], terms])
        self.trouble.copy_(torch.where(good | (self.trouble[0] > 0), self.trouble, now))

    def _replay(self, loaded: tuple[Tensor, ...], values: Tensor, probing: bool) -> Outcome:
        if self._static is None:
            self._static = (values.clone(), tuple(part.clone() for part in loaded))
            # The first steps' memory is of another stream and of no use to a recording.
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            try:
                for variant in self.variants:
                    self._capture(variant)
            except RuntimeError as error:
                # Slower is better than not at all; a custom loss may not be recordable.
                warnings.warn(f"The step runs without CUDA graphs: {error}", stacklevel=2)
                self.graphed = False
                self._graphs.clear()
                torch.cuda.synchronize(self.device)
                return self._step(loaded, values, probing)
        kept_values, kept_loaded = self._static
        kept_values.copy_(values, non_blocking=True)
        for kept, new in zip(kept_loaded, loaded, strict=True):
            kept.copy_(new, non_blocking=True)
        self._graphs[probing].replay()
        return self._outcome[probing]

    def _capture(self, probing: bool) -> None:
        """Record the step with its inputs at fixed addresses. Recording runs nothing.

        Other threads, which read batches, may go on meanwhile.
        """
        assert self._static is not None
        values, loaded = self._static
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._outcome[probing] = self._step(loaded, values, probing)
        self._graphs[probing] = graph

    def take_metrics(self) -> dict[str, float]:
        """Means of `METRICS` since the last call, over all processes. Waits for the device."""
        totals = distributed.summed(self.totals) / max(self.counted, 1)
        self.totals.zero_()
        self.counted = 0
        return dict(zip(METRICS, totals.tolist(), strict=True))

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """With the averaged weights in the model, if there are any."""
        if self.averaged is None:
            yield
            return
        own = {name: p.detach().clone() for name, p in self.parameters.items()}
        _assign(self.parameters, self.averaged)
        try:
            yield
        finally:
            _assign(self.parameters, own)

    def use_averaged_weights(self) -> None:
        """Put the averaged weights into the model for good."""
        assert self.averaged is not None
        _assign(self.parameters, self.averaged)


def trainable(tokenizer: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that the tokenizer's training moves, by name: not teacher, not decoder."""
    return {
        name: parameter
        for name, parameter in tokenizer.named_parameters()
        if parameter.requires_grad and not name.startswith(("teacher.", "decoder."))
    }


def parameter_groups(
    tokenizer: nn.Module, weight_decay: float, rate: Tensor, head_rate: Tensor
) -> list[dict[str, object]]:
    """Matrices of linear layers decay; norms, biases and embeddings do not.

    The length head has a rate of its own.
    """
    matrices = {
        f"{name}.weight" for name, part in tokenizer.named_modules() if isinstance(part, nn.Linear)
    }
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in trainable(tokenizer).items():
        key = (name.startswith("length_head."), name in matrices)
        groups.setdefault(key, []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": head_rate if head else rate,
            "weight_decay": weight_decay if decays else 0.0,
        }
        for (head, decays), parameters in sorted(groups.items())
    ]


def _materialise(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer's state now: made while a CUDA graph is recorded, each replay would
    make it anew. With rates of zero this moves no parameter."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for kept in optimizer.state.values():
        kept["step"].zero_()


def _clip(parameters: list[nn.Parameter], limit: float) -> Tensor:
    """The gradient norm before it was clipped to `limit`; 0 means no limit."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if limit:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm


@torch.no_grad()
def _assign(parameters: dict[str, nn.Parameter], values: dict[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(values[name])
