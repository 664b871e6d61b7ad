"""Draw the figures of README and docs: `python docs/figures.py`.

The photograph is `china.jpg` of scikit-learn, by Daniel Büchele, CC BY 2.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor

import strop
from strop.analysis.panels import show_program
from strop.data import ScenesDataset
from strop.figures import PALETTE, new_figure, save_figure, show_heat, show_image
from strop.images import read_square

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
    box(axes, 1.9, 0.5, 1.4, 0.9, "decoder", INSPECT, "for inspection")
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


def programs(name: str, model: str, images: list[Any], tokens: int = 3) -> None:
    """For each image: the image, its program, and the erasure maps of its strongest tokens."""
    tok = strop.load(model, device="cpu")
    program = tok.encode(images)
    maps = strop.erasure(tok, program)
    height = 1.75
    figure = new_figure(2.45 * (tokens + 2.2), height * len(images))
    grid = figure.add_gridspec(len(images), tokens + 2, width_ratios=[1, 1.25, *[1] * tokens])
    for row, image in enumerate(images):
        square = read_square(image, tok.config.image_size)
        chosen = distinct(maps[row], tokens)
        colours = {k: PALETTE[i] for i, k in enumerate(chosen)}
        axes = [figure.add_subplot(grid[row, column]) for column in range(tokens + 2)]
        show_image(axes[0], square)
        show_program(axes[1], program[row], colours)
        for k, axis in zip(chosen, axes[2:], strict=True):
            show_heat(axis, square, maps[row, k])
            axis.set_title(f"token {k}", size=9, color=colours[k], weight="bold")
        if isinstance(image, Image.Image):  # shown in its own aspect ratio
            for axis in (axes[0], *axes[2:]):
                axis.set_aspect(image.height / image.width)
    save_figure(figure, IMAGES / f"{name}.png")


def distinct(maps: Tensor, count: int) -> list[int]:
    """The tokens with the largest maps `(K, h, w)` whose peaks lie apart."""
    peaks = maps.flatten(1).nan_to_num().argmax(dim=1)
    chosen: list[int] = []
    for k in maps.nan_to_num().mean(dim=(1, 2)).argsort(descending=True).tolist():
        here = divmod(int(peaks[k]), maps.shape[-1])
        there = [divmod(int(peaks[j]), maps.shape[-1]) for j in chosen]
        if all(abs(here[0] - y) + abs(here[1] - x) > 2 for y, x in there):
            chosen.append(k)
    return sorted(chosen[:count])


def save(figure: plt.Figure, name: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    # Without dates and with a fixed salt, so that drawing again changes nothing.
    plt.rcParams["svg.hashsalt"] = name
    figure.savefig(IMAGES / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    architecture()
    programs("program", "photos", [Image.fromarray(load_sample_image("china.jpg"))])
    programs("erasure", "scenes", list(ScenesDataset(3, seed=7, size=128).images([0, 2])), 3)
