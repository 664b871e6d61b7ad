"""Figures of scenes from above: the truth and what was read, beside the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from scene_objects import Objects
from strop.figures import MUTED, new_figure, show_image
from strop.scenes import vocabulary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 6
MARKS = {"cube": "s", "sphere": "o", "cylinder": "^"}
INK = {"metal": "black", "rubber": "none"}
AREA = {"large": 150.0, "small": 50.0}
COLORS = dict(zip(vocabulary.COLORS, vocabulary.RGB, strict=True))
REACH = vocabulary.EXTENT * 2**0.5 + 0.4


def draw_scenes(images: Tensor, truth: Sequence[Objects], read: Sequence[Objects | None]) -> Figure:
    """A column for each of the first scenes: image `(B, 3, H, W)`, truth, and what was read."""
    count = min(SHOWN, len(truth))
    figure = new_figure(1.7 * count, 5.2)
    axes = figure.subplots(3, count, squeeze=False)
    for column in range(count):
        show_image(axes[0, column], images[column], f"{len(truth[column])} objects")
        _from_above(axes[1, column], truth[column])
        _from_above(axes[2, column], read[column] or ())
    axes[1, 0].set_ylabel("truth")
    axes[2, 0].set_ylabel("read")
    figure.supxlabel(
        "from above, camera below; squares: cubes, triangles: cylinders; outlined: metal", size=8
    )
    return figure


def _from_above(axes: Axes, scene: Objects) -> None:
    # The camera looks along -x and +y. After this rotation it looks up from below.
    for each in scene:
        axes.scatter(
            (each.x + each.y) / 2**0.5,
            (each.y - each.x) / 2**0.5,
            s=AREA[each.size],
            marker=MARKS[each.shape],
            color=tuple(part / 255 for part in COLORS[each.color]),
            edgecolors=INK[each.material],
            linewidths=1.6,
        )
    axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xticks=[], yticks=[], aspect="equal")
    for spine in axes.spines.values():
        spine.set_color(MUTED)
