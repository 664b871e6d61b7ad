"""Panels that several figures share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from strop.analysis.regions import NOBODY
from strop.figures import MUTED, PALETTE, Axes, Figure, new_figure, plain_axes
from strop.program import Program
from strop.statistics import Interval

_GOLDEN = 0.618034
_PER_LINE = 8  # codes on a line of a program

Panel = Callable[[Axes], None]
"""Draws one picture into axes."""


def picture_grid(
    rows: Sequence[Sequence[Panel]], widths: Sequence[float] | None = None, height: float = 2.1
) -> Figure:
    """Lines of pictures; `widths` of columns and `height` of a line are in 1.75 inches and inches.

    A line may be shorter than the first one.
    """
    widths = widths or [1.0] * len(rows[0]) if rows else [1.0]
    figure = new_figure(1.75 * sum(widths), max(height * len(rows), 1))
    cells = figure.add_gridspec(max(len(rows), 1), len(widths), width_ratios=widths)
    for line, panels in enumerate(rows):
        for column, panel in enumerate(panels):
            panel(figure.add_subplot(cells[line, column]))
    return figure


def lines(
    figure: Figure,
    x: str,
    y: str,
    at: Sequence[float],
    series: Mapping[str, Sequence[Interval | float]],
    position: Any = 111,
) -> Axes:
    """A line for each name over `at`, with a band where values are intervals."""
    axes = plain_axes(figure, x, y, position)
    for name, values in series.items():
        rows = [
            each if isinstance(each, Interval) else Interval(each, each, each) for each in values
        ]
        axes.plot(at, [row.value for row in rows], marker=".", label=name)
        axes.fill_between(
            at, [row.low for row in rows], [row.high for row in rows], alpha=0.2, lw=0
        )
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8)
    return axes


def show_program(axes: Axes, program: Program, colours: Mapping[int, str]) -> None:
    """A program as lines of codes; `colours` by position are drawn around their tokens."""
    codes = program.codes.tolist()
    lines = -(-len(codes) // _PER_LINE)
    size = 8.5 if program.codebook_size <= 1000 else 7
    for position, code in enumerate(codes):
        line, column = divmod(position, _PER_LINE)
        colour = colours.get(position)
        axes.text(
            column + 0.5,
            line + 0.5,
            str(code),
            ha="center",
            va="center",
            size=size,
            color=colour or "0.35",
            weight="bold" if colour else "normal",
            bbox={"boxstyle": "round,pad=0.2", "fc": "white", "ec": colour or "0.9", "lw": 1.2},
        )
    middle, room = lines / 2, max(lines, 5) / 2
    axes.set(xlim=(0, _PER_LINE), ylim=(middle + room, middle - room))
    axes.set_axis_off()
    axes.set_title(f"program, {len(codes)} codes", size=9)


def show_ids(axes: Axes, ids: Tensor, title: str = "", *, arbitrary: bool = False) -> None:
    """Regions `(h, w)` by id, each id in a fixed colour; `NOBODY` is grey.

    `arbitrary` ids, such as clusters, do not get the colours of classes.
    """
    from matplotlib import colormaps

    numbers = ids.cpu().numpy()
    colours = colormaps["copper"](numbers * _GOLDEN % 1) if arbitrary else id_colours(numbers)
    axes.imshow(colours, interpolation="nearest")
    axes.set_axis_off()
    axes.set_title(title, size=9)


def id_colours(ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """RGB `(..., 3)` of ids: the palette first, then distant steps of a colour map."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    palette = np.array([to_rgb(colour) for colour in ("#EEEEEE", *PALETTE)])
    later = colormaps["viridis"](ids * _GOLDEN % 1)[..., :3]
    known = palette[np.clip(ids, 0, len(palette) - 1)]
    colours = np.where((ids < len(palette))[..., None], known, later)
    return np.where((ids == NOBODY)[..., None], to_rgb(MUTED), colours)


def legend(figure: Figure, names: Sequence[str], ids: Sequence[int]) -> None:
    """A legend of the ids shown, below the panels."""
    from matplotlib.patches import Patch

    colours = id_colours(np.asarray(ids))
    handles = [
        Patch(fc=colour, ec="0.6", lw=0.5, label=names[number])
        for colour, number in zip(colours, ids, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=7.5, frameon=False)


def bars(
    figure: Figure,
    labels: Sequence[str],
    values: Sequence[Interval | float],
    x: str,
    position: object = 111,
    colours: Sequence[str] | None = None,
) -> Axes:
    """Horizontal bars from top to bottom, with their values, and intervals where given."""
    axes = plain_axes(figure, x, position=position)
    middle = [value.value if isinstance(value, Interval) else value for value in values]
    axes.barh(range(len(labels)), middle, color=colours or PALETTE[0], height=0.65)
    reach = np.nanmax(np.abs([*middle, 1e-9]))
    for row, value in enumerate(values):
        end = middle[row]
        if isinstance(value, Interval):
            axes.plot([value.low, value.high], [row, row], color="0.2", lw=1.2)
            end = np.nanmax([end, value.high])
        if np.isfinite(end):
            axes.text(max(end, 0) + reach * 0.02, row, f"{middle[row]:.3f}", va="center", size=8)
    axes.set_yticks(range(len(labels)), labels, size=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    return axes
