"""Pictures of a run, from its `metrics.jsonl`, and of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strop.figures import MUTED, new_figure, plain_axes, save_figure

Line = dict[str, Any]


def plot_run(lines: Sequence[Line], phase_ends: Sequence[int], folder: Path) -> None:
    """`losses.png`, `lengths.png` and `r2.png` in `folder`; the phases are marked."""
    training = [line for line in lines if line["kind"] == "training"]
    validation = [line for line in lines if line["kind"] == "validation"]
    forced = sorted(
        int(name.partition("@")[2])
        for name in (validation[-1] if validation else {})
        if name.startswith("r2_centred@")
    )
    pictures = {
        "losses": (
            training,
            {name: name for name in ("latent", "commitment", "diversity", "length")},
            "loss term",
        ),
        "lengths": (
            training,
            {
                "active_length": "used in training",
                "predicted_length": "predicted",
                "target_length": "target",
            },
            "mean length (tokens)",
        ),
        "r2": (
            validation,
            {"r2_centred": "predicted length"}
            | {f"r2_centred@{length}": f"{length} tokens" for length in forced},
            "R² about channel means, held out",
        ),
    }
    for name, (source, series, label) in pictures.items():
        figure = new_figure()
        axes = plain_axes(figure, "step", label)
        for key, title in series.items():
            points = [(line["step"], line[key]) for line in source if key in line]
            if points:
                # A line through one point would not be visible.
                marker = "o" if len(points) == 1 else None
                axes.plot(*zip(*points, strict=True), label=title, marker=marker)
        for end in phase_ends:
            axes.axvline(end, color="0.85", zorder=0)
        if len(axes.lines) > len(phase_ends):  # else nothing was held out to be measured on
            axes.legend(frameon=False)
        save_figure(figure, folder / f"{name}.png")


def plot_frontier(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """R² against the mean bits of a program, a point a run; the frontier is drawn through."""
    figure = new_figure()
    axes = plain_axes(figure, "mean bits per image", "R² about channel means, held out")
    points = sorted((run["bits"], run["r2_centred"], run["name"]) for run in runs)
    best, frontier = float("-inf"), []
    for bits, r2, name in points:
        axes.annotate(name, (bits, r2), textcoords="offset points", xytext=(4, -8), fontsize=7)
        if r2 > best:
            best = r2
            frontier.append((bits, r2))
    axes.scatter([p[0] for p in points], [p[1] for p in points], zorder=2)
    if frontier:
        axes.plot(*zip(*frontier, strict=True), color=MUTED, zorder=1)
    save_figure(figure, path)
