"""One optimizer step: gradients, update, codebook, without synchronising with the host.

On a GPU the whole step, optimizer and codebook included, is recorded in a CUDA graph and replayed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from strop.collectives import summed
from strop.curriculum import CurriculumState, initial_state
from strop.model.layers import AttentionLayer
from strop.model.tokenizer import Tokenizer
from strop.recorded import Recorded, materialise
from strop.training import distributed, draws
from strop.training.forward import METRICS, SCALARS, TERMS, Outcome, StepConfig, forward
from strop.training.muon import Muon

MOST_SPOILT = 8
"""Number of consecutive steps without a finite gradient that ends a run."""


class Stepper:
    """The parts of a run that a step changes, and the step.

    tokenizer             the model
    optimizers            AdamW, and Muon for matrices if the preset says so
    state                 the curriculum's averages
    averaged              the averaged weights, and means of positions, by name, or None
    totals, counted       sum of `METRICS` since `take_metrics`, and its number of steps
    spoilt                whether the last gradient was not finite; such a step changes no weight
    spoilt_in_a_row       number of consecutive such steps
    unsound               (parameters,) bool: parameters without finite gradient in that step
    trouble               (2 + len(TERMS),): whether the run has failed, and step and terms of the
                          first failure

    field_of gives the field (B, S, d_enc) of a loaded batch, in the teacher's scale, inside the
    step.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        field_of: Callable[[tuple[Tensor, ...]], Tensor],
        config: StepConfig,
        *,
        device: torch.device,
    ) -> None:
        training = config.training
        self.tokenizer, self.config, self.device = tokenizer, config, device
        self.field_of = field_of
        cuda = device.type == "cuda"
        bf16 = training.precision == "bf16" or (training.precision == "auto" and cuda)
        self.precision = torch.bfloat16 if bf16 else torch.float32
        self.compiled = training.compile in ("on", "max") or (training.compile == "auto" and cuda)
        self.parameters = trainable(tokenizer)
        # Two rates, because the length head is not trained before phase 3. Tensors, so that
        # neither a graph nor a compiled function holds the rate of an earlier step.
        self.rate, self.head_rate = torch.zeros(2, device=device).unbind()
        blocks = layer_matrices(tokenizer) if training.optimizer == "muon" else {}
        adam = torch.optim.AdamW(
            parameter_groups(tokenizer, training.weight_decay, self.rate, self.head_rate, blocks),
            betas=(training.betas[0], training.betas[1]),
            fused=True,
            capturable=cuda,
        )
        materialise(adam)
        self.optimizers: list[torch.optim.Optimizer] = [adam]
        if blocks:
            self.optimizers.append(Muon(blocks, self.rate, training.weight_decay))
        # Where this is 1 an optimizer changes nothing: torch's protocol for scaled gradients.
        self.spoilt = torch.zeros((), device=device)
        for optimizer in self.optimizers:
            optimizer.found_inf = self.spoilt  # type: ignore[attr-defined]
        self.state = initial_state(device)
        # The means that centre the tokens belong to the weights they were measured with, so they
        # are averaged with them.
        self._biases = [m.kv.bias for m in tokenizer.modules() if isinstance(m, AttentionLayer)]
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
        recorded: Recorded[Outcome] | None = None
        self._recorded: dict[bool, Recorded[Outcome]] = {}
        for probing in self.variants:
            recorded = self._recorded[probing] = Recorded(
                functools.partial(self._step, probing),
                device,
                enabled=self.compiled and config.workers.world == 1,
                shares_with=recorded,
            )

    @property
    def variants(self) -> tuple[bool, ...]:
        """Whether steps probe: both with an oracle, False without one."""
        return (False, True) if self.config.has_oracle else (False,)

    @property
    def recording(self) -> bool:
        """Whether steps are recorded in CUDA graphs."""
        return all(each.recording for each in self._recorded.values())

    def _compiled_forward(self, probing: bool) -> Callable[..., Outcome]:
        tokenizer, config, precision = self.tokenizer, self.config, self.precision

        def run(field: Tensor, values: Tensor, state: CurriculumState) -> Outcome:
            return forward(
                tokenizer, field, values, state, config, probing=probing, precision=precision
            )

        if not self.compiled:
            return run
        # Collectives may break the graph; a single process has none.
        single = config.workers.world == 1
        mode = "max-autotune-no-cudagraphs" if config.training.compile == "max" else None
        compiled: Callable[..., Outcome] = torch.compile(
            run, fullgraph=single, dynamic=False, mode=mode
        )
        return compiled

    def warm_up(self, loaded: tuple[Tensor, ...], values: Tensor) -> None:
        """Compile forward and backward of every variant, without changing any state."""
        if not self.compiled:
            return
        for probing in self.variants:
            with self._recorded[probing].aside():
                self._outcome_of(loaded, values, probing).loss.backward()
                self._forget_gradients()

    @torch.no_grad()
    def initialise_codebook(self, loaded: tuple[Tensor, ...]) -> None:
        """Initialise codes and means of positions with tokens of the first batch."""
        field = self.field_of(loaded).float() * self.tokenizer.config.teacher.scale
        uniform = draws.uniform(self.config.training.seed, "initialise", 0, self._codes)
        self.tokenizer.quantizer.begin(self.tokenizer.generator(field), uniform.to(self.device))
        if self.averaged is not None:
            _assign(self.averaged, self._learnt)

    def __call__(self, loaded: tuple[Tensor, ...], values: Tensor, step: int) -> None:
        """Take `step` with the batch `loaded` and `step_values`, both on the device."""
        outcome = self._recorded[self.config.phase(step) >= 2](values, *loaded)
        self.steps_done += 1
        self.counted += 1
        if (step + 1) % self.config.training.reseed_every == 0:
            uniform = draws.uniform(self.config.training.seed, "reseed", step, self._codes)
            self.tokenizer.quantizer.reseed(
                outcome.z,
                outcome.active,
                uniform.to(self.device, non_blocking=True),
                below=self.config.training.reseed_below,
            )

    @property
    def _codes(self) -> int:
        return len(self.tokenizer.quantizer.codebook)

    def _outcome_of(self, loaded: tuple[Tensor, ...], values: Tensor, probing: bool) -> Outcome:
        return self._forward[probing](self.field_of(loaded), values, self.state)

    def _step(self, probing: bool, values: Tensor, *loaded: Tensor) -> Outcome:
        training = self.config.training
        self._forget_gradients()
        outcome = self._outcome_of(loaded, values, probing)
        outcome.loss.backward()
        with torch.no_grad():
            parameters = list(self.parameters.values())
            self._fix_key_biases()
            distributed.sum_gradients(parameters)
            norm, norms = _clip(parameters, training.clip)
            rate = values[SCALARS.index("learning_rate")]
            self.spoilt.copy_(~torch.isfinite(norm))
            self.rate.copy_(rate)
            self.head_rate.copy_(rate * values[SCALARS.index("length_gate")])
            for optimizer in self.optimizers:
                optimizer.step()
            self.tokenizer.quantizer.update(outcome.z, outcome.codes, outcome.active)
            self.tokenizer.quantizer.recentre(outcome.projected)
            for kept, new in zip(self.state, outcome.state, strict=True):
                kept.copy_(new)
            if self.averaged is not None:
                share = values[SCALARS.index("averaging_share")]
                follow(self.averaged.values(), self._learnt.values(), share)
            world = self.config.workers.world
            own = torch.stack([torch.where(self.spoilt > 0, 0.0, norm), self.spoilt])
            self.totals.add_(torch.cat([outcome.metrics, own / world]))
            self._note_trouble(outcome.terms * world, norms, values[SCALARS.index("step")])
        # Detached: its graph would keep autograd nodes of this stream alive.
        return outcome._replace(loss=outcome.loss.detach())

    def _forget_gradients(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def _fix_key_biases(self) -> None:
        """Drop the gradient of the keys' biases.

        They shift all scores of a query alike, which softmax does not feel, so their gradient is
        rounding noise. Adam makes whole steps of noise, and the weights of two runs that differ in
        nothing but rounding, such as one on two devices, would drift apart.
        """
        for bias in self._biases:
            if bias.grad is not None:
                bias.grad[: len(bias) // 2].zero_()

    def _note_trouble(self, terms: Tensor, norms: Tensor, step: Tensor) -> None:
        self.spoilt_in_a_row.add_(1).mul_(self.spoilt)
        self.unsound.copy_(torch.where(self.spoilt > 0, ~torch.isfinite(norms), self.unsound))
        good = (terms.abs() <= self.config.training.loss_limit).all()
        good &= self.spoilt_in_a_row < MOST_SPOILT
        now = torch.cat([torch.ones_like(step)[None], step[None], terms])
        self.trouble.copy_(torch.where(good | (self.trouble[0] > 0), self.trouble, now))

    def take_metrics(self) -> dict[str, float]:
        """Means of `METRICS` since the last call, over all processes. Waits for the device."""
        totals = summed(self.totals) / max(self.counted, 1)
        self.totals.zero_()
        self.counted = 0
        return dict(zip(METRICS, totals.tolist(), strict=True))

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """A context in which the model has the averaged weights, if there are any."""
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
        """Replace the model's weights by the averaged ones."""
        assert self.averaged is not None
        _assign(self._learnt, self.averaged)


def trainable(tokenizer: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training updates, by name: not those of teacher and decoder."""
    return {
        name: parameter
        for name, parameter in tokenizer.named_parameters()
        if parameter.requires_grad and not name.startswith(("teacher.", "decoder."))
    }


def layer_matrices(tokenizer: nn.Module) -> dict[Tensor, int]:
    """The matrices of linear layers outside the length head, and of how many matrices each is made:
    a layer that computes keys and values has two."""
    outside = ("length_head.", "decoder.")
    return {
        part.weight: 2 if name.endswith(".kv") else 1
        for name, part in tokenizer.named_modules()
        if isinstance(part, nn.Linear) and not name.startswith(outside)
    }


def parameter_groups(
    tokenizer: nn.Module,
    weight_decay: float,
    rate: Tensor,
    head_rate: Tensor,
    others: Collection[Tensor] = (),
) -> list[dict[str, object]]:
    """Parameter groups: matrices of linear layers decay; norms, biases and embeddings do not.

    The length head has a separate learning rate. `others` have another optimizer.
    """
    matrices = {
        f"{name}.weight" for name, part in tokenizer.named_modules() if isinstance(part, nn.Linear)
    }
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in trainable(tokenizer).items():
        if parameter in others:
            continue
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


@torch.no_grad()
def follow(averaged: Iterable[Tensor], weights: Iterable[Tensor], share: Tensor) -> None:
    """Move the average to the weights by a share, a 0-dim tensor that a CUDA graph can record."""
    kept = list(averaged)
    lead = list(torch._foreach_sub(list(weights), kept))
    torch._foreach_mul_(lead, share)
    torch._foreach_add_(kept, lead)


def _clip(parameters: list[nn.Parameter], limit: float) -> tuple[Tensor, Tensor]:
    """Clip gradients to the norm `limit` (0 for none); returns the norms of all and of each."""
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
