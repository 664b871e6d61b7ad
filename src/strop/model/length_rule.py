"""The lengths of programs: what a user may ask of them, and those that follow from it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.errors import ModelError, ProgramError, parsing
from strop.model.encoding import Encoding
from strop.model.interpreter import prefix_mask
from strop.model.length_head import CONFIDENCE, RateHead, check_confidence, whole_lengths
from strop.model.tokenizer_config import TokenizerConfig
from strop.program import Program, check_range

TOLERANCE = 0.01
"""How much above the least cosine error of an image a search accepts if nothing is said."""

_SHARE_LOOKED_AT = 0.25
"""The share of the K tokens at which every image is interpreted first, whatever the quality."""

_DOUBT, _DOUBT_PER_OCTAVE = 0.03, 0.07
"""How far the log error may be from a curve that was measured at one length: there, and for each
doubling or halving of the length more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LengthRule:
    """How lengths are chosen; the fields are the options of `Tokenizer.encode`.

    Without any, a model with a rate head encodes to the quality in its config, and any other
    uses the lengths that its head predicts.
    """

    length: int | Tensor | Literal["max", "search"] | None = None
    quality: float | None = None
    confidence: float | None = None
    verify: bool = False
    mean_length: float | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        for name in ("quality", "confidence", "mean_length", "tolerance"):
            value = getattr(self, name)
            if isinstance(value, Tensor) and value.numel() == 1:
                object.__setattr__(self, name, value := value.item())
            if isinstance(value, bool) or not isinstance(value, numbers.Real | None):
                raise ProgramError(f"{name} is {value!r:.60}.", "Give a number.")
        if not isinstance(self.verify, bool):
            raise ProgramError(f"verify is {self.verify!r:.60}.", "Give True or False.")
        goals = [name for name in ("length", "quality", "mean_length") if self._given(name)]
        if len(goals) > 1:
            raise ProgramError(f"{' and '.join(goals)} were given together.", "Give at most one.")
        goal = goals[0] if goals else "quality"
        if self.tolerance is not None and not (self.searches and self.tolerance >= 0):
            raise ProgramError(
                f"A tolerance of {self.tolerance} was given"
                + ("." if self.searches else " without a search."),
                'Give 0 or more, together with length="search".',
            )
        for name in ("verify", "confidence"):
            if self._given(name) and goal != "quality":
                raise ProgramError(
                    f"{name} was given together with {goal}.", f"Give {name} with a quality only."
                )
        if self.verify and self.confidence is not None:
            raise ProgramError(
                "verify and confidence were given together.",
                "Leave confidence out: a verified program reaches the quality for certain.",
            )
        if self.quality is not None and not 0 < self.quality < 1:
            raise ProgramError(
                f"A quality of {self.quality} is outside (0, 1).",
                "Give a cosine similarity between 0 and 1, such as 0.9.",
            )
        if self.confidence is not None:
            check_confidence(self.confidence)
        if isinstance(self.length, str):
            if self.length not in ("max", "search"):
                raise ProgramError(
                    f"length is {self.length!r}.",
                    'Give a number, "max" for all K, or "search" for each image\'s shortest.',
                )
        elif self.length is not None:
            remedy = "Give a whole number, or a tensor of them, one per image."
            with parsing(ProgramError, f"{self.length!r:.60} is not a length", remedy):
                lengths = torch.as_tensor(self.length)
            if lengths.dtype == torch.bool or not lengths.numel():
                raise ProgramError(f"length is {self.length!r:.60}.", remedy)
            if lengths.is_floating_point():
                raise ProgramError(
                    f"A length of {lengths.flatten()[0]:g} was given as a float.", remedy
                )
            object.__setattr__(self, "length", lengths)

    @property
    def searches(self) -> bool:
        """Whether every length of each image is interpreted."""
        return isinstance(self.length, str) and self.length == "search"

    def check(self, config: TokenizerConfig) -> None:
        """Refuse what a model of this config cannot do."""
        if isinstance(self.length, Tensor):
            check_range(self.length, 1, config.max_length, "length")
        if self.mean_length is not None:
            check_mean_length(self.mean_length, config.max_length)
        if config.length_head.kind != "rate":
            for name in ("quality", "verify", "confidence"):
                if self._given(name):
                    raise needs_rate_head(name)

    def goal(self, config: TokenizerConfig) -> float | None:
        """The quality that programs should reach; None if their lengths are chosen otherwise."""
        if self.length is not None or self.mean_length is not None:
            return None
        quality = self.quality or config.length_head.quality
        return None if quality is None else quality - 1e-6  # what is expected was rounded

    def missed(self, program: Program, config: TokenizerConfig) -> list[bool]:
        """Which programs do not reach the quality; nothing if that is not known."""
        known, goal = program.quality, self.goal(config)
        return [] if known is None or goal is None else (known < goal).tolist()

    def shortfall(self, missed: int, images: int, config: TokenizerConfig) -> str:
        """What to tell if so many programs do not reach the quality."""
        goal = f"a cosine of {self.quality:g}" if self.quality is not None else ""
        goal = goal or f"the model's default cosine of {config.length_head.quality:g}"
        one = missed == 1
        verb = ("does" if one else "do") if self.verify else ("is" if one else "are")
        return (
            f"{missed:,} of {images:,} image{'' if images == 1 else 's'} {verb} not "
            f"{'' if self.verify else 'expected to '}reach {goal}, "
            f"even with all {config.max_length} tokens"
        )

    def _given(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and value is not False


def needs_rate_head(what: str) -> ModelError:
    """The error for a model without a rate head."""
    return ModelError(
        f"This model has no rate head, which {what} needs.",
        "Add one with `strop train-lengths MODEL --data SPEC --out FOLDER`.",
    )


def expected_quality(
    head: nn.Module, log_error: Tensor | None, lengths: Tensor, confidence: float | None = None
) -> Tensor | None:
    """The cosine similarity `(B,)` that lengths reach with that confidence, if known."""
    if log_error is None:
        return None
    at = log_error[:, 0].gather(1, lengths[:, None] - 1)[:, 0]
    assert isinstance(head, RateHead)
    return head.expected(at, confidence or CONFIDENCE)


def predicted_lengths(
    rule: LengthRule, head: nn.Module, predicted: Tensor, log_error: Tensor | None, capacity: int
) -> Tensor:
    """Lengths `(B,)` int64 that need no interpretation."""
    if rule.length is not None:
        forced = torch.as_tensor(capacity if rule.length == "max" else rule.length)
        forced = forced.to(predicted.device, torch.int64)
        if forced.ndim and forced.shape != predicted.shape:
            raise ProgramError(
                f"The lengths have the shape {tuple(forced.shape)}, and there are "
                f"{len(predicted):,} images.",
                "Give one length, or one length per program.",
            )
        return forced if forced.ndim else forced.repeat(len(predicted))
    if log_error is None:
        if rule.mean_length is not None:
            return lengths_for_mean(predicted, rule.mean_length, capacity)
        return whole_lengths(predicted, capacity)
    if rule.mean_length is not None:
        return allocated_lengths(log_error[:, 1].exp(), rule.mean_length)
    assert isinstance(head, RateHead)
    return head.shortest(log_error, rule.quality or head.quality, rule.confidence or CONFIDENCE)


def measured_lengths(
    rule: LengthRule,
    head: nn.Module,
    encoding: Encoding,
    interpret: Callable[[Tensor, Tensor], Tensor],
    batch: int,
) -> tuple[Tensor, Tensor]:
    """Lengths `(B,)` found by interpreting prefixes, and the quality that they reach.

    interpret  codes and mask `(b, K)`, b at most `batch`, to fields
    """
    images, capacity = encoding.codes.shape

    def cosine(rows: Tensor, lengths: Tensor) -> Tensor:
        similarities = [
            F.cosine_similarity(
                interpret(encoding.codes[row], prefix_mask(length, capacity)),
                encoding.field[row],
                dim=-1,
            ).mean(dim=1)
            for row, length in zip(rows.split(batch), lengths.split(batch), strict=True)
        ]
        return torch.cat(similarities)

    if rule.verify:
        assert isinstance(head, RateHead)
        assert encoding.log_error is not None
        quality = rule.quality or head.quality
        return verified_lengths(encoding.log_error[:, 0], quality, cosine)
    device = encoding.codes.device
    every = torch.arange(1, capacity + 1, device=device).repeat(images)
    rows = torch.arange(images, device=device).repeat_interleave(capacity)
    reached = cosine(rows, every).view(images, capacity)
    tolerance = TOLERANCE if rule.tolerance is None else rule.tolerance
    lengths = shortest_within(1 - reached, tolerance)
    return lengths, reached.gather(1, lengths[:, None] - 1)[:, 0]


# Rate control: lengths for a batch that meet a budget, or for each image that meet a quality.


def check_mean_length(mean_length: float, capacity: int) -> None:
    """Refuse a mean that no lengths in [1, K] can have."""
    if not 1 <= mean_length <= capacity:
        raise ProgramError(
            f"A mean length of {mean_length} is outside [1, {capacity}].",
            f"Give a mean length from 1 to {capacity}.",
        )


def lengths_for_mean(predicted: Tensor, mean_length: float, capacity: int) -> Tensor:
    """Predicted lengths `(B,)` shifted so that they average `mean_length`: int64 in [1, K].

    The shift is added to the length head's logit, so that the order of the images by length is
    kept and no length leaves (0, K). Rounding goes to the largest remainders, so that the sum is
    the budget, to the nearest whole token.
    """
    check_mean_length(mean_length, capacity)
    logit = torch.logit((predicted.double() / capacity).clamp(1e-9, 1 - 1e-9))

    def shifted(shift: Tensor) -> Tensor:
        return (capacity * torch.sigmoid(logit + shift.to(logit))).clamp(1, capacity)

    low, high = torch.full((), -50.0), torch.full((), 50.0)
    for _ in range(60):
        middle = (low + high) / 2
        too_long = shifted(middle).mean() > mean_length
        low, high = torch.where(too_long, low, middle), torch.where(too_long, middle, high)
    wanted = shifted((low + high) / 2)
    whole = wanted.floor()
    spare = round(mean_length * len(wanted)) - int(whole.sum())
    by_remainder = (wanted - whole).argsort(descending=True, stable=True)
    whole[by_remainder[: max(spare, 0)]] += 1
    return whole.clamp(1, capacity).long()


def shortest_within(errors: Tensor, tolerance: float) -> Tensor:
    """Errors at every length `(B, K)` to the shortest lengths `(B,)` near each row's best.

    Near is an error of at most the row's smallest plus `tolerance`. Errors need not fall with
    length, so the whole curve is looked at.
    """
    good = errors <= errors.amin(dim=1, keepdim=True) + tolerance
    return 1 + good.int().argmax(dim=1)


def allocated_lengths(squared_error: Tensor, mean_length: float) -> Tensor:
    """Squared errors at every length `(B, K)` to the lengths `(B,)` of that mean with least error.

    Each further token goes to the image where it saves the most, along the lower convex hull of
    the image's curve. So a larger mean never gives a shorter program. The sum is the budget, to
    the nearest whole token.
    """
    images, capacity = squared_error.shape
    check_mean_length(mean_length, capacity)
    savings = hull_savings(squared_error.double()).flatten()
    tokens = round((mean_length - 1) * images)
    bought = torch.zeros_like(savings, dtype=torch.int64)
    bought[savings.argsort(descending=True, stable=True)[:tokens]] = 1
    return 1 + bought.view(images, capacity - 1).sum(dim=1)


def hull_savings(errors: Tensor) -> Tensor:
    """`(B, K - 1)`: what each further token saves along the lower convex hulls of errors `(B, K)`.

    Savings fall along each row.
    """
    images, capacity = errors.shape
    savings = errors.new_empty(images, capacity - 1)
    vertex = errors.new_zeros(images, dtype=torch.int64)
    for k in range(capacity - 1):
        ahead = torch.arange(1, capacity - k, device=errors.device)
        most, at = ((errors[:, k, None] - errors[:, k + 1 :]) / ahead).max(dim=1)
        here = vertex == k
        savings[:, k] = torch.where(here, most, savings[:, max(k - 1, 0)])
        vertex = torch.where(here, k + 1 + at, vertex)
    return savings


def verified_lengths(
    log_error: Tensor, quality: float, measure: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Lengths `(B,)` int64 at which the measured quality reaches `quality`, and it, `(B,)` float32.

    log_error  (B, K) predicted logarithm of the cosine error, falling
    measure    rows (n,) and lengths (n,) to the cosine similarities (n,) that they reach

    Each image is measured once at a fixed length, which shifts its predicted curve. A bisection
    follows, which measures only where the shifted curve leaves doubt. Its end is measured as well;
    from there the length grows until the quality is reached, or is K where it never is. Which
    lengths the bisection may look at does not depend on the quality, and each of its decisions is
    monotone in the quality: so a higher quality never gives a shorter program.
    """
    images, capacity = log_error.shape
    rows = torch.arange(images, device=log_error.device)
    known = log_error.new_full((images, capacity), torch.nan)

    def look(at: Tensor, lengths: Tensor) -> Tensor:
        new = known[at, lengths - 1].isnan()
        if new.any():
            known[at[new], lengths[new] - 1] = measure(at[new], lengths[new]).float()
        return known[at, lengths - 1]

    first = math.ceil(_SHARE_LOOKED_AT * capacity)
    found = look(rows, torch.full_like(rows, first))
    shift = (1 - found).clamp(min=1e-6).log() - log_error[:, first - 1]
    expected = log_error + shift[:, None]
    octaves = (torch.arange(1, capacity + 1, device=log_error.device) / first).log2().abs()
    doubt = _DOUBT + _DOUBT_PER_OCTAVE * octaves
    wanted = math.log(1 - quality)
    low, high = torch.zeros_like(rows), torch.full_like(rows, capacity)
    while (unsettled := high - low > 1).any():
        middle = ((low + high) // 2).clamp(min=1)
        excess = expected[rows, middle - 1] - wanted
        enough = excess <= 0
        unsure = unsettled & (excess.abs() <= doubt[middle - 1])
        enough[unsure] = look(rows[unsure], middle[unsure]) >= quality
        high = torch.where(unsettled & enough, middle, high)
        low = torch.where(unsettled & ~enough, middle, low)
    reached = look(rows, high)
    while (short := (reached < quality) & (high < capacity)).any():
        high = high + short.long()
        reached[short] = look(rows[short], high[short])
    return high, reached
