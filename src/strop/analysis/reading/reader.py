"""Can the scene be read from the codes at all? A reader learns it from pairs and is tested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from strop.errors import DataError
from strop.figures import MUTED, PALETTE, new_figure, plain_axes
from strop.model.tokenizer import Tokenizer
from strop.random import seeded
from strop.structure.fitting import NetworkConfig, fit
from strop.structure.pairs import Pairs, training_and_test
from strop.structure.reader_model import Reader, tensored
from strop.structure.scene_figures import draw_scenes
from strop.structure.scene_tables import numbers_of, paper_table, scene_table
from strop.structure.scoring import METRICS, Scores, naive_scene, score
from strop.structure.study import Encoded, Findings, Job, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the reader learns from, and for how long.

    pairs       spec of the scenes to learn from, such as scenes:?n=20000&seed=5; without one, the
                data is split
    test_share  of the data that is then tested on
    epochs      how often each pair is seen
    curve       readers trained for the learning curve, each on a quarter of the one before
    width, depth  size of the reader
    seed        of everything random
    """

    pairs: str = ""
    test_share: float = 0.2
    epochs: int = 40
    curve: int = 4
    width: int = 128
    depth: int = 3
    seed: int = 0

    @property
    def reader(self) -> NetworkConfig:
        return NetworkConfig(width=self.width, depth=self.depth)


def run(tokenizer: Tokenizer, encoded: Encoded, options: Options, job: Job) -> Findings:
    """Train readers on more and more pairs, and let each read the same scenes it never saw."""
    train, test = training_and_test(tokenizer, encoded, options.pairs, options.test_share, job)
    sizes = curve_sizes(len(train), options.curve)
    scores: dict[str, Scores] = {
        "naive": score([naive_scene(train.scenes, options.seed)] * len(test), test.scenes)
    }
    for size in sizes:
        reader = train_reader(
            train[:size],
            options.reader,
            epochs=options.epochs,
            seed=options.seed,
            device=tokenizer.device,
            watch=partial(job.watch, f"learning from {size} pairs"),
        )
        read = reader.read(test.program, seed=options.seed)
        scores[f"reader, {size} pairs"] = score(read, test.scenes)
    return Findings(
        numbers={
            "pairs": len(train),
            "test_scenes": len(test),
            "codebook_size": train.program.codebook_size,
            "scores": {name: numbers_of(each) for name, each in scores.items()},
        },
        tables=(scene_table(scores, train.program.codebook_size), paper_table()),
        figures={
            "curve": draw_curve(sizes, scores),
            "scenes": draw_scenes(encoded.records.images[-len(test) :], test.scenes, read),
        },
        notes=(
            f"The readers learnt from {', '.join(map(str, sizes))} pairs of other scenes and "
            "know codes only by their numbers. Metrics are those of the llm study.",
        ),
    )


def train_reader(
    pairs: Pairs,
    config: NetworkConfig,
    *,
    epochs: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Reader:
    """A reader of the programs of one model, trained on pairs."""
    if len(pairs.scenes) != len(pairs):
        raise DataError(
            "These programs come without scenes.", "Use scenes:?n=... or clevr:PATH, which have."
        )
    device = torch.device(device)
    program = pairs.program.to(device)
    scenes = tensored(pairs.scenes).to(device)
    with seeded(seed):
        reader = Reader(config, program.codebook_size, program.capacity).to(device)
        fit(
            reader,
            lambda rows: reader.loss(program.codes[rows], program.active[rows], scenes[rows]),
            len(pairs),
            epochs=epochs,
            seed=seed,
            watch=watch,
        )
    return reader


def curve_sizes(most: int, points: int) -> list[int]:
    """`most` and its quarters, ascending; none under 32 pairs, which teach nothing."""
    return sorted({size for k in range(points) if (size := most // 4**k) >= 32} | {most})


def draw_curve(sizes: list[int], scores: dict[str, Scores]) -> Figure:
    """Each metric by the number of pairs, with its interval, over what a guess scores."""
    shown = ("count_error", "attribute_accuracy", "placed_accuracy", "position_mae")
    figure = new_figure(10.0, 2.8)
    for place, name in enumerate(shown):
        title = METRICS[name].title.replace(", ", ",\n")
        axes = plain_axes(figure, "pairs", title, 141 + place)
        points = [scores[f"reader, {size} pairs"].intervals()[name] for size in sizes]
        value, low, high = zip(*points, strict=True)
        axes.fill_between(sizes, low, high, alpha=0.2, color=PALETTE[0], lw=0)
        axes.plot(sizes, value, "o-", color=PALETTE[0], label="reader")
        guess = scores["naive"].intervals()[name].value
        axes.axhline(guess, color=MUTED, ls="--", label="naive")
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], size=8)
        axes.minorticks_off()
        if place == 0:
            axes.legend(frameon=False, fontsize=8)
    return figure


STUDY = Study(run=run, options=Options, needs=("scene",))
