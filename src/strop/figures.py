"""How every picture that strop draws looks: one palette, one frame, one way to save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from strop.files import PathLike, atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:  # for annotations alone: `new_figure` says why matplotlib is not imported here
    Axes = Figure = Any

# Okabe and Ito's colours, which people who see colours differently can tell apart.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MUTED = "#999999"
HEAT = "magma"
DIVERGING = "PuOr"


def new_figure(width: float = 7.0, height: float = 4.0) -> Figure:
    """An empty figure of `width` by `height` inches.

    matplotlib is imported here because it is a fifth of the time of `import strop`; and pyplot is
    not used, because a notebook's own figures are none of ours.
    """
    from matplotlib.figure import Figure as Figure

    return Figure(figsize=(width, height), layout="constrained")


def plain_axes(figure: Figure, x: str = "", y: str = "", position: Any = 111) -> Axes:
    """Axes with labels, without the frame's top and right, in the palette's colours.

    position  as `add_subplot` of matplotlib takes it: 121, (1, 2, 1) or a cell of a grid
    """
    from cycler import cycler

    place = position if isinstance(position, tuple) else (position,)
    axes = figure.add_subplot(*place, xlabel=x, ylabel=y)
    axes.set_prop_cycle(cycler(color=PALETTE))
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def show_image(axes: Axes, image: Tensor, title: str = "") -> None:
    """A (3, H, W) image, uint8 or float in [0, 1], without axes."""
    axes.imshow(image.detach().cpu().permute(1, 2, 0).numpy())
    axes.set_axis_off()
    axes.set_title(title, size=9)


def show_heat(
    axes: Axes,
    image: Tensor,
    heat: Tensor,
    title: str = "",
    *,
    signed: bool = False,
    colour: str = "black",
) -> None:
    """A (h, w) map over a greyed (3, H, W) image, on the map's own scale.

    A `signed` map is centred at zero: orange below, violet above.
    """
    height, width = image.shape[-2:]
    grey = image.detach().cpu().float().mean(dim=0).numpy()
    axes.imshow(grey, cmap="gray", alpha=0.5)
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    most = float(heat.abs().max()) or 1.0
    scale: dict[str, Any] = {"cmap": HEAT}
    if signed:
        scale = {"cmap": DIVERGING, "vmin": -most, "vmax": most}
    axes.imshow(heat.detach().cpu().float().numpy(), alpha=0.65, extent=extent, **scale)
    axes.set_axis_off()
    axes.set_title(title, size=8, color=colour)


def save_figure(figure: Figure, path: PathLike) -> None:
    """Write the figure atomically."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
