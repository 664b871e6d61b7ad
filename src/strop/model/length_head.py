"""Length heads: the paper's, which predicts a length; a fixed length; and the rate head.

The rate head predicts the error of an image at every program length, from its pooled field. A
length follows from a question: the shortest program that reaches a quality, or the lengths of a
batch that have a given mean at the least error (`strop.model.length_rule`). Its margins turn an
expected error into one that a stated share of images keeps to. They are buffers, so they are saved
with the weights; `strop.training.lengths.calibrate` measures them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from strop.config import check_ranges
from strop.errors import ConfigError, ProgramError
from strop.figures import new_figure, plain_axes
from strop.model.layers import hidden_layers, initialise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIDENCE = 0.9
"""The share of images that has to reach a quality if none is given."""

QUALITIES = (0.5, 0.7, 0.8, 0.85, 0.88, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99, 0.995)
CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
"""Where margins are tabulated. Between them they are interpolated linearly."""

_SPREAD = 0.2
"""Standard deviation of the log error that margins assume before calibration."""


@dataclass(frozen=True, kw_only=True)
class LengthHeadConfig:
    """How a model chooses lengths.

    kind     "paper" predicts a length, "rate" the error at every length, "fixed" has no head
    hidden   widths of the hidden layers; by default (1024, 128) as in the paper, (256,) for "rate"
    fixed    the length of all programs; implies "fixed"
    quality  the cosine similarity that a model with a rate head encodes to by default
    """

    kind: Literal["paper", "rate", "fixed"] = "paper"
    hidden: tuple[int, ...] | None = None
    fixed: int | None = None
    quality: float = field(default=0.9, metadata={"above": 0, "below": 1})

    def __post_init__(self) -> None:
        if self.fixed is not None and self.kind == "paper":
            object.__setattr__(self, "kind", "fixed")
        if (self.fixed is not None) != (self.kind == "fixed"):
            raise ConfigError(
                f"length_head.kind is {self.kind!r} and length_head.fixed is {self.fixed}.",
                'Give a fixed length with kind "fixed", and with no other.',
            )
        check_ranges(self, "length_head")

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers, where none are given by `kind`."""
        if self.hidden is not None:
            return self.hidden
        return (256,) if self.kind == "rate" else (1024, 128)


class LengthHead(nn.Module):
    """`K * sigmoid(MLP(mean over locations))`: "Length head" in Section 2.1."""

    def __init__(self, config: LengthHeadConfig, *, field_width: int, length: int) -> None:
        super().__init__()
        self.length = length
        widths = (field_width, *config.widths)
        self.mlp = nn.Sequential(*hidden_layers(widths), nn.Linear(widths[-1], 1))
        initialise(self)

    def forward(self, field: Tensor) -> Tensor:
        """Field `(B, S, d_enc)` to real-valued lengths `(B,)` in (0, K)."""
        logit = self.mlp(field.mean(dim=1)).squeeze(-1)
        return self.length * torch.sigmoid(logit.float())


class FixedLength(nn.Module):
    """In the head's place where nothing is learned: every image has the same length."""

    def __init__(self, config: LengthHeadConfig, *, field_width: int, length: int) -> None:
        super().__init__()
        self.length = length if config.fixed is None else config.fixed

    def forward(self, field: Tensor) -> Tensor:
        """Field `(B, S, d_enc)` to lengths `(B,)`, all alike."""
        return torch.full((field.shape[0],), float(self.length), device=field.device)


def whole_lengths(predicted: Tensor, length: int) -> Tensor:
    """Predicted lengths, rounded and clipped to [1, K] (Section 2.1): int64, same shape."""
    return predicted.round().clamp(1, length).long()


@dataclass(frozen=True, kw_only=True, eq=False)
class RateCurve:
    """What the interpreter is expected to reach at lengths 1 to K.

    cosine         (B, K) float32: mean cosine similarity to the teacher's field, rising in k
    squared_error  (B, K) float32: mean squared error in the teacher's scale, falling in k
    """

    cosine: Tensor
    squared_error: Tensor

    def plot(self) -> Figure:
        """The cosine similarity of each image over the length of its program."""
        figure = new_figure()
        axes = plain_axes(figure, "length", "expected cosine similarity")
        lengths = range(1, self.cosine.shape[1] + 1)
        for curve in self.cosine.cpu():
            axes.plot(lengths, curve.tolist())
        return figure


class RateHead(nn.Module):
    """An MLP on statistics of the field over its locations: see `pooled`.

    The last layer gives the log error at K and K - 1 decrements, which a softplus keeps positive:
    both curves fall in k by construction.
    """

    qualities: Tensor
    confidences: Tensor
    margins: Tensor

    def __init__(self, config: LengthHeadConfig, *, field_width: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.quality = config.quality
        widths = (3 * field_width, *config.widths)
        self.mlp = nn.Sequential(nn.LayerNorm(widths[0]), *hidden_layers(widths))
        self.last = nn.Linear(widths[-1], 2 * length)
        initialise(self)
        with torch.no_grad():  # start from errors of 0.1 at K that grow as 1 / sqrt(k)
            nn.init.trunc_normal_(self.last.weight, std=0.1 * widths[-1] ** -0.5)
            lengths = torch.arange(1, length + 1)
            decrements = 0.5 * (1 + 1 / lengths[:-1]).log()
            final = torch.tensor([0.1]).log()
            self.last.bias.copy_(torch.cat([decrements.expm1().log(), final]).repeat(2))
        self.register_buffer("qualities", torch.tensor(QUALITIES))
        self.register_buffer("confidences", torch.tensor(CONFIDENCES))
        assumed = _SPREAD * torch.special.ndtri(self.confidences)
        self.register_buffer("margins", assumed.repeat(len(QUALITIES), 1))

    def forward(self, field: Tensor) -> Tensor:
        """Scaled field `(B, S, d_enc)` to the log error at lengths 1 to K: `(B, 2, K)` float32.

        Row 0 is the cosine error, 1 minus the mean cosine over locations; row 1 is the mean
        squared error.
        """
        return self.curves(pooled(field))

    def curves(self, statistics: Tensor) -> Tensor:
        """What `forward` gives, from what `pooled` gives `(B, 3 d_enc)`."""
        with torch.autocast(statistics.device.type, enabled=False):
            raw = self.last(self.mlp(statistics)).unflatten(-1, (2, self.length))
            decrements, final = raw[..., :-1], raw[..., -1:]
            above = nn.functional.softplus(decrements).flip(-1).cumsum(-1).flip(-1)
            return final + nn.functional.pad(above, (0, 1))

    def shortest(self, curves: Tensor, quality: float, confidence: float) -> Tensor:
        """Log errors `(B, 2, K)` to the shortest lengths `(B,)` int64 that reach `quality`; else K.

        Each program reaches it with probability `confidence`.
        """
        short = curves[:, 0] > self.threshold(quality, confidence)
        return (1 + short.sum(dim=-1)).clamp(max=self.length)

    def threshold(self, quality: float, confidence: float) -> Tensor:
        """The predicted log error `()` below which a program reaches `quality`.

        It falls in both arguments: a higher quality or confidence never gives a shorter program.
        """
        wanted = self.margins.new_full((), 1 - quality).log()
        margins = self._margins(confidence)
        return wanted - _interpolated(wanted, (1 - self.qualities).log().flip(0), margins.flip(0))

    def expected(self, log_error: Tensor, confidence: float) -> Tensor:
        """Predicted log errors of any shape to the cosine reached with that confidence."""
        errors = (1 - self.qualities).log().flip(0)
        margin = self._margins(confidence).flip(0)
        thresholds = errors - margin
        return 1 - (log_error + _interpolated(log_error, thresholds, margin)).exp()

    def _margins(self, confidence: float) -> Tensor:
        """Margins `(len(QUALITIES),)` at one confidence."""
        check_confidence(confidence)
        at = self.margins.new_full((), confidence)
        return _interpolated(at, self.confidences, self.margins.T)


def pooled(field: Tensor) -> Tensor:
    """Scaled field `(B, S, d_enc)` to `(B, 3 d_enc)` float32: what the rate head sees of it.

    For each channel, the mean and standard deviation over locations, and the root mean square
    difference of neighbouring locations.
    """
    field = field.float()
    side = math.isqrt(field.shape[1])
    grid = field.unflatten(1, (side, side))
    down, across = (grid.diff(dim=axis).square().sum((1, 2)) for axis in (1, 2))
    steps = (down + across) / max(2 * side * (side - 1), 1)
    return torch.cat([field.mean(dim=1), field.std(dim=1, correction=0), steps.sqrt()], dim=-1)


def check_confidence(confidence: float) -> None:
    """Refuse a share of images for which there are no margins."""
    low, high = CONFIDENCES[0], CONFIDENCES[-1]
    if not low <= confidence <= high:
        raise ProgramError(
            f"A confidence of {confidence} is outside [{low}, {high}].",
            f"Give a share of images from {low} to {high}.",
        )


def _interpolated(x: Tensor, at: Tensor, values: Tensor) -> Tensor:
    """The piecewise linear function through `(at, values)` at x; constant beyond its ends.

    Rows of `values` may have further axes.
    """
    after = (at < x[..., None]).sum(-1).clamp(1, len(at) - 1)
    share = ((x - at[after - 1]) / (at[after] - at[after - 1])).clamp(0, 1)
    return torch.lerp(values[after - 1], values[after], share)
