"""The study as part of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from strop.analysis.page import Block, Heading, Picture, Text
from strop.evaluation.clevr import tables
from strop.evaluation.clevr.figures import CAPTIONS, draw_figures
from strop.evaluation.clevr.rows import Row
from strop.figures import save_figure

TRIALS_NOTE = (
    "K above own is what all K tokens have in R² above the chosen lengths; K since the handoff is "
    "what they have gained since it began, on the images of the run's own validation. The r here "
    "is that of lengths and number of objects on these images, of the chosen lengths and of each "
    "image's shortest length near its best. Regret is to the best lengths of equal mean, or to "
    "those of a search; the gain of choosing, with a 95 % interval over images, is over one length "
    "of equal mean. A trial is better than the paper's if it beats the paper's row with its "
    "preset, teacher, seed and steps in R² at its own lengths and at all K tokens, which must not "
    f"have fallen since the handoff, and Pearson r is at least {tables.LEAST_CORRELATION}."
)


def study_blocks(rows: Sequence[Row], folder: Path) -> Iterator[Block]:
    """All tables and figures of the rows; figures are drawn into the folder."""
    pictures = {}
    for name, figure in draw_figures(rows).items():
        path = folder / f"clevr-{name}.png"
        save_figure(figure, path)
        pictures[name] = Picture(path, CAPTIONS[name])
    yield Heading("The CLEVR study")
    yield from tables.settings(rows)
    yield from tables.beside_the_paper(rows)
    yield from tables.cost(rows)
    if "lengths" in pictures:
        yield Heading("Length against complexity", 3)
        yield from tables.lengths(rows)
        yield pictures["lengths"]
    if "rate" in pictures:
        yield Heading("Past the paper", 3)
        yield Text("What each trial changes in the paper's row:")
        yield from tables.changes(rows)
        yield from tables.trials(rows)
        yield from tables.over_seeds(rows)
        yield Text(TRIALS_NOTE)
        yield pictures["rate"]
