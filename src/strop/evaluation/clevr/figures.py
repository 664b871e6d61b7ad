"""The two figures of the study."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.evaluation.clevr.rows import (
    HELD_OUT,
    Row,
    beside_trials,
    choosing,
    most_used_teacher,
    tried,
)
from strop.figures import PALETTE, new_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GREYS, COLOURS = (
    "#000000",
    ("#bbbbbb", "#666666"),
    (*PALETTE[:6], "#882255", "#999933", "#661100"),
)
"""Of the row that trials change, of the paper's other rows, of trials."""

MARKERS = {"-": "o", "--": "s", "-.": "D", ":": "^"}
"""What stands on a line of each style, so that lines of one colour can be told apart."""

CAPTIONS = {
    "lengths": "Mean length by the number of objects, on held-out scenes",
    "rate": "R² at forced lengths, and at the lengths that each row chooses",
}

Line = dict[str, Any]


def draw_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """By name, those that there are rows for; of held-out scenes."""
    lines = _lines(rows)
    chosen, changed = choosing(rows, HELD_OUT), tried(rows, HELD_OUT)
    found = {}
    if chosen:
        found["lengths"] = _lengths(chosen, lines)
    if changed:
        found["rate"] = _rates(changed, lines)
    return found


def _lengths(rows: list[Row], lines: dict[str, Line]) -> Figure:
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
            means = row.follows(HELD_OUT)["mean_length"]
            axes.plot([*map(int, means)], [*means.values()], ms=4, **lines[row.name])
        axes.set_title(title, size=10)
        _legend(axes)
        panels.append(axes)
    for axes in panels[1:]:
        axes.sharey(panels[0])
    return figure


def _rates(rows: list[Row], lines: dict[str, Line]) -> Figure:
    """R² by forced length, to K / 4 and from there on; a hollow mark is what a row chose."""
    figure = new_figure(10.5, 4.4)
    rates = [row.parts[HELD_OUT, "rate"] for row in rows]
    longest = rates[0]["curve"]["length"][-1]
    middle = max(longest // 4, 1)
    for position, first, last in ((121, 1, middle), (122, middle, longest)):
        axes = plain_axes(figure, "forced length", "R²", position)
        for row, rate in zip(rows, rates, strict=True):
            line, chosen = lines[row.name], rate["values"]
            x, y = (rate["curve"][name][first - 1 : last] for name in ("length", "r2"))
            axes.plot(x, y, markevery=[], **line)
            if first <= chosen["length_mean"] <= last:
                hollow = {"ms": 7, "mfc": "white", "mec": line["color"], "mew": 1.8, "zorder": 5}
                axes.plot(chosen["length_mean"], chosen["r2"], line["marker"], **hollow)
        axes.set_title(f"{first} to {last} tokens", size=10)
    _legend(axes)
    return figure


def _lines(rows: Sequence[Row]) -> dict[str, Line]:
    """How the line of each row looks, by its name: a colour for each row of the study.

    That which trials change is black. Another seed's line is dashed, another teacher's dotted.
    """
    usual = most_used_teacher(rows)
    changed = {row.facts["preset"] for row in rows if row.is_trial}
    greys, colours = cycle(GREYS), cycle(product(("-", "-."), COLOURS))
    looks: dict[str, tuple[str, str]] = {}
    lines = {}
    for row in rows:
        study_row, preset = row.facts["row"], row.facts["preset"]
        if study_row not in looks and row.is_trial:
            looks[study_row] = next(colours)
        elif study_row not in looks:
            looks[study_row] = "-", BLACK if preset in changed else next(greys)
        style, colour = looks[study_row]
        style = ":" if row.facts["teacher"] != usual else "--" if row.facts["seed"] else style
        width = 2.2 if (style, colour) == ("-", BLACK) else 1.5
        drawn = {"color": colour, "ls": style, "lw": width, "marker": MARKERS[style]}
        lines[row.name] = {**drawn, "label": row.name}
    return lines


def _legend(axes: Axes) -> None:
    """Beside the axes, in the order in which the lines end."""
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    lines.sort(key=lambda line: -np.asarray(line.get_ydata())[-1])
    place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    axes.legend(handles=lines, frameon=False, fontsize=8, handlelength=3.5, **place)
