"""Scenes read from codes by a small network that is trained on pairs of programs and scenes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from code_transformer import TrainingOptions
from reader_network import train_reader
from scene_figure import draw_scenes
from scene_pairs import training_and_test
from scene_scores import (
    METRICS,
    NAIVE,
    Scores,
    naive_scene,
    scene_tables,
    score,
)
from strop.analysis.findings import Findings
from strop.analysis.frame import Analysis
from strop.analysis.subject import Subject
from strop.cli.study import run_script
from strop.figures import MUTED, PALETTE, new_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Options(TrainingOptions):
    """Options of the reader analysis.

    curve  readers in the learning curve, each trained on a quarter of the pairs of the next
    """

    curve: int = field(default=4, metadata={"min": 1})


def run(subject: Subject, options: Options) -> Findings:
    """Train readers on more and more pairs, and test them on the same unseen scenes."""
    train, test = training_and_test(subject, options.pairs, options.test_share)
    sizes = curve_sizes(len(train), options.curve)
    naive = naive_scene(train.scenes, options.seed)
    scores = {NAIVE: score([naive] * len(test), test.scenes)}
    for size in sizes:
        reader = train_reader(
            train[:size],
            options.network,
            epochs=options.epochs,
            seed=options.seed,
            device=subject.tokenizer.device,
            progress=partial(subject.progress, f"training on {size} pairs"),
        )
        read = reader.read(test.program, seed=options.seed)
        scores[f"reader, {size} pairs"] = score(read, test.scenes)
    return Findings(
        numbers={
            "pairs": len(train),
            "test_scenes": len(test),
            "codebook_size": train.program.codebook_size,
            "scores": {name: each.numbers() for name, each in scores.items()},
        },
        tables=scene_tables(scores, train.program.codebook_size),
        figures={
            "curve": draw_curve(sizes, scores),
            "scenes": draw_scenes(subject.records.images[-len(test) :], test.scenes, read),
        },
        notes=(
            f"The readers are trained on {', '.join(map(str, sizes))} pairs of other scenes and "
            "know codes by their numbers alone. The metrics are those of the llm study.",
        ),
    )


def curve_sizes(most: int, points: int) -> list[int]:
    """`most`, a quarter of it and so on, ascending; sizes under 32 are left out."""
    return sorted({size for k in range(points) if (size := most // 4**k) >= 32} | {most})


def draw_curve(sizes: list[int], scores: dict[str, Scores]) -> Figure:
    """Each metric by the number of pairs, with its interval and the naive baseline."""
    shown = ("count_error", "attribute_accuracy", "placed_accuracy", "position_mae")
    figure = new_figure(10.0, 2.8)
    for column, name in enumerate(shown):
        title = METRICS[name].replace(", ", ",\n")
        axes = plain_axes(figure, "pairs", title, 141 + column)
        points = [scores[f"reader, {size} pairs"].intervals()[name] for size in sizes]
        value, low, high = zip(*points, strict=True)
        axes.fill_between(sizes, low, high, alpha=0.2, color=PALETTE[0], lw=0)
        axes.plot(sizes, value, "o-", color=PALETTE[0], label="reader")
        naive = scores[NAIVE].intervals()[name].value
        axes.axhline(naive, color=MUTED, ls="--", label=NAIVE)
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], size=8)
        axes.minorticks_off()
        if column == 0:
            axes.legend(frameon=False, fontsize=8)
    return figure


ANALYSIS = Analysis(
    name="reader", run=run, options=Options, needs=("scene",), roles=("codes", "lengths")
)


if __name__ == "__main__":
    run_script(ANALYSIS)
