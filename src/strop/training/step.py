"""One optimizer step: gradients, update, codebook, all without a word to the host.

On a GPU the whole step, optimizer and codebook included, is captured in a CUDA graph and
replayed.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from strop import curriculum
from strop.curriculum import CurriculumState
from strop.model.tokenizer import Tokenizer
from strop.training import distributed, draws
from strop.training.averaging import follow
from strop.training.forward import METRICS, SCALARS, TERMS, Outcome, Recipe, forward
from strop.training.recorded import WARM_STEPS, aside, materialise, recording_of

MOST_SPOILT = 8
"""Steps in a row without a finite gradient that end a run; one of them may be chance."""


class Stepper:
    """The parts of a run that a step changes, and the step.

    tokenizer, optimizer  the model and its AdamW
    state                 the curriculum's averages
    averaged              the averaged weights, and means of positions, by name, or None
    totals, counted       sum of `METRICS` since `take_metrics`, and over how many steps
    spoilt                whether the last gradient was not finite; such a step moves no weight
    spoilt_in_a_row       how many of the last steps
    unsound               (parameters,) bool: whose gradient it was, when it last was
    trouble               (2 + len(TERMS),): whether a term was ever not finite or above the limit,
                          or too many gradients in a row were spoilt, and step and terms then
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        field_of: Callable[[tuple[Tensor, ...]], Tensor],
        recipe: Recipe,
        *,
        device: torch.device,
        outlines_of: Callable[[tuple[Tensor, ...]], Tensor] | None = None,
    ) -> None:
        training = recipe.training
        self.tokenizer, self.recipe, self.device = tokenizer, recipe, device
        self.field_of, self._outlines_of = field_of, outlines_of
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
        materialise(self.optimizer)
        # The fused step leaves everything as it is where this is 1: torch's protocol for scaled
        # gradients.
        self.spoilt = torch.zeros((), device=device)
        self.optimizer.found_inf = self.spoilt  # type: ignore[attr-defined]
        self.state = curriculum.initial_state(device)
        # The means that tokens are centred by belong to the weights they were measured with, and
        # are averaged with them.
        self._learnt: dict[str, Tensor] = dict(self.parameters)
        self._learnt |= {n: b for n, b in tokenizer.named_buffers() if n == "quantizer.centre"}
        self.averaged: dict[str, Tensor] | None = None
        if training.weight_average:
            self.averaged = {name: x.detach().clone() for name, x in self._learnt.items()}
        self.totals = torch.zeros(len(METRICS), device=device)
        self.counted = 0
        self.trouble = torch.zeros(2 + len(TERMS), device=device)
        self.spoilt_in_a_row = torch.zeros((), device=device)
        self.unsound = torch.zeros(len(self.parameters), dtype=torch.bool, device=device)
        self.steps_done = 0
        self._forward = {probing: self._compiled_forward(probing) for probing in self.variants}
        self._graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self._static: tuple[Tensor, tuple[Tensor, ...]] | None = None
        self._outcome: dict[bool, Outcome] = {}
        self.graphed = cuda and self.compiled and recipe.workers.world == 1
        self._stream = torch.cuda.Stream(device) if self.graphed else None

    @property
    def variants(self) -> tuple[bool, ...]:
        """With and without probes; one of them without a curriculum."""
        return (False, True) if self.recipe.curriculum.enabled else (False,)

    def _compiled_forward(self, probing: bool) -> Callable[..., Outcome]:
        tokenizer, recipe, precision = self.tokenizer, self.recipe, self.precision

        def run(
            field: Tensor, values: Tensor, state: CurriculumState, outlines: Tensor | None
        ) -> Outcome:
            return forward(
                tokenizer,
                field,
                values,
                state,
                recipe,
                probing=probing,
                precision=precision,
                outlines=outlines,
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
                self._outcome_of(loaded, values, probing).loss.backward()
                self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def initialise_codebook(self, loaded: tuple[Tensor, ...]) -> None:
        """Place the codes, and the means of positions, on tokens of the first batch."""
        field = self.field_of(loaded).float() * self.tokenizer.config.teacher.scale
        uniform = draws.uniform(self.recipe.training.seed, "initialise", 0, self._codes)
        self.tokenizer.quantizer.begin(self.tokenizer.generator(field), uniform.to(self.device))
        if self.averaged is not None:
            _assign(self.averaged, self._learnt)

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

    def _outcome_of(self, loaded: tuple[Tensor, ...], values: Tensor, probing: bool) -> Outcome:
        outlines = None
        if probing and self.recipe.curriculum.zoom is not None:
            assert self._outlines_of is not None
            outlines = self._outlines_of(loaded)
        return self._forward[probing](self.field_of(loaded), values, self.state, outlines)

    def _step(self, loaded: tuple[Tensor, ...], values: Tensor, probing: bool) -> Outcome:
        training = self.recipe.training
        self.optimizer.zero_grad(set_to_none=True)
        outcome = self._outcome_of(loaded, values, probing)
        outcome.loss.backward()
        with torch.no_grad():
            parameters = list(self.parameters.values())
            distributed.sum_gradients(parameters)
            norm, norms = _clip(parameters, training.clip)
            rate = values[SCALARS.index("learning_rate")]
            self.spoilt.copy_(~torch.isfinite(norm))
            self.rate.copy_(rate)
            self.head_rate.copy_(rate * values[SCALARS.index("length_gate")])
            self.optimizer.step()
            self.tokenizer.quantizer.update(outcome.z, outcome.codes, outcome.active)
            self.tokenizer.quantizer.recentre(outcome.projected)
            for kept, new in zip(self.state, outcome.state, strict=True):
                kept.copy_(new)
            if self.averaged is not None:
                share = values[SCALARS.index("averaging_share")]
                follow(self.averaged.values(), self._learnt.values(), share)
            world = self.recipe.workers.world
            own = torch.stack([torch.where(self.spoilt > 0, 0.0, norm), self.spoilt])
            self.totals.add_(torch.cat([outcome.metrics, own / world]))
            self._note_trouble(outcome.terms * world, norms, values[SCALARS.index("step")])
        # Without its history, which would keep the gradient's nodes of this stream alive.
        return outcome._replace(loss=outcome.loss.detach())

    def _aside(self) -> contextlib.AbstractContextManager[None]:
        return aside(self._stream if self.graphed else None)

    def _note_trouble(self, terms: Tensor, norms: Tensor, step: Tensor) -> None:
        self.spoilt_in_a_row.add_(1).mul_(self.spoilt)
        self.unsound.copy_(torch.where(self.spoilt > 0, ~torch.isfinite(norms), self.unsound))
        good = (terms.abs() <= self.recipe.training.loss_limit).all()
        good &= self.spoilt_in_a_row < MOST_SPOILT
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
        """Record the step with its inputs at fixed addresses."""
        assert self._static is not None
        values, loaded = self._static
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize(self.device)
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        self._graphs[probing], self._outcome[probing] = recording_of(
            lambda: self._step(loaded, values, probing), self.device, pool
        )

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
        own = {name: x.detach().clone() for name, x in self._learnt.items()}
        _assign(self._learnt, self.averaged)
        try:
            yield
        finally:
            _assign(self._learnt, own)

    def use_averaged_weights(self) -> None:
        """Put the averaged weights into the model for good."""
        assert self.averaged is not None
        _assign(self._learnt, self.averaged)


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


def _clip(parameters: list[nn.Parameter], limit: float) -> tuple[Tensor, Tensor]:
    """The gradient's norm before it was clipped to `limit`, 0 for none, and each parameter's."""
    found = iter(torch._foreach_norm([p.grad for p in parameters if p.grad is not None]))
    zero = torch.zeros((), device=parameters[0].device)
    norms = torch.stack([zero if p.grad is None else next(found) for p in parameters])
    norm = torch.linalg.vector_norm(norms)
    if limit:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm, norms


@torch.no_grad()
def _assign(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(values[name])
