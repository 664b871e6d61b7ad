"""The rules by which tokenizers choose lengths, side by side on one model and the same images.

Every rule has one knob that makes all programs longer or shorter. At an equal guaranteed quality
the knob is turned until a stated share of the images reaches that quality, and rules are compared
by their mean length. At an equal mean length they are compared by R² centred over all images.
Both are measured on the curves of the images: their agreement at every length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from strop import curriculum, objective
from strop.agreement import centred_square
from strop.analysis.findings import Findings, Table
from strop.analysis.frame import Analysis
from strop.analysis.length_choice import Curves, best_residual, curves_of, encode_seconds
from strop.analysis.panels import lines
from strop.analysis.subject import Subject
from strop.curriculum import CurriculumConfig
from strop.figures import Figure, new_figure
from strop.model.length_head import LengthHead, LengthHeadConfig, RateHead, pooled, whole_lengths
from strop.model.length_rule import allocated_lengths, needs_rate_head, verified_lengths
from strop.model.tokenizer import TokenizerConfig
from strop.random import seeded
from strop.statistics import mean_interval
from strop.training.fit import fit

ONE, SEARCH, CLASSES = "one length for all", "exhaustive search", "three rates by a classifier"
PAPER, RATE, VERIFIED, ORACLE = "the paper's head", "rate head", "rate head, verified", "oracle"
QUALITIES = (0.85, 0.86, 0.87, 0.88, 0.89, 0.9, 0.91, 0.92, 0.93, 0.94)
"""Qualities at which the calibration of the rate head is checked."""
STEPS = 1000
"""Optimizer steps of the rules that are fitted."""

TIMED_IMAGES = 8
_HALVINGS = 40

Rule = Callable[[float], Tensor]
"""The lengths (n,) int64 at a knob in [0, 1]; a larger one never gives a shorter program."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of lengths.

    quality     the cosine similarity that programs are to reach
    confidence  the share of images that is to reach it
    means       mean lengths at which R² is compared; those above K are left out
    most        images, each of which is interpreted at all K lengths
    seed        of the rules that are fitted, and of intervals
    """

    quality: float = field(default=0.9, metadata={"above": 0, "below": 1})
    confidence: float = field(default=0.9, metadata={"above": 0, "below": 1})
    means: tuple[int, ...] = (8, 16, 31)
    most: int = field(default=1024, metadata={"min": 16})
    seed: int = 0


def share(curves: Curves, lengths: Tensor, quality: float) -> float:
    """The share of images that reach a quality at lengths (n,)."""
    return float((curves.at(lengths).cosine >= quality).mean())


def able(curves: Curves, quality: float) -> float:
    """The share of images that reach a quality at some length."""
    return float((curves.cosine >= quality).any(axis=1).mean())


def error(curves: Curves, lengths: Tensor) -> float:
    """The squared error of all images at lengths (n,)."""
    return float(curves.at(lengths).residual.sum())


def check(subject: Subject, options: Options) -> None:
    """Refuse models without a rate head."""
    if not isinstance(subject.tokenizer.length_head, RateHead):
        raise needs_rate_head("the study of lengths")


@torch.no_grad()
def run(subject: Subject, options: Options) -> Findings:
    """Compare the rules on at most `most` images, each of which is interpreted K times."""
    tokenizer, images = subject.tokenizer, min(options.most, len(subject))
    fields, program = subject.fields[:images], subject.program[:images]
    inside = None if subject.inside is None else subject.inside[:images]
    progress = partial(subject.progress, "lengths")
    curves = curves_of(tokenizer, program, fields, inside, progress)
    scaled = (part * tokenizer.config.teacher.scale for part in fields.split(64))
    statistics = torch.cat([pooled(part) for part in scaled])
    head = cast("RateHead", tokenizer.length_head)
    predicted = head.curves(statistics.to(tokenizer.device)).cpu()
    looks: list[int] = []
    rules = make_rules(curves, statistics, predicted[:, 0], tokenizer.config, options.seed, looks)
    rules[VERIFIED](options.quality)
    passes = {SEARCH: program.capacity, VERIFIED: sum(looks) / images, ORACLE: program.capacity}
    # Images are encoded in the ways that `encode` offers.
    ways: dict[str, dict[str, Any]] = {
        ONE: {"length": "max"},
        SEARCH: {"length": "search"},
        RATE: {"quality": options.quality},
        VERIFIED: {"quality": options.quality, "verify": True},
    }
    timed = subject.records.images[:TIMED_IMAGES]
    seconds = {name: encode_seconds(tokenizer, timed, **way) for name, way in ways.items()}
    result = {
        "passes": {name: passes.get(name, 0) for name in (*rules, ORACLE)},
        **compare(rules, curves, predicted, options),
        "timing": {name: each / seconds[ONE] for name, each in seconds.items()},
        "calibration": calibration(head, predicted, curves, options.confidence),
    }
    return Findings(
        numbers={"images_compared": images, **result},
        tables=tables(result, options),
        figures={"rules": draw(rules, curves, result, options)},
        notes=(
            "Passes are interpretations per image beyond teacher and generator. Time is relative "
            "to an encoding of one forced length, on the same images. `Tokens` is the mean length "
            f"at which {options.confidence:.0%} of the images reach the quality, by the knob of "
            "each rule on these images; with verification and for the oracle, every image that can "
            "reach the quality does. R² centred is compared at equal mean length: the difference "
            "to one length for all. The classifier and the paper's head are fitted to the curves "
            "of one half of the images and applied to the other.",
        ),
    )


ANALYSIS = Analysis(run=run, options=Options, check=check, least=2)


# The rules.

DIRECT = (SEARCH, VERIFIED)
"""Rules whose knob is the quality itself."""


def make_rules(
    curves: Curves,
    statistics: Tensor,
    log_error: Tensor,
    config: TokenizerConfig,
    seed: int,
    looks: list[int],
) -> dict[str, Rule]:
    """The rules by name, but for the oracle, which has no knob.

    statistics  (n, 3 d_enc), see `strop.model.length_head.pooled`
    log_error   (n, K), predicted by the rate head
    looks       gets the number of images that the verified rule interprets, time after time
    """
    images, k = curves.cosine.shape
    cosine = torch.from_numpy(curves.cosine)
    classes = crossed(partial(fit_classes, curves, seed), statistics)
    papers = crossed(partial(fit_paper, curves, config, seed), statistics) / k
    most, range_ = log_error.max().item() + 1, log_error.max().item() - log_error.min().item() + 2

    def verified(knob: float) -> Tensor:
        def look(rows: Tensor, lengths: Tensor) -> Tensor:
            looks.append(len(rows))
            return cosine[rows, lengths - 1].float()

        return verified_lengths(log_error, min(max(knob, 1e-6), 1 - 1e-6), look)[0]

    return {
        ONE: lambda knob: torch.full((images,), 1 + int(knob * (k - 1))),
        SEARCH: lambda knob: first_reaching(cosine, knob),
        CLASSES: lambda knob: (2.0 ** (classes - 1) * 2 * k * knob).long().clamp(1, k),
        PAPER: lambda knob: whole_lengths(k * (papers.logit() + 40 * knob - 20).sigmoid(), k),
        RATE: lambda knob: first_reaching(-log_error, knob * range_ - most),
        VERIFIED: verified,
    }


def first_reaching(values: Tensor, least: float) -> Tensor:
    """The first length (n,) at which values (n, K) are `least` or above; K if there is none."""
    before = (values < least).int().cumprod(dim=1).sum(dim=1)
    return (1 + before).clamp(max=values.shape[1])


def crossed(fitted: Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
    """(n,): for each half of the rows of x (n, d), what is fitted to the other half says of it.

    `fitted` takes rows of x and their indices.
    """
    found = torch.empty(len(x))
    for half in (0, 1):
        rows = torch.arange(1 - half, len(x), 2)
        found[half::2] = fitted(x[rows], rows)(x[half::2])
    return found


def fit_classes(
    curves: Curves, seed: int, statistics: Tensor, rows: Tensor
) -> Callable[[Tensor], Tensor]:
    """A linear classifier of complexity into thirds, 0 to 2: how large the error is at K / 4."""
    at = torch.from_numpy(1 - curves.cosine[rows, curves.cosine.shape[1] // 4 - 1])
    classes = (at.argsort().argsort() * 3 // len(at)).long()
    width = statistics.shape[1]
    with seeded(seed):
        network = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3))

    def loss(step: int) -> Tensor:
        return nn.functional.cross_entropy(network(statistics), classes)

    fit(network.parameters(), loss, steps=STEPS, learning_rate=1e-3, seed=seed)
    return lambda x: network(x).argmax(dim=1)


def fit_paper(
    curves: Curves, config: TokenizerConfig, seed: int, statistics: Tensor, rows: Tensor
) -> Callable[[Tensor], Tensor]:
    """The paper's head, taught by the paper's oracle (Appendix A) on curves that do not change.

    The random lengths and probes of phases 2 and 3 are read off the curves.
    """
    k, width = curves.cosine.shape[1], config.teacher.width
    rules = CurriculumConfig(truncation_minimum=min(8, k // 2))
    per_scalar = config.teacher.scale**2 / curves.whole.size
    error_at = 1 - curves.cosine[rows] + curves.residual[rows] * per_scalar
    alignment = torch.from_numpy(error_at).float()
    with seeded(seed):
        head = LengthHead(LengthHeadConfig(), field_width=width, length=k)
    means, batch = statistics[:, None, :width], 128
    random = torch.Generator().manual_seed(seed)
    state = curriculum.initial_state()

    def loss(step: int) -> Tensor:
        nonlocal state
        picked = torch.randint(len(rows), (batch,), generator=random)
        uniform = torch.rand(batch, generator=random)
        lengths = curriculum.random_lengths(uniform, torch.ones(()), rules, k)
        probes = curriculum.probe_lengths(lengths, rules, k)
        own, short, long = (
            alignment[picked, at - 1] for at in (lengths, probes.short, probes.long)
        )
        state, targets, _ = curriculum.observe(state, own, own, probes, short, long, rules, k)
        return objective.length_loss(head(means[picked]), targets, k)

    fit(head.parameters(), loss, steps=STEPS, learning_rate=3e-4, seed=seed)
    return lambda x: head(x[:, None, :width])


# The comparison.


def compare(
    rules: Mapping[str, Rule], curves: Curves, predicted: Tensor, options: Options
) -> dict[str, Any]:
    """Mean length at the quality, and R² centred at each mean length less that of one length."""
    at_quality = lengths_at(rules, curves, options.quality, options.confidence)
    even, whole = _mean(at_quality[ONE]), curves.whole
    total = centred_square(whole.size, whole.square, whole.channels)
    gains: dict[str, dict[str, float]] = {name: {} for name in at_quality}
    levels: dict[str, float] = {}
    intervals: dict[str, list[float]] = {}
    for mean in (each for each in options.means if each <= curves.cosine.shape[1]):
        shared = allocated_lengths(predicted[:, 1].exp(), mean)
        errors = {name: error_at_mean(rule, curves, mean) for name, rule in rules.items()}
        errors[RATE] = error(curves, shared)
        errors[ORACLE] = float(best_residual(curves.residual, mean))
        for name, each in errors.items():
            gains[name][str(mean)] = (errors[ONE] - each) / total
        levels[str(mean)] = 1 - errors[ONE] / total
        saved = curves.at(mean).residual - curves.at(shared).residual
        found = mean_interval(saved, seed=options.seed)
        scale = len(saved) / total
        intervals[str(mean)] = [found.low * scale, found.high * scale]
    return {
        "able": able(curves, options.quality),
        "at_quality": {
            name: {
                "tokens": _mean(lengths),
                "of_one_length": _mean(lengths) / even,
                "reached": share(curves, lengths, options.quality),
            }
            for name, lengths in at_quality.items()
        },
        "r2_centred_of_one_length": levels,
        "r2_centred_gain": gains,
        "r2_centred_gain_of_rate_head": intervals,
    }


def lengths_at(
    rules: Mapping[str, Rule], curves: Curves, quality: float, confidence: float
) -> dict[str, Tensor]:
    """The lengths by each rule, and by the oracle, at which enough images reach a quality."""
    goal = min(confidence, able(curves, quality))
    found = {
        name: rule(quality)
        if name in DIRECT
        else turned(rule, lambda lengths: share(curves, lengths, quality) >= goal)[1]
        for name, rule in rules.items()
    }
    return {**found, ORACLE: found[SEARCH]}


def turned(rule: Rule, enough: Callable[[Tensor], bool]) -> tuple[Tensor, Tensor]:
    """Lengths on both sides of the least knob at which they are enough: (too short, enough).

    Where even the longest are not enough, both are the longest; and the shortest where they are.
    """
    low, high = 0.0, 1.0
    if enough(rule(low)) or not enough(rule(high)):
        return (rule(low if enough(rule(low)) else high),) * 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(rule(middle)) else (middle, high)
    return rule(low), rule(high)


def error_at_mean(rule: Rule, curves: Curves, mean: float) -> float:
    """The squared error of all images at a mean length, linear between steps of the knob."""
    sides = turned(rule, lambda lengths: _mean(lengths) >= mean)
    means, errors = zip(*((_mean(each), error(curves, each)) for each in sides), strict=True)
    return float(np.interp(mean, means, errors))


def calibration(
    head: RateHead, predicted: Tensor, curves: Curves, confidence: float
) -> list[dict[str, float]]:
    """What share of the images reaches each quality at the lengths that the rate head gives it."""
    predicted = predicted.to(head.margins.device)
    found = []
    for quality in QUALITIES:
        lengths = head.shortest(predicted, quality, confidence).cpu()
        can, reached = able(curves, quality), share(curves, lengths, quality)
        found.append(
            {
                "quality": quality,
                "able": can,
                "reached": reached,
                "reached_of_able": reached / can if can else float("nan"),
                "tokens": _mean(lengths),
            }
        )
    return found


def tables(result: dict[str, Any], options: Options) -> list[Table]:
    """The rules side by side, and the calibration of the rate head."""
    gains, passes, timing = result["r2_centred_gain"], result["passes"], result["timing"]
    rows = {
        name: [*each.values(), *gains[name].values(), passes[name], timing.get(name)]
        for name, each in result["at_quality"].items()
    }
    header = ["rule", "tokens", "of one length", "share that reaches"]
    header += [f"R² at mean {mean}, gain" for mean in gains[ONE]] + ["passes", "time"]
    return [
        Table(f"Lengths for a cosine of {options.quality:g}", header, rows),
        Table(
            f"Quality asked with a confidence of {options.confidence:g}",
            ["quality", "can reach it", "reach it", "reach it, of those that can", "tokens"],
            [list(each.values()) for each in result["calibration"]],
        ),
    ]


def draw(
    rules: Mapping[str, Rule], curves: Curves, result: dict[str, Any], options: Options
) -> Figure:
    """Tokens over the guaranteed quality, and the gain in R² over the mean length."""
    most = np.quantile(curves.cosine.max(axis=1), 1 - options.confidence)
    qualities = np.linspace(np.median(curves.cosine[:, 0]), most, 16).tolist()
    at = [lengths_at(rules, curves, each, options.confidence) for each in qualities]
    tokens = {name: [_mean(each[name]) for each in at] for name in at[0]}
    gains = {name: list(each.values()) for name, each in result["r2_centred_gain"].items()}
    means = [int(mean) for mean in result["r2_centred_of_one_length"]]
    figure = new_figure(10, 4)
    lines(figure, "quality that is reached (cosine)", "mean length", qualities, tokens, 121)
    lines(figure, "mean length", "R² centred less that of one length", means, gains, 122)
    return figure


def _mean(values: Tensor) -> float:
    return values.double().mean().item()
