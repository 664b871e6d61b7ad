"""Rate: quality at every length, and the model's lengths against those of a search.

The search interprets every prefix of an image's program and takes the shortest whose cosine error
is within a tolerance of the image's best. It costs K interpretations per image; the length head
costs one pass. The head is judged by the correlation of its lengths with the search's, by its
regret (the R² it loses against the best lengths of equal mean), and by its gain over one length for
all images.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from strop.agreement import Agreement, agree, total_square
from strop.analysis.alignment import interpreted
from strop.analysis.findings import Findings
from strop.analysis.frame import Analysis
from strop.analysis.subject import Subject
from strop.figures import MUTED, Figure, new_figure, plain_axes
from strop.model.length_rule import TOLERANCE, hull_savings, shortest_within
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.statistics import Array, bootstrap, pearson, spearman

MOST_IMAGES = 256
TIMED_IMAGES = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of rate: none, since nothing in it is random but the intervals of seed 0."""


def run(subject: Subject, options: Options) -> Findings:
    """Compare lengths on at most `MOST_IMAGES` images: each is interpreted K times."""
    tokenizer, fields = subject.tokenizer, subject.fields[:MOST_IMAGES]
    program = subject.program[:MOST_IMAGES]
    inside = None if subject.inside is None else subject.inside[:MOST_IMAGES]
    curves = curves_of(tokenizer, program, fields, inside, partial(subject.progress, "lengths"))
    result = compare_lengths(curves, program.lengths)
    cost = search_cost(tokenizer, subject.records.images[:TIMED_IMAGES])
    numbers = {**result, "timing": {"search_cost": cost}}
    return Findings(numbers=numbers, figures={"lengths": draw(result)})


ANALYSIS = Analysis(run=run, options=Options)


class Curves(NamedTuple):
    """What programs reach at every length.

    cosine, residual  (n, K) float64: mean cosine, and squared error summed over the field
    whole             the agreement at length K
    """

    cosine: Array
    residual: Array
    whole: Agreement

    def at(self, lengths: ArrayLike) -> Agreement:
        """The agreement at lengths (n,), or at one length for all."""
        where = np.arange(len(self.cosine)), np.asarray(lengths) - 1
        return replace(self.whole, residual=self.residual[where], cosine=self.cosine[where])


def curves_of(
    tokenizer: Tokenizer,
    program: Program,
    fields: Tensor,
    inside: Tensor | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Curves:
    """Agreements with fields (n, S, d_enc), where they are `inside`, at lengths 1, 2, ..., K."""
    agreements = []
    for length in range(1, program.capacity + 1):
        made = interpreted(tokenizer, program.with_lengths(length), fields)
        agreements.append(agree(made, inside))
        progress(length, program.capacity)
    return joined(agreements)


def joined(agreements: Sequence[Agreement]) -> Curves:
    """The curves of agreements at lengths 1, 2, ..., K."""
    cosine, residual = (
        np.stack([getattr(each, name) for each in agreements], axis=1)
        for name in ("cosine", "residual")
    )
    return Curves(cosine, residual, agreements[-1])


def compare_lengths(curves: Curves, chosen: Tensor) -> dict[str, Any]:
    """All figures, from the agreement at each length and the model's lengths (n,)."""
    residual, whole = curves.residual, curves.whole
    own = chosen.cpu().numpy()
    found = shortest_within(torch.from_numpy(1 - curves.cosine), TOLERANCE).numpy()
    at_own, mean, total = curves.at(own), float(own.mean()), whole.total
    every = np.arange(1, residual.shape[1] + 1)
    at_lengths = [curves.at(length).scores() for length in every]
    best, *best_at = best_residual(residual, [mean, *every])
    regret = float((at_own.residual.sum() - best) / total)
    means = whole.channels.mean(axis=1)
    gain = bootstrap(partial(choice_gain, whole.size), residual, own, whole.square, means)
    chosen_scores = at_own.scores()
    values = {
        "length_mean": mean,
        "search_length_mean": float(found.mean()),
        "search_correlation": pearson(own, found),
        "regret_r2": regret,
        "regret_r2_fixed": regret + gain.value,
        "choice_gain_r2": gain.value,
        **{name: chosen_scores[name] for name in ("cosine", "r2", "r2_centred")},
    }
    return {
        "images": len(own),
        "tolerance": TOLERANCE,
        "values": values,
        "intervals": {"choice_gain_r2": [gain.low, gain.high]},
        "search_rank_correlation": spearman(own, found),
        "searched": curves.at(found).scores(),
        "curve": {
            "length": every.tolist(),
            **{name: [each[name] for each in at_lengths] for name in at_lengths[0]},
            "r2_best": [float(1 - each / total) for each in best_at],
        },
        "lengths": {"chosen": own.tolist(), "searched": found.tolist()},
    }


def best_residual(residual: Array, mean_lengths: ArrayLike) -> Array:
    """The least total error that lengths with each of the mean values `mean_lengths` can have.

    residual (n, K) is the error of each image at each length. Each image's curve is replaced by its
    lower convex hull, which no mixture of lengths can beat. Then each further token goes to the
    image where it saves the most.
    """
    savings = hull_savings(torch.from_numpy(residual)).flatten().numpy()
    most_first = np.sort(savings[savings > 0])[::-1]
    saved = np.concatenate([[0.0], most_first.cumsum()])
    tokens = (np.asarray(mean_lengths, np.float64) - 1) * len(residual)
    return residual[:, 0].sum() - np.interp(tokens, np.arange(len(saved)), saved)


def choice_gain(size: float, residual: Array, chosen: Array, square: Array, means: Array) -> float:
    """R² of the chosen lengths (n,) minus R² of their mean length for all images.

    residual (n, K) as in `best_residual`; size, square and means as in `total_square`.
    """
    every = np.arange(1, residual.shape[1] + 1)
    fixed = np.interp(chosen.mean(), every, residual.sum(axis=0))
    own = residual[np.arange(len(chosen)), chosen - 1].sum()
    return float((fixed - own) / total_square(size, square, means))


def search_cost(tokenizer: Tokenizer, images: Tensor) -> float:
    """The time to encode uint8 images (b, 3, H, H) by search, divided by that of one pass."""

    return encode_seconds(tokenizer, images, length="search") / encode_seconds(tokenizer, images)


def encode_seconds(tokenizer: Tokenizer, images: Tensor, **options: Any) -> float:
    """The time to encode uint8 images (b, 3, H, H) with options of `encode`, after a first call."""
    tokenizer.encode(images, **options).lengths.cpu()  # warm
    began = time.perf_counter()
    tokenizer.encode(images, **options).lengths.cpu()  # waits for the device
    return time.perf_counter() - began


def draw(result: dict[str, Any]) -> Figure:
    """R² over the length, and the model's lengths over those of the search."""
    curve, values = result["curve"], result["values"]
    figure = new_figure(9, 3.6)
    axes = plain_axes(figure, "length", "R²", 121)
    axes.plot(curve["length"], curve["r2"], label="one length for all")
    axes.plot(curve["length"], curve["r2_best"], "--", color=MUTED, label="best lengths, same mean")
    axes.plot(values["length_mean"], values["r2"], "o", color="black", label="the model's lengths")
    axes.legend(frameon=False)
    axes = plain_axes(figure, "length by search", "length chosen", 122)
    axes.scatter(result["lengths"]["searched"], result["lengths"]["chosen"], s=8, alpha=0.4)
    axes.set_title(f"r = {values['search_correlation']:.2f}", size=9)
    return figure
