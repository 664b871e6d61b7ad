"""The study of lengths: do programs grow with how much there is in the image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from strop.data.record import VOID
from strop.figures import MUTED, PALETTE, new_figure, plain_axes
from strop.model.tokenizer import Tokenizer
from strop.statistics import bootstrap, pearson, permutation_p, spearman
from strop.structure.study import Encoded, Findings, Job, Study, Table, teacher_fields

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
OBJECTS, CLASSES = "objects", "classes"
COVERED, OUTLINES, VARIANCE = "covered by objects", "outlines", "variance of the teacher's field"
COUNTS = (OBJECTS, CLASSES)
_COLUMNS = 3  # of the figure
_FEW = 5  # images below which a bin is drawn as points


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the study of complexity lets a user choose.

    draws  resamples for the intervals, and arrangements for the p-values
    seed   of both
    """

    draws: int = 1000
    seed: int = 0


def run(tokenizer: Tokenizer, encoded: Encoded, options: Options, job: Job) -> Findings:
    """Length against every measure of complexity the data has, and the claim about rare counts."""
    lengths = encoded.program.lengths.double().numpy()
    measures = complexity(tokenizer, encoded, job)
    draws, seed = options.draws, options.seed
    correlations: dict[str, dict[str, Any]] = {
        what: {
            "pearson": bootstrap(pearson, measure, lengths, draws=draws, seed=seed),
            "spearman": bootstrap(spearman, measure, lengths, draws=draws, seed=seed),
            "p": permutation_p(spearman, measure, lengths, draws=draws, seed=seed),
        }
        for what, measure in measures.items()
    }
    counted = {what: measure for what, measure in measures.items() if what in COUNTS}
    bins = {what: by_count(measure, lengths) for what, measure in counted.items()}
    rare = {what: rarity_claim(measure, lengths, options) for what, measure in counted.items()}
    tables = [
        Table(
            "Length against complexity",
            ("", "Pearson", "low", "high", "Spearman", "low", "high", "p"),
            [
                [what, *found["pearson"], *found["spearman"], found["p"]]
                for what, found in correlations.items()
            ],
        )
    ]
    if rare:
        tables.append(
            Table(
                "Do rare counts get longer programs?",
                ("", "Spearman of length and rarity", "p", "with the count held fixed", "p"),
                [[what, *found.values()] for what, found in rare.items()],
            )
        )
    return Findings(
        numbers={
            "length": {"mean": float(lengths.mean()), "sd": float(lengths.std())},
            "correlations": correlations,
            "bins": bins,
            "rarity": rare,
        },
        tables=tables,
        figures={"lengths": draw(measures, lengths)},
        notes=(
            "Intervals resample images (95 %); p shuffles lengths against images, one-sided. What "
            "is covered is the share of the pixels that show an object, outlines are the share of "
            "neighbouring pixels that show different things. The "
            "rarity of a count is minus the logarithm of the share of images that have it; "
            "holding the count fixed takes the straight line in the count out of both. The "
            "paper has a Pearson correlation of about 0.74 with objects on CLEVR (128 px, 32 "
            "codes), weaker ones with classes on COCO, and says that rare class counts there get "
            "longer programs.",
        ),
    )


def complexity(tokenizer: Tokenizer, encoded: Encoded, job: Job) -> dict[str, Array]:
    """Measures of how much there is in each image, `(B,)` each."""
    records = encoded.records
    found: dict[str, Array] = {}
    grounded = encoded.classes[:1] == ("background",)  # if not, all of a semantic mask is covered
    if records.scenes is not None:
        found[OBJECTS] = np.array([len(scene["objects"]) for scene in records.scenes], float)
    elif records.instance is not None:
        found[OBJECTS] = np.array([_distinct(mask, {0, VOID}) for mask in records.instance], float)
    if records.semantic is not None:
        ground = {0, VOID} if grounded else {VOID}
        found[CLASSES] = np.array([_distinct(mask, ground) for mask in records.semantic], float)
    elif records.labels is not None:
        found[CLASSES] = records.labels.sum(dim=1).double().numpy()
    masks = records.semantic if records.instance is None else records.instance
    if masks is not None:
        if grounded or records.instance is not None:
            found[COVERED] = covered(masks).numpy()
        found[OUTLINES] = outlines(masks).numpy()
    field = teacher_fields(tokenizer, encoded, job.watch)
    found[VARIANCE] = field.double().var(dim=1).mean(dim=1).numpy()
    return found


def covered(masks: Tensor) -> Tensor:
    """(B,) float64: the share of the pixels of masks (B, H, W) that show an object."""
    return ((masks != 0) & (masks != VOID)).double().mean((1, 2))


def outlines(masks: Tensor) -> Tensor:
    """(B,) float64: the share of neighbouring pixels of masks (B, H, W) that show different things.

    What has no label is a thing of its own, so that borders which are left unlabelled count.
    """
    across, down = ((masks.diff(dim=axis) != 0).double().mean((1, 2)) for axis in (2, 1))
    return (across + down) / 2


def by_count(counts: Array, lengths: Array) -> list[dict[str, Any]]:
    """Lengths of the images with each count."""
    return [
        {
            "count": int(count),
            "n": int((counts == count).sum()),
            "mean": float(lengths[counts == count].mean()),
            "quartiles": np.quantile(lengths[counts == count], [0.25, 0.5, 0.75]).tolist(),
        }
        for count in np.unique(counts)
    ]


def rarity(counts: Array) -> Array:
    """Minus the logarithm of the share of images that have the same count: `(B,)`."""
    _, inverse, number = np.unique(counts, return_inverse=True, return_counts=True)
    return -np.log(number[inverse] / len(counts))


def rarity_claim(counts: Array, lengths: Array, options: Options) -> Mapping[str, float]:
    """Whether images with a rare count have longer programs, alone and at a fixed count."""
    rare = rarity(counts)
    apart = _without(lengths, counts), _without(rare, counts)
    draws, seed = options.draws, options.seed
    return {
        "spearman": spearman(lengths, rare),
        "p": permutation_p(spearman, lengths, rare, draws=draws, seed=seed),
        "partial": spearman(*apart),
        "partial_p": permutation_p(spearman, *apart, draws=draws, seed=seed),
    }


def draw(measures: Mapping[str, Array], lengths: Array) -> Figure:
    """Violins of length by count, with n above each, and a scatter for what is not a count."""
    rows = math.ceil(len(measures) / _COLUMNS)
    columns = math.ceil(len(measures) / rows)
    figure = new_figure(4.4 * columns, 3.4 * rows)
    cells = figure.add_gridspec(rows, columns)
    for number, (what, measure) in enumerate(measures.items()):
        axes = plain_axes(figure, what, "program length", cells[divmod(number, columns)])
        (_violins if what in COUNTS else _scatter)(axes, measure, lengths)
        axes.set_title(f"r = {pearson(measure, lengths):.2f}", size=9, loc="left")
    return figure


def _violins(axes: Axes, counts: Array, lengths: Array) -> None:
    top = lengths.max()
    every = np.unique(counts)
    for count in every:
        here = lengths[counts == count]
        if len(here) >= _FEW and np.ptp(here) > 0:
            parts = axes.violinplot([here], [count], widths=0.8, showextrema=False)
            for body in parts["bodies"]:  # type: ignore[attr-defined]
                body.set(facecolor=PALETTE[0], alpha=0.35)
        else:
            axes.plot(np.full(len(here), count), here, ".", color=PALETTE[0], ms=4, alpha=0.6)
        axes.plot(count, np.median(here), "o", color=PALETTE[1], ms=4)
        axes.text(count, top * 1.03, f"{len(here)}", ha="center", va="bottom", size=7, color="0.4")
    axes.text(every.min() - 0.7, top * 1.03, "n", ha="center", va="bottom", size=7, color="0.4")
    axes.set(ylim=(0, top * 1.12), xlim=(every.min() - 1, every.max() + 0.7))
    axes.set_xticks(every)


def _scatter(axes: Axes, measure: Array, lengths: Array) -> None:
    axes.plot(measure, lengths, ".", color=PALETTE[0], ms=4, alpha=0.4)
    if np.ptp(measure) > 0:
        slope, start = np.polyfit(measure, lengths, 1)
        ends = np.array([measure.min(), measure.max()])
        axes.plot(ends, start + slope * ends, color=MUTED, lw=1.5)
    axes.set_ylim(0, lengths.max() * 1.12)
    axes.locator_params(axis="x", nbins=5)  # small shares have long numbers


def _distinct(mask: Tensor, without: set[int]) -> int:
    return len(set(mask.unique().tolist()) - without)


def _without(values: Array, counts: Array) -> Array:
    """What is left of `values` when the straight line in `counts` is taken out."""
    across = counts - counts.mean()
    size = across @ across
    slope = (across @ values) / size if size > 0 else 0.0
    # Rounding would give ties in the ranks an order.
    return np.round(values - values.mean() - slope * across, 9)


STUDY = Study(run=run, options=Options)
