"""How the program lengths of training are chosen: the paper's four phases (Section 2.3).

1. Random truncation: programs are cut at random lengths, so early tokens carry most information.
2. Oracle targets: an error above the running average asks for a longer program, one below it for
   a shorter one. Probes at L - delta and L + delta measure the slopes of the rate curve; one
   modulator m corrects all targets: compress where the curve is flat, extend where tokens pay.
3. Length head: it is trained on these targets and not used yet.
4. Handoff: predicted lengths replace the random ones with a probability that rises to
   `handoff_ceiling` and stays there.

`active_lengths`, `observe` and `trains_length_head` are these phases; the formulas follow them.
`strop.training.forward` calls them in every step.

A model whose head predicts the rate curve (`strop.model.length_head`) needs no oracle: it stays in
phase 1 and learns from the errors at its random lengths. `handoff_ceiling` may still give it a
share of deployed lengths. A model of one fixed length needs no curriculum: its length is deployed
from the first step on.

Functions branch on no data, and are pure but for means over the processes of a run. Values that
change from step to step are 0-dim tensors, so a compiled step never recompiles. "Eq. 1" to "Eq. 7"
are the numbered equations of the paper's Appendix A, in their order; where it uses one letter
twice, the config has two names (`oracle_scale` is beta, `probe_temperature` is tau).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from strop.collectives import summed
from strop.config import check_ranges
from strop.errors import ConfigError
from strop.model.length_head import whole_lengths

PAPER_STEPS = 500_000
"""The run length for which all numbers of steps in a config are given."""

IN_STEPS: dict[str, Any] = {"time": "steps", "min": 0}
"""Field metadata: a number of steps of a `PAPER_STEPS` run (or a tuple of them)."""

PER_STEP_DECAY: dict[str, Any] = {"time": "decay", "min": 0, "max": 1}
"""Field metadata: the decay per step of an exponential average, for a `PAPER_STEPS` run."""

EPSILON = 1e-6

Truncation = Literal["beta", "uniform", "powers-of-two"]

Config = TypeVar("Config")


@dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
    """How program lengths are chosen in training. Steps are for a run of `PAPER_STEPS`.

    phase_ends          last steps of: random truncation, + oracle, + length head, handoff ramp
    truncation          distribution of random lengths: `beta` is the paper's Beta(alpha, 1),
                        `uniform` One-D-Piece's tail drop, `powers-of-two` FlexTok's nested
                        dropout, which draws from 1, 2, 4, ..., K
    truncation_minimum  shortest random length
    alpha_start         alpha_0 of Beta(alpha, 1): above 1, early programs are long. alpha reaches
                        1 at the end of phase 1 (T_bias)
    oracle_scale        beta: the target of a sample of average error, as a share of K
    oracle_minimum      shortest target; the longest is K
    error_decay         rho of the error average
    probe_radius        delta: probes are taken at L - delta and L + delta
    probe_temperature   tau of the saturation of the slopes
    probe_fraction      share of the batch that is probed: 1, 1/2, 1/3, ...
    slope_decay         decay of the slope averages
    compress, keep, extend  the modulator in its three regimes
    handoff_ceiling     share of predicted lengths after the handoff; the rest stays random
    """

    phase_ends: tuple[int, ...] = field(
        default=(100_000, 150_000, 200_000, 250_000), metadata=IN_STEPS
    )
    truncation: Truncation = "beta"
    truncation_minimum: int = field(default=8, metadata={"min": 1})
    alpha_start: float = field(default=3.0, metadata={"above": 0})
    oracle_scale: float = field(default=0.75, metadata={"above": 0})
    oracle_minimum: int = field(default=2, metadata={"min": 1})
    error_decay: float = field(default=0.999, metadata=PER_STEP_DECAY)
    probe_radius: int = field(default=2, metadata={"min": 1})
    probe_temperature: float = field(default=0.3, metadata={"above": 0})
    probe_fraction: float = field(default=1.0, metadata={"above": 0, "max": 1})
    slope_decay: float = field(default=0.99, metadata=PER_STEP_DECAY)
    compress: float = field(default=0.4, metadata={"min": 0})
    keep: float = field(default=1.0, metadata={"min": 0})
    extend: float = field(default=1.3, metadata={"min": 0})
    handoff_ceiling: float = field(default=1.0, metadata={"min": 0, "max": 1})

    def __post_init__(self) -> None:
        check_ranges(self, "curriculum")
        if len(self.phase_ends) != 4 or list(self.phase_ends) != sorted(self.phase_ends):
            raise ConfigError(
                f"curriculum.phase_ends is {list(self.phase_ends)}.",
                "Give four steps in rising order: the ends of phases 1 to 4.",
            )
        # Every n-th row is probed, so other shares would be rounded; 0.333 will do for a third.
        if abs(self.probe_fraction * probe_stride(self) - 1) >= 0.005:
            raise ConfigError(
                f"curriculum.probe_fraction is {self.probe_fraction}.",
                "Give 1, or one divided by a whole number, such as 0.5 or 0.25.",
            )


def scaled(config: Config, steps: int) -> Config:
    """The config for a run of `steps`: numbers of steps shrink or grow with the run.

    Works on any dataclass whose fields carry `IN_STEPS` or `PER_STEP_DECAY`. An average keeps its
    time constant as a share of the run: over `steps` steps it decays as much as it would over
    `PAPER_STEPS`. A number of steps above zero stays above zero.
    """
    factor = steps / PAPER_STEPS
    changed: dict[str, Any] = {}
    for each in dataclasses.fields(config):  # type: ignore[arg-type]
        value, time = getattr(config, each.name), each.metadata.get("time")
        if time is None:
            continue
        if time == "decay":
            changed[each.name] = value ** (1 / factor)
        elif isinstance(value, tuple):
            changed[each.name] = tuple(round(item * factor) for item in value)
        else:
            changed[each.name] = max(min(value, 1), round(value * factor))
    return dataclasses.replace(config, **changed)  # type: ignore[type-var]


class CurriculumState(NamedTuple):
    """The averages of the oracle and whether each has its first value. 0-dim float32 tensors."""

    error: Tensor
    error_seen: Tensor
    slope_short: Tensor
    slope_short_seen: Tensor
    slope_long: Tensor
    slope_long_seen: Tensor


def initial_state(device: torch.device | str = "cpu") -> CurriculumState:
    """Averages without a first value."""
    return CurriculumState(*(torch.zeros((), device=device) for _ in CurriculumState._fields))


# --- the four phases --------------------------------------------------------------------------


def active_lengths(
    predicted: Tensor,
    uniform: Tensor,
    alpha: Tensor,
    handoff: Tensor,
    config: CurriculumConfig,
    k: int,
) -> Tensor:
    """Phases 1 and 4: the lengths (B,) int64 at which programs are cut in this step.

    predicted       (B,) output of the length head; it counts from phase 4 on
    uniform         (2, B) uniform numbers in [0, 1): for random lengths, for the handoff
    alpha, handoff  alpha_s and a_s of this step, see below
    """
    random = random_lengths(uniform[0], alpha, config, k)  # Eq. 1
    deployed = whole_lengths(predicted, k)
    return mixed_lengths(random, deployed, uniform[1], handoff)  # Eq. 7


@torch.no_grad()
def observe(
    state: CurriculumState,
    error: Tensor,
    probed: Tensor,
    probes: Probes,
    error_short: Tensor,
    error_long: Tensor,
    config: CurriculumConfig,
    k: int,
) -> tuple[CurriculumState, Tensor, Modulator]:
    """Phase 2: the new averages, the target lengths (B,) and the modulator.

    error                    (B,) latent alignment at the active length
    probed, probes           the P of those errors, P <= B, and lengths, that are probed
    error_short, error_long  (P,) latent alignment at the two probes
    """
    error = error.detach().float()
    short, long = slopes(probed.detach().float(), error_short.float(), error_long.float())  # Eq. 3
    state = averaged(state, error, short, long, probes, config)
    base = base_targets(error, state.error, config, k)  # Eq. 2
    decision = modulator(state.slope_short, state.slope_long, config)  # Eq. 4
    return state, oracle_targets(base, decision.m, config, k), decision  # Eq. 5


def trains_length_head(config: CurriculumConfig, step: int) -> bool:
    """From phase 3 on: whether the length head learns the targets, by `objective.length_loss`."""
    return phase(config, step) >= 3


# --- the schedule: functions of the step ------------------------------------------------------


def phase(config: CurriculumConfig, step: int) -> int:
    """1 to 4, or 5 after the handoff ramp."""
    return 1 + sum(step >= end for end in config.phase_ends)


def alpha(config: CurriculumConfig, step: int) -> float:
    """alpha_s of Beta(alpha, 1), after Eq. 1: linear from `alpha_start` to 1 at T_bias, then 1."""
    over = config.phase_ends[0]
    return config.alpha_start + (1 - config.alpha_start) * (min(step / over, 1.0) if over else 1.0)


def handoff(config: CurriculumConfig, step: int) -> float:
    """a_s, before Eq. 7: the share of predicted lengths, 0 before phase 4, its ceiling after."""
    start, end = config.phase_ends[2:]
    ramp = float(step >= end) if start == end else (step - start) / (end - start)
    return config.handoff_ceiling * min(max(ramp, 0.0), 1.0)


# --- phase 1: random truncation ---------------------------------------------------------------


def random_lengths(uniform: Tensor, alpha: Tensor, config: CurriculumConfig, k: int) -> Tensor:
    """Eq. 1: (B,) int64 lengths in [truncation_minimum, k], from (B,) uniform draws in [0, 1)."""
    minimum = min(config.truncation_minimum, k)
    if config.truncation == "powers-of-two":
        # FlexTok draws from 1, 2, 4, ..., K with equal probability.
        first, last = (minimum - 1).bit_length(), (k - 1).bit_length()
        exponent = first + (uniform * (last - first + 1)).long().clamp(max=last - first)
        return torch.ones_like(exponent).bitwise_left_shift(exponent).clamp(max=k)
    if config.truncation == "uniform":
        return minimum + (uniform * (k + 1 - minimum)).long().clamp(max=k - minimum)
    # If U is uniform, U**(1/alpha) is Beta(alpha, 1).
    share = uniform.float() ** (1.0 / alpha)
    return (minimum + share * (k - minimum)).round().clamp(minimum, k).long()


# --- phase 2: oracle targets ------------------------------------------------------------------


def base_targets(error: Tensor, mean_error: Tensor, config: CurriculumConfig, k: int) -> Tensor:
    """Eq. 2: L_base (B,), `e / (mean e + eps) * beta K`, clipped."""
    base = error / (mean_error + EPSILON) * config.oracle_scale * k
    return base.clamp(config.oracle_minimum, k)


def oracle_targets(base: Tensor, m: Tensor, config: CurriculumConfig, k: int) -> Tensor:
    """Eq. 5: the corrected target (B,), `m L_base`, clipped again."""
    return (m * base).clamp(config.oracle_minimum, k)


def averaged(
    state: CurriculumState,
    error: Tensor,
    slope_short: Tensor,
    slope_long: Tensor,
    probes: Probes,
    config: CurriculumConfig,
) -> CurriculumState:
    """The averages after one more batch: errors (B,), and slopes (P,) of probes left unclipped."""
    valid_short, valid_long = probes.short_valid.float(), probes.long_valid.float()
    totals = summed(
        torch.stack(
            [
                error.sum(),
                error.new_full((), error.shape[0]),
                (slope_short * valid_short).sum(),
                valid_short.sum(),
                (slope_long * valid_long).sum(),
                valid_long.sum(),
            ]
        )
    )
    error_rho, slope_decay = config.error_decay, config.slope_decay
    return CurriculumState(
        *average(state.error, state.error_seen, totals[0], totals[1], error_rho),
        *average(state.slope_short, state.slope_short_seen, totals[2], totals[3], slope_decay),
        *average(state.slope_long, state.slope_long_seen, totals[4], totals[5], slope_decay),
    )


def average(
    mean: Tensor, seen: Tensor, total: Tensor, count: Tensor, decay: float
) -> tuple[Tensor, Tensor]:
    """One step of an exponential average (before Eq. 2), which starts at its first value.

    The new value is `total / count`; with a count of zero nothing changes.
    """
    value = total / count.clamp(min=1.0)
    moved = torch.where(seen > 0, decay * mean + (1 - decay) * value, value)
    return torch.where(count > 0, moved, mean), torch.maximum(seen, (count > 0).to(seen.dtype))


class Probes(NamedTuple):
    """Where to probe, (P,) int64 each, and which probes the clip left alone, (P,) bool each."""

    short: Tensor
    long: Tensor
    short_valid: Tensor
    long_valid: Tensor


def probe_stride(config: CurriculumConfig) -> int:
    """The distance between probed rows of a batch.

    A stride rather than the first rows: a batch split over processes is then probed at the same
    rows as on one process.
    """
    return round(1 / config.probe_fraction)


def probe_lengths(lengths: Tensor, config: CurriculumConfig, k: int) -> Probes:
    """The clipped neighbours L - delta and L + delta of (P,) lengths, before Eq. 3.

    A probe that the clip alters is invalid. After the handoff a length may lie under the
    truncation minimum; its shorter probe then stays at the length itself, never above it.
    """
    short, long = lengths - config.probe_radius, lengths + config.probe_radius
    clipped_short = short.clamp(config.truncation_minimum, k)
    clipped_long = long.clamp(config.truncation_minimum, k)
    return Probes(
        torch.minimum(clipped_short, lengths),
        clipped_long,
        clipped_short == short,
        clipped_long == long,
    )


def slopes(error: Tensor, error_short: Tensor, error_long: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 3: r_short and r_long (P,), the relative rise of the error at the shorter probe and its
    relative fall at the longer one, both at least 0."""
    scale = error + EPSILON
    return (
        ((error_short - error) / scale).clamp(min=0.0),
        ((error - error_long) / scale).clamp(min=0.0),
    )


class Modulator(NamedTuple):
    """The three-way decision. 0-dim tensors; the three weights sum to one."""

    m: Tensor
    u_short: Tensor
    u_long: Tensor
    compress: Tensor
    keep: Tensor
    extend: Tensor


def modulator(slope_short: Tensor, slope_long: Tensor, config: CurriculumConfig) -> Modulator:
    """Eq. 4 and m of Eq. 5: compress where the rate curve is flat, keep at its elbow, extend while
    more tokens pay."""
    u_short = torch.tanh(slope_short / config.probe_temperature)
    u_long = torch.tanh(slope_long / config.probe_temperature)
    compress = (1 - u_short) * (1 - u_long)
    keep = u_short * (1 - u_long)
    m = config.compress * compress + config.keep * keep + config.extend * u_long
    return Modulator(m, u_short, u_long, compress, keep, u_long)


# --- phase 4: handoff -------------------------------------------------------------------------


def mixed_lengths(random: Tensor, deployed: Tensor, uniform: Tensor, handoff: Tensor) -> Tensor:
    """Eq. 7 (B,): the deployed length with probability `handoff`, else the random one, by row."""
    return torch.where(uniform < handoff, deployed, random)


def equal_error_lengths(log_error: Tensor, config: CurriculumConfig) -> Tensor:
    """The deployed lengths (B,) of a head that predicts rate curves.

    All images get the same expected error: the mean log error of the batch at `oracle_scale` of
    the K tokens. The length is the shortest that reaches it, K where none does.

    log_error  (B, K) logarithm of the expected error at lengths 1 to K, falling
    """
    k = log_error.shape[1]
    at = log_error[:, min(math.ceil(config.oracle_scale * k), k) - 1]
    total, count = summed(torch.stack([at.sum(), at.new_full((), len(at))]))
    return ((log_error > total / count).sum(1) + 1).clamp(max=k)
