"""Write the report of the CLEVR study from the rows that `study.py` measured.

    python research/clevr/report.py runs/clevr/results/* --out runs/clevr/report
    python research/clevr/report.py runs/clevr/results/* --out /tmp/report \
        --summary benchmarks/results/clevr.json --as full

`--out` gets `report.md` with its figures. `--summary` also stores the tables in a JSON file, which
`docs/make.py` reads; `--as` names the study in it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tables
from rows import HELD_OUT, Row, beside_trials, choosing, most_used_teacher, rated, read_rows
from strop.analysis.page import Block, Heading, Picture, Points, Table, Text, to_markdown
from strop.figures import PALETTE, new_figure, plain_axes, save_figure
from strop.files import PathLike, read_json, write_json, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GREYS, COLOURS = (
    "#000000",
    ("#bbbbbb", "#666666"),
    (*PALETTE[:6], "#882255", "#999933", "#661100"),
)
"""Colours of the row that trials change, of the paper's other rows, and of trials."""

MARKERS = {"-": "o", "--": "s", "-.": "D", ":": "^"}
"""The marker of each line style, so that lines of one colour differ."""

CAPTIONS = {
    "lengths": "Mean length by the number of objects, on held-out scenes",
    "rate": "R² at forced lengths, and at the lengths that each row chooses",
}

TRIALS_NOTE = (
    "*K above own* is R² at all K tokens minus R² at the chosen lengths. *K since the handoff* is "
    "the change of R² at all K tokens since the handoff began, on the validation images of the "
    "run. *r here* is the correlation of lengths and number of objects on these images: for the "
    "chosen lengths, and for the shortest length of each image that comes close to its best. "
    "Regret is relative to the best lengths of equal mean, or to those of a search. The gain of "
    "choosing, with a 95 % interval over images, is relative to one length of equal mean for all "
    "images. A trial is better than the paper's curriculum if it beats the paper's row with the "
    "same preset, teacher, seed and steps in R² at its own lengths and at all K tokens, if R² at "
    "all K tokens has not fallen since the handoff, and if Pearson r is at least "
    f"{tables.LEAST_CORRELATION}."
)

SUMMARY = {
    "settings": tables.settings,
    "paper": tables.beside_the_paper,
    "cost": tables.cost,
    "lengths": tables.lengths,
    "changes": tables.changes,
    "trials": tables.trials,
    "seeds": tables.over_seeds,
}
"""The tables in the summary, by name."""

Style = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", help="result folders of rows")
    parser.add_argument("--out", required=True, help="folder for report.md and its figures")
    parser.add_argument("--summary", help="JSON file for the tables")
    parser.add_argument("--as", dest="study", default="full", help="name of the study in there")
    options = parser.parse_args(arguments)
    rows = read_rows(options.runs)
    if not rows:
        parser.error("none of the folders holds a row.json")
    print(write_report(rows, options.out))
    if options.summary:
        write_summary(rows, Path(options.summary), options.study)


def write_report(rows: Sequence[Row], out: PathLike) -> str:
    """Write `report.md` and its figures into the folder `out`; return the Markdown."""
    folder = Path(out)
    page = to_markdown(list(report(rows, folder)), folder)
    write_text(folder / "report.md", page)
    return page


def write_summary(rows: Sequence[Row], path: Path, study: str) -> None:
    """Replace the tables of one study in the summary."""
    kept = read_json(path, "benchmark", 1) if path.is_file() else {}
    found = {name: [_plain(block) for block in make(rows)] for name, make in SUMMARY.items()}
    write_json(path, "benchmark", 1, {**kept, study: found})


def _plain(block: Block) -> dict[str, Any]:
    match block:
        case Text(text):
            return {"text": text}
        case Points(items):
            return {"points": list(items)}
        case Table(_, header, body):
            return {"header": list(header), "rows": [list(row) for row in body]}
    raise TypeError(f"The summary holds no {type(block).__name__}.")


def report(rows: Sequence[Row], folder: Path) -> Iterator[Block]:
    """All tables and figures of the rows; figures are saved into the folder."""
    pictures = {}
    for name, figure in draw_figures(rows).items():
        path = folder / f"{name}.png"
        save_figure(figure, path)
        pictures[name] = Picture(path, CAPTIONS[name])
    yield Heading("The CLEVR study", 1)
    yield from tables.settings(rows)
    yield from tables.beside_the_paper(rows)
    yield from tables.cost(rows)
    if "lengths" in pictures:
        yield Heading("Length against complexity")
        yield from tables.lengths(rows)
        yield pictures["lengths"]
    if "rate" in pictures:
        yield Heading("Past the paper")
        yield Text("What each trial changes in the paper's row:")
        yield from tables.changes(rows)
        yield from tables.trials(rows)
        yield from tables.over_seeds(rows)
        yield Text(TRIALS_NOTE)
        yield pictures["rate"]


def draw_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """The figures that the rows have data for, on held-out scenes."""
    styles = _styles(rows)
    chosen, measured = choosing(rows, HELD_OUT), rated(rows, HELD_OUT)
    found = {}
    if chosen:
        found["lengths"] = _draw_lengths(chosen, styles)
    if measured:
        found["rate"] = _draw_rates(measured, styles)
    return found


def _draw_lengths(rows: list[Row], styles: dict[str, Style]) -> Figure:
    """Mean length by object count: the paper's rows on the left, trials on the right."""
    papers = [row for row in rows if not row.is_trial]
    shown = {"the paper's curriculum": papers, "trials": beside_trials(rows)}
    shown = {title: some for title, some in shown.items() if some}
    figure = new_figure(5.25 * len(shown), 4.2)
    panels = []
    for number, (title, some) in enumerate(shown.items(), 1):
        position = 100 + 10 * len(shown) + number
        axes = plain_axes(figure, "objects in the scene", "mean length", position)
        for row in some:
            means = row.complexity(HELD_OUT)["mean_length"]
            axes.plot([*map(int, means)], [*means.values()], ms=4, **styles[row.name])
        axes.set_title(title, size=10)
        _legend(axes)
        panels.append(axes)
    for axes in panels[1:]:
        axes.sharey(panels[0])
    return figure


def _draw_rates(rows: list[Row], styles: dict[str, Style]) -> Figure:
    """R² by forced length, in two panels; a hollow marker shows the chosen length."""
    figure = new_figure(10.5, 4.4)
    rates = [row.parts[HELD_OUT, "rate"] for row in rows]
    longest = rates[0]["curve"]["length"][-1]
    middle = max(longest // 4, 1)
    for position, first, last in ((121, 1, middle), (122, middle, longest)):
        axes = plain_axes(figure, "forced length", "R²", position)
        for row, rate in zip(rows, rates, strict=True):
            style, chosen = styles[row.name], rate["values"]
            x, y = (rate["curve"][name][first - 1 : last] for name in ("length", "r2"))
            axes.plot(x, y, markevery=[], **style)
            if first <= chosen["length_mean"] <= last:
                hollow = {"ms": 7, "mfc": "white", "mec": style["color"], "mew": 1.8, "zorder": 5}
                axes.plot(chosen["length_mean"], chosen["r2"], style["marker"], **hollow)
        axes.set_title(f"{first} to {last} tokens", size=10)
    _legend(axes)
    return figure


def _styles(rows: Sequence[Row]) -> dict[str, Style]:
    """The line style of each row, by its name: one colour for each row of the study.

    The row that trials change is black. Other seeds are dashed, other teachers dotted.
    """
    usual = most_used_teacher(rows)
    changed = {row.facts["preset"] for row in rows if row.is_trial}
    greys, colours = cycle(GREYS), cycle(product(("-", "-."), COLOURS))
    looks: dict[str, tuple[str, str]] = {}
    styles = {}
    for row in rows:
        study_row, preset = row.facts["row"], row.facts["preset"]
        if study_row not in looks and row.is_trial:
            looks[study_row] = next(colours)
        elif study_row not in looks:
            looks[study_row] = "-", BLACK if preset in changed else next(greys)
        line, colour = looks[study_row]
        line = ":" if row.facts["teacher"] != usual else "--" if row.facts["seed"] else line
        width = 2.2 if (line, colour) == ("-", BLACK) else 1.5
        drawn = {"color": colour, "ls": line, "lw": width, "marker": MARKERS[line]}
        styles[row.name] = {**drawn, "label": row.name}
    return styles


def _legend(axes: Axes) -> None:
    """A legend beside the axes, in the order in which the lines end."""
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    lines.sort(key=lambda line: -np.asarray(line.get_ydata())[-1])
    place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    axes.legend(handles=lines, frameon=False, fontsize=8, handlelength=3.5, **place)


if __name__ == "__main__":
    main()
