"""Figures of probes: predictions beside image and truth, and scores over the length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from strop.analysis.metric_info import METRICS
from strop.analysis.panels import show_ids
from strop.analysis.regions import NOBODY
from strop.data.record import VOID
from strop.figures import HEAT, Figure, new_figure, plain_axes, show_image

COLUMNS = ("teacher", "latent", "program")
MOST_ROWS = 5


def draw_predictions(images: Tensor, truth: Tensor, predicted: dict[str, Tensor]) -> Figure:
    """Images (n, 3, H, H) beside maps (n, H, H) of class ids, or of depths if they are floats."""
    columns = {"truth": truth, **predicted}
    rows = min(len(images), MOST_ROWS)
    figure = new_figure(1.6 * (1 + len(columns)), 1.6 * rows + 0.3)
    grid = figure.subplots(rows, 1 + len(columns), squeeze=False)
    for row, axes in enumerate(grid):
        show_image(axes[0], images[row], "image" if row == 0 else "")
        deepest = float(truth[row].max())
        for place, (name, maps) in zip(axes[1:], columns.items(), strict=True):
            if maps.is_floating_point():
                place.imshow(maps[row].cpu().numpy(), cmap=HEAT, vmin=0, vmax=deepest)
                place.set_axis_off()
                place.set_title(name if row == 0 else "", size=9)
            else:
                ids = torch.where(maps[row] == VOID, NOBODY, maps[row].long())
                show_ids(place, ids, name if row == 0 else "")
    return figure


def draw_lengths(rows: list[dict[str, Any]], metric: str) -> Figure:
    """A metric of `latent` and `program` over forced lengths, with its intervals."""
    figure = new_figure(5, 3.5)
    axes = plain_axes(figure, "length", METRICS[metric].heading)
    lengths = [row["length"] for row in rows]
    for name in (name for name in rows[0] if name != "length"):
        axes.plot(lengths, [row[name]["values"][metric] for row in rows], marker="o", label=name)
        low, high = zip(*(row[name]["intervals"][metric] for row in rows), strict=True)
        axes.fill_between(lengths, low, high, alpha=0.15)
    axes.legend(frameon=False)
    return figure
