"""The four phases that teach a model its own program length: truncation, oracle, head, handoff.

The oracle that sets the target of a length is the paper's (`error`); or it reads the image's own
rate curve, its squared error at a few lengths (`price`, `tolerance`) or at all K (`residue`); or it
asks the teacher, not the model (`outlines`).

Pure tensors. Nothing here branches on data, and what changes from step to step (`Schedule`) comes
in as 0-dim tensors, so that a compiled step never recompiles. The letters are the paper's
Appendix A; where it uses one letter twice, the config names them apart (`oracle_scale` is beta,
`probe_temperature` is tau).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from strop.errors import ConfigError

PAPER_STEPS = 500_000
"""The run length for which every number of steps in a config is given."""

IN_STEPS: dict[str, str] = {"time": "steps"}
"""Field metadata: a number of steps of a `PAPER_STEPS` run (or a tuple of them)."""

PER_STEP_DECAY: dict[str, str] = {"time": "decay"}
"""Field metadata: the decay per step of an exponential average, for a `PAPER_STEPS` run."""

EPSILON = 1e-6

FIRST_PRICE = 0.01
"""In units of squared error, before the price has moved."""

Oracle = Literal["error", "price", "tolerance", "residue", "outlines"]
Per = Literal["token", "doubling"]

Config = TypeVar("Config")
Reduce = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
    """How program lengths are chosen in training. Steps are for a run of `PAPER_STEPS`.

    enabled             False for the fixed-length ablation: no oracle, no length loss
    fixed_length        the length when not enabled; None for all `K` tokens
    phase_ends          last steps of: random truncation, + oracle, + length head, handoff ramp
    alpha_start         alpha_0 of Beta(alpha, 1): above 1, early programs are long
    bias_steps          T_bias, when alpha reaches 1; None for the end of phase 1
    truncation_minimum  shortest random length
    oracle              `error` is the paper's: a length in proportion to the sample's error. Three
                        others read the rate curve of each probed sample: `price` takes the length
                        at which error and price of the tokens add up to the least, `tolerance`
                        the shortest whose error comes near the curve's least, `residue` one in
                        proportion to the error that all K tokens leave. `outlines` probes
                        nothing: a length in proportion to the outlines that the teacher sees
    oracle_scale        beta: the target, as a share of K, of a sample of average error or, with
                        `outlines`, of average outlines; with `price` and `residue` the mean target,
                        as a share of K
    oracle_zoom         with `outlines`: how many times as many locations to a side the teacher
                        looks at, as the field has that programs reproduce
    oracle_contrast     above 1, targets are pushed away from `oracle_scale` of K by this power,
                        which tells images further apart; below 1 they are drawn towards it
    oracle_tolerance    with `tolerance`: by how much of itself the least error may be exceeded
    price_per           with `price`: what it is paid for. `token` makes the most of a mean length;
                        a price for each `doubling` of the length tells images further apart
    price_rate          with `price` and `residue`: how far the log of the price moves in a step
    rate_knots          lengths at which a rate curve is probed, evenly spaced in the logarithm;
                        `residue` takes the last alone
    oracle_minimum      shortest target
    oracle_maximum      longest target; None for K
    error_decay         rho of the error average, or of that of outlines
    probe_radius        delta: probes are taken at L - delta and L + delta
    probe_temperature   tau of the saturation of the slopes
    probe_fraction      share of the batch that is probed: 1, 1/2, 1/3, ...; `outlines` looks at
                        all of it
    slope_decay         decay of the slope averages
    compress, keep, extend  the modulator in its three regimes
    handoff_ceiling     share of predicted lengths after the handoff; the rest stays random
    """

    enabled: bool = True
    fixed_length: int | None = None
    phase_ends: tuple[int, ...] = field(
        default=(100_000, 150_000, 200_000, 250_000), metadata=IN_STEPS
    )
    alpha_start: float = 3.0
    bias_steps: int | None = field(default=None, metadata=IN_STEPS)
    truncation_minimum: int = 8
    oracle: Oracle = "error"
    oracle_scale: float = 0.75
    oracle_contrast: float = 1.0
    oracle_zoom: int = 4
    oracle_tolerance: float = 0.05
    price_per: Per = "token"
    price_rate: float = 0.02
    rate_knots: int = 10
    oracle_minimum: int = 2
    oracle_maximum: int | None = None
    error_decay: float = field(default=0.999, metadata=PER_STEP_DECAY)
    probe_radius: int = 2
    probe_temperature: float = 0.3
    probe_fraction: float = 1.0
    slope_decay: float = field(default=0.99, metadata=PER_STEP_DECAY)
    compress: float = 0.4
    keep: float = 1.0
    extend: float = 1.3
    handoff_ceiling: float = 1.0

    def __post_init__(self) -> None:
        if len(self.phase_ends) != 4 or list(self.phase_ends) != sorted(self.phase_ends):
            raise ConfigError(
                f"curriculum.phase_ends is {list(self.phase_ends)}.",
                "Give four steps in rising order: the ends of phases 1 to 4.",
            )
        for name in ("error_decay", "slope_decay", "handoff_ceiling"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"curriculum.{name} is {value}.", "Give a number from 0 to 1.")
        # Every n-th row is probed, so other shares would be rounded; 0.333 will do for a third.
        if not (
            0.0 < self.probe_fraction <= 1.0
            and abs(self.probe_fraction * probe_stride(self) - 1) < 0.005
        ):
            raise ConfigError(
                f"curriculum.probe_fraction is {self.probe_fraction}.",
                "Give 1, or one divided by a whole number, such as 0.5 or 0.25.",
            )
        for name in (
            "truncation_minimum",
            "oracle_minimum",
            "oracle_zoom",
            "probe_radius",
            "fixed_length",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"curriculum.{name} is {value}.", "Give at least 1.")
        if self.oracle_maximum is not None and self.oracle_maximum < self.oracle_minimum:
            raise ConfigError(
                f"curriculum.oracle_maximum is {self.oracle_maximum}.",
                f"Give at least curriculum.oracle_minimum, {self.oracle_minimum}.",
            )
        if self.rate_knots < 3:
            raise ConfigError(
                f"curriculum.rate_knots is {self.rate_knots}.", "A curve takes at least 3."
            )
        for name in (
            "alpha_start",
            "oracle_scale",
            "oracle_contrast",
            "oracle_tolerance",
            "price_rate",
            "probe_temperature",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(
                    f"curriculum.{name} is {getattr(self, name)}.", "Give a number above 0."
                )

    @property
    def zoom(self) -> int | None:
        """How much closer the teacher has to look for the oracle; None if it need not."""
        return self.oracle_zoom if self.enabled and self.oracle == "outlines" else None


def scaled(config: Config, steps: int) -> Config:
    """The config for a run of `steps`: what is given in steps shrinks or grows with the run.

    Works on any dataclass whose fields carry `IN_STEPS` or `PER_STEP_DECAY`. An average keeps its
    time constant as a share of the run: over `steps` steps it decays as much as it would over
    `PAPER_STEPS`. A number of steps above zero stays above zero.
    """
    factor = steps / PAPER_STEPS
    changed: dict[str, Any] = {}
    for each in dataclasses.fields(config):  # type: ignore[arg-type]
        value, time = getattr(config, each.name), each.metadata.get("time")
        if value is None or time is None:
            continue
        if time == "decay":
            changed[each.name] = value ** (1 / factor)
        elif isinstance(value, tuple):
            changed[each.name] = tuple(round(item * factor) for item in value)
        else:
            changed[each.name] = max(min(value, 1), round(value * factor))
    return dataclasses.replace(config, **changed)  # type: ignore[type-var]


# --- what depends on the step alone -----------------------------------------------------------


def phase(config: CurriculumConfig, step: int) -> int:
    """1 to 4, or 5 once the handoff is over; always 1 without a curriculum."""
    if not config.enabled:
        return 1
    return 1 + sum(step >= end for end in config.phase_ends)


def alpha(config: CurriculumConfig, step: int) -> float:
    """alpha of Beta(alpha, 1) at `step`: linear from `alpha_start` to 1, then 1."""
    over = config.phase_ends[0] if config.bias_steps is None else config.bias_steps
    return config.alpha_start + (1 - config.alpha_start) * (min(step / over, 1.0) if over else 1.0)


def handoff(config: CurriculumConfig, step: int) -> float:
    """a_s: the share of predicted lengths at `step`, 0 before phase 4, `handoff_ceiling` after."""
    if not config.enabled:
        return 0.0
    start, end = config.phase_ends[2:]
    ramp = float(step >= end) if start == end else (step - start) / (end - start)
    return config.handoff_ceiling * min(max(ramp, 0.0), 1.0)


# --- lengths ----------------------------------------------------------------------------------


def random_lengths(uniform: Tensor, alpha: Tensor, minimum: int, k: int) -> Tensor:
    """Random truncation: (B,) int64 lengths in [minimum, k] from (B,) uniform numbers.

    If U is uniform, U**(1/alpha) is Beta(alpha, 1).
    """
    share = uniform.float() ** (1.0 / alpha)
    return (minimum + share * (k - minimum)).round().clamp(minimum, k).long()


def mixed_lengths(random: Tensor, deployed: Tensor, uniform: Tensor, handoff: Tensor) -> Tensor:
    """Bernoulli mixing: row by row the deployed length with probability `handoff`, else random."""
    return torch.where(uniform < handoff, deployed, random)


# --- the paper's oracle -----------------------------------------------------------------------


class CurriculumState(NamedTuple):
    """The three averages, each with whether it has had its first value, and the price of tokens
    as the logarithm of its ratio to `FIRST_PRICE`. 0-dim float32 tensors."""

    error: Tensor
    error_seen: Tensor
    slope_short: Tensor
    slope_short_seen: Tensor
    slope_long: Tensor
    slope_long_seen: Tensor
    log_price: Tensor


def initial_state(device: torch.device | str = "cpu") -> CurriculumState:
    """Averages that have seen nothing yet, and the first price."""
    return CurriculumState(*(torch.zeros((), device=device) for _ in CurriculumState._fields))


def average(
    mean: Tensor, seen: Tensor, total: Tensor, count: Tensor, decay: float
) -> tuple[Tensor, Tensor]:
    """One step of an exponential average, which starts at its first value.

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
    """Every how manieth row of a batch is probed.

    A stride rather than the first rows: a batch split over processes is then probed at the same
    rows as on one process.
    """
    return round(1 / config.probe_fraction)


def probe_lengths(lengths: Tensor, config: CurriculumConfig, k: int) -> Probes:
    """The clipped neighbours of (P,) lengths.

    A probe the clip alters is invalid. After the handoff a length may lie under the truncation
    minimum; its shorter probe then stays at the length itself, never above it.
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
    """One-sided relative slopes (P,): how much shortening hurts, how much lengthening helps."""
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
    """Compress where the curve is flat, keep at its elbow, extend while more tokens still pay."""
    u_short = torch.tanh(slope_short / config.probe_temperature)
    u_long = torch.tanh(slope_long / config.probe_temperature)
    compress = (1 - u_short) * (1 - u_long)
    keep = u_short * (1 - u_long)
    m = config.compress * compress + config.keep * keep + config.extend * u_long
    return Modulator(m, u_short, u_long, compress, keep, u_long)


def base_targets(error: Tensor, mean_error: Tensor, config: CurriculumConfig, k: int) -> Tensor:
    """L_base (B,): longer for samples that reconstruct worse than the running average; with the
    oracle `outlines`, for those that have more of them."""
    proportional = error / (mean_error + EPSILON) * config.oracle_scale * k
    return clipped(contrasted(proportional, config, k), config, k)


def oracle_targets(base: Tensor, m: Tensor, config: CurriculumConfig, k: int) -> Tensor:
    """The corrected target (B,): the modulated base, clipped again."""
    return clipped(m * base, config, k)


def contrasted(targets: Tensor, config: CurriculumConfig, k: int) -> Tensor:
    """Targets (B,) further from, or nearer to, the one of an average sample."""
    middle = config.oracle_scale * k
    return middle * (targets / middle) ** config.oracle_contrast


def clipped(targets: Tensor, config: CurriculumConfig, k: int) -> Tensor:
    """Targets (B,) between the shortest and the longest that the oracle may ask for."""
    longest = k if config.oracle_maximum is None else config.oracle_maximum
    return targets.clamp(config.oracle_minimum, longest)


def _alone(value: Tensor) -> Tensor:
    return value


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
    *,
    reduce: Reduce = _alone,
) -> tuple[CurriculumState, Tensor, Modulator]:
    """One step of the oracle: the new averages, the (B,) targets and the modulator.

    error                    (B,) latent alignment at the active length
    probed, probes           the P of those errors, P <= B, and lengths, that are probed
    error_short, error_long  (P,) latent alignment at the two probes
    reduce                   sums a tensor over the processes of a distributed run
    """
    error = error.detach().float()
    slope_short, slope_long = slopes(
        probed.detach().float(), error_short.float(), error_long.float()
    )
    valid_short, valid_long = probes.short_valid.float(), probes.long_valid.float()
    totals = reduce(
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
    new = CurriculumState(
        *average(state.error, state.error_seen, totals[0], totals[1], config.error_decay),
        *average(
            state.slope_short, state.slope_short_seen, totals[2], totals[3], config.slope_decay
        ),
        *average(state.slope_long, state.slope_long_seen, totals[4], totals[5], config.slope_decay),
        state.log_price,
    )
    decision = modulator(new.slope_short, new.slope_long, config)
    base = base_targets(error, new.error, config, k)
    return new, oracle_targets(base, decision.m, config, k), decision


# --- oracles that read the image's own rate curve ---------------------------------------------


def knot_lengths(config: CurriculumConfig, k: int) -> tuple[int, ...]:
    """The rising lengths at which rate curves are probed: at most `rate_knots`, the last is k."""
    if config.oracle == "residue":
        return (k,)
    first, steps = math.log(min(config.oracle_minimum, k)), config.rate_knots - 1
    spaced = (first + (math.log(k) - first) * step / steps for step in range(steps + 1))
    return tuple(sorted({round(math.exp(knot)) for knot in spaced}))


def price(state: CurriculumState) -> Tensor:
    """Of all k tokens or of a doubling; with `residue` the error that gets the mean length."""
    return FIRST_PRICE * state.log_price.exp()


def cheapest_lengths(
    curves: Tensor, knots: tuple[int, ...], price: Tensor, per: Per = "token"
) -> Tensor:
    """(P,): where error and price are least, on a parabola through the three knots around it.

    curves  (P, n) error at each of the n knots, the last of which is k
    """
    at = torch.tensor(knots, dtype=curves.dtype, device=curves.device)
    x = at.log()
    cost = curves + price * (at / knots[-1] if per == "token" else at.log2())
    if len(knots) < 3:
        return at[cost.argmin(dim=1)]
    middle = cost.argmin(dim=1).clamp(1, len(knots) - 2)
    x0, x1, x2 = x[middle - 1], x[middle], x[middle + 1]
    y0, y1, y2 = (cost.gather(1, (middle + by)[:, None])[:, 0] for by in (-1, 0, 1))
    left, right = (x1 - x0) * (y2 - y1), (x2 - x1) * (y1 - y0)
    # left > right where the three points are convex; elsewhere the least is at an end.
    bend = left - right
    vertex = (x0 + x1) / 2 - (y1 - y0) * (x2 - x0) * (x2 - x1) / (2 * bend.clamp(min=EPSILON))
    end = torch.where(y0 <= y2, x0, x2)
    return torch.where(bend > EPSILON, vertex.clamp(x0, x2), end).exp()


def shortest_lengths(curves: Tensor, knots: tuple[int, ...], tolerance: float) -> Tensor:
    """(P,): where the curve first comes within `tolerance`, of itself, of its least.

    Between two knots the curve is taken as straight. curves (P, n) as in `cheapest_lengths`.
    """
    at = torch.tensor(knots, dtype=curves.dtype, device=curves.device)
    limit = curves.amin(dim=1, keepdim=True) * (1 + tolerance)
    first = (curves <= limit).to(torch.int8).argmax(dim=1)
    before = (first - 1).clamp(min=0)
    high = curves.gather(1, before[:, None])[:, 0]
    low = curves.gather(1, first[:, None])[:, 0]
    share = ((high - limit[:, 0]) / (high - low).clamp(min=EPSILON)).clamp(0.0, 1.0)
    return torch.where(first == 0, at[0], at[before] + share * (at[first] - at[before]))


@torch.no_grad()
def observe_rates(
    state: CurriculumState,
    curves: Tensor,
    config: CurriculumConfig,
    k: int,
    *,
    reduce: Reduce = _alone,
) -> tuple[CurriculumState, Tensor]:
    """One step of an oracle that reads rate curves: the new state and the (P,) targets.

    curves  (P, n) squared error at the n `knot_lengths` of each probed sample

    With `price` tokens go where they buy most, with `residue` where most is left unexplained.
    """
    curves, knots = curves.float(), knot_lengths(config, k)
    if config.oracle == "tolerance":
        targets = shortest_lengths(curves, knots, config.oracle_tolerance)
        return state, clipped(contrasted(targets, config, k), config, k)
    if config.oracle == "residue":
        targets = curves[:, -1] / price(state) * config.oracle_scale * k
    else:
        targets = cheapest_lengths(curves, knots, price(state), config.price_per)
    return _steered(state, targets, config, k, reduce)


def _steered(
    state: CurriculumState, targets: Tensor, config: CurriculumConfig, k: int, reduce: Reduce
) -> tuple[CurriculumState, Tensor]:
    """The targets as they are asked for, and the state with the price moved.

    The price rises while the targets' mean is above its goal and falls while it is below.
    """
    targets = clipped(contrasted(targets, config, k), config, k)
    total, count = reduce(torch.stack([targets.sum(), targets.new_full((), len(targets))]))
    excess = total / count / (config.oracle_scale * k) - 1
    # Not `_replace`, which torch 2.11 compiles into something else.
    return CurriculumState(*state[:-1], state.log_price + config.price_rate * excess), targets


# --- an oracle that asks the teacher ----------------------------------------------------------


def total_variation(fields: Tensor) -> Tensor:
    """(B,): how far apart neighbouring locations are, on average, in fields (B, h, w, d).

    What changes at an outline changes once, however far away its two sides lie: so this grows with
    the length of outlines and with how much the two sides differ, not with what they enclose.
    """
    steps = [fields.float().diff(dim=axis).square().mean(-1).sqrt().flatten(1) for axis in (1, 2)]
    return torch.cat(steps, dim=1).mean(1)


@torch.no_grad()
def observe_outlines(
    state: CurriculumState,
    outlines: Tensor,
    config: CurriculumConfig,
    k: int,
    *,
    reduce: Reduce = _alone,
) -> tuple[CurriculumState, Tensor]:
    """One step of the oracle `outlines`: the new state and (B,) targets.

    outlines  (B,) the `total_variation` of each sample's field, `oracle_zoom` times as close

    The paper's base length with outlines in the error's place, and so their average in the place
    of the state's average error.
    """
    outlines = outlines.float()
    total, count = reduce(torch.stack([outlines.sum(), outlines.new_full((), len(outlines))]))
    mean, seen = average(state.error, state.error_seen, total, count, config.error_decay)
    return CurriculumState(mean, seen, *state[2:]), base_targets(outlines, mean, config, k)
