"""Draws the figures of the docs that need no model: `python docs/figures.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

IMAGES = Path(__file__).parent / "images"
INK, MUTED = "#1f2933", "#7b8794"
FROZEN, LEARNED, DISCRETE, INSPECT = "#dbe7f3", "#fbe6cf", "#e3d9f2", "#e4ede0"


def box(
    axes: Axes, x: float, y: float, w: float, h: float, text: str, colour: str, note: str = ""
) -> None:
    """A stage: its name, and below it the shape or remark in small."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y), w, h, boxstyle="round,pad=0,rounding_size=0.09", fc=colour, ec=INK, lw=1
        )
    )
    middle = y + h / 2
    axes.text(x + w / 2, middle + (0.14 if note else 0), text, ha="center", va="center", size=11)
    if note:
        axes.text(x + w / 2, middle - 0.2, note, ha="center", va="center", size=8, color=MUTED)


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    text: str = "",
    dy: float = 0.2,
) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color=INK, lw=1.1)
    )
    if text:
        x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        axes.text(x, y + dy, text, ha="center", va="center", size=8, color=MUTED)


def architecture() -> None:
    """The paper's figure: image to program on the upper row, program to pixels on the lower."""
    figure, axes = plt.subplots(figsize=(11.5, 5.0))
    axes.set_xlim(0, 11.5)
    axes.set_ylim(0, 5.0)
    axes.axis("off")

    box(axes, 0.1, 3.5, 1.4, 0.9, "image", "white", "H x H")
    box(axes, 2.2, 3.5, 1.7, 0.9, "teacher", FROZEN, "frozen ViT")
    box(axes, 5.0, 3.5, 1.8, 0.9, "generator", LEARNED, "K causal queries")
    box(axes, 8.0, 3.5, 1.7, 0.9, "quantizer", LEARNED, "nearest unit code")
    box(axes, 5.0, 2.1, 1.8, 0.8, "length head", LEARNED, "mean-pooled MLP")
    arrow(axes, (1.5, 3.95), (2.2, 3.95))
    arrow(axes, (3.9, 3.95), (5.0, 3.95), "field\nS x d_enc", 0.3)
    arrow(axes, (6.8, 3.95), (8.0, 3.95), "raw tokens\nK x d", 0.3)
    arrow(axes, (4.45, 3.9), (5.0, 2.5))

    axes.text(8.85, 2.98, "program", ha="center", size=11)
    codes, active = ["17", "904", "3", "88", "512", "41"], 4
    for k, code in enumerate(codes):
        x = 7.05 + 0.6 * k
        on = k < active
        axes.add_patch(
            FancyBboxPatch(
                (x, 2.25),
                0.5,
                0.45,
                boxstyle="round,pad=0,rounding_size=0.12",
                fc=DISCRETE if on else "white",
                ec=INK if on else MUTED,
                ls="-" if on else ":",
            )
        )
        axes.text(
            x + 0.25, 2.475, code, ha="center", va="center", size=9, color=INK if on else MUTED
        )
    arrow(axes, (8.85, 3.5), (8.85, 3.2))
    arrow(axes, (6.8, 2.5), (7.0, 2.5))
    cut = 7.05 + 0.6 * active - 0.05
    axes.plot([cut, cut], [2.08, 2.86], color="#b3261e", lw=1.6)
    axes.text(cut, 1.93, "length", ha="center", size=8, color="#b3261e")

    box(axes, 8.0, 0.5, 1.7, 0.9, "interpreter", LEARNED, "S grid queries")
    box(axes, 4.4, 0.5, 1.9, 0.9, "field", "white", "S x d_enc, reconstructed")
    box(axes, 1.9, 0.5, 1.4, 0.9, "decoder", INSPECT, "to look at")
    box(axes, 0.1, 0.5, 1.2, 0.9, "preview", "white", "pixels")
    arrow(axes, (8.2, 2.2), (8.7, 1.4))
    axes.text(7.35, 1.75, "active codes only", ha="center", size=8, color=MUTED)
    arrow(axes, (8.0, 0.95), (6.3, 0.95))
    arrow(axes, (4.4, 0.95), (3.3, 0.95), "no gradient", 0.2)
    arrow(axes, (1.9, 0.95), (1.3, 0.95))
    axes.add_patch(
        FancyArrowPatch(
            (4.35, 3.85),
            (4.9, 1.45),
            arrowstyle="<|-|>",
            mutation_scale=10,
            color="#b3261e",
            lw=1,
            ls="--",
            connectionstyle="arc3,rad=0.35",
        )
    )
    axes.text(
        3.75, 2.55, "loss:\n1 - cos\n+ MSE", ha="center", va="center", size=8.5, color="#b3261e"
    )
    save(figure, "architecture")


def save(figure: plt.Figure, name: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    # Without dates and with a fixed salt, so that drawing again changes nothing.
    plt.rcParams["svg.hashsalt"] = name
    figure.savefig(IMAGES / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    architecture()
