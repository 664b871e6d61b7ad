"""The tour behind `strop demo`: the programs of a few images, looked at from all sides."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from strop.analysis.counterfactual import erasure
from strop.data.scenes import ScenesDataset, object_counts
from strop.errors import DataError
from strop.figures import (
    MUTED,
    PALETTE,
    new_figure,
    plain_axes,
    save_figure,
    show_heat,
    show_image,
)
from strop.files import PathLike, write_text
from strop.images import fit_square, save_image
from strop.metrics import r2, r2_centred
from strop.model.checkpoint import load
from strop.model.tokenizer import Tokenizer
from strop.program import Program

COUNTS = (3, 5, 8, 10)
"""How many objects the scenes have: the first of `SEED` with each number is shown."""
SEED, OTHERS = 7, 12
SQUARES = {
    "a pagoda": ("china.jpg", 427, 0, 0),
    "the sky beside it": ("china.jpg", 214, 0, 426),
    "a flower": ("flower.jpg", 427, 0, 106),
    "the leaves beside it": ("flower.jpg", 214, 0, 426),
}
"""Squares of scikit-learn's photographs: file, side, top and left in pixels."""
MAPS = 4
CHOSEN, ALL = "the model's own lengths", "all codes"


@dataclass(frozen=True, kw_only=True)
class Look:
    """One model and a few images it never saw.

    title      what the images are
    images     (n, 3, H, H) uint8
    previews   (n, 3, H, H) in [0, 1], what their programs decode to
    captions   n short texts about them
    by_length  (n, K): R² of each image at every forced length, about its own scalar mean
    floor      what stands in for a field without a program, and (n,) the R² that it has
    scores     R² of all images together in both definitions, by name: at the lengths the model
               chose, with all codes, and of the floor
    """

    title: str
    tokenizer: Tokenizer
    images: Tensor
    previews: Tensor
    captions: list[str]
    program: Program
    by_length: Tensor
    floor: tuple[str, Tensor]
    scores: dict[str, dict[str, float]]

    @property
    def chosen(self) -> Tensor:
        """(n,) R² of each image at the length the model chose for it."""
        return self.by_length.gather(1, self.program.lengths.cpu()[:, None] - 1)[:, 0]


def tour(
    out: PathLike,
    *,
    device: str | torch.device | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Look]:
    """Encode, interpret, decode and erase; leave images, programs, figures and a page."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file.", "Name a folder for the demo.")
    say(f"Rendering {len(COUNTS)} scenes, and {OTHERS} others to compare with ...")
    scenes = load("scenes", device=device)
    images, others = rendered(scenes.config.image_size)
    say("Writing their programs, and erasing every token once ...")
    looks = [look("scenes", scenes, images, [f"{count} objects" for count in COUNTS], out, others)]
    say("The same with photographs ...")
    photos = load("photos", device=device)
    looks += [look("photos", photos, squares(photos.config.image_size), list(SQUARES), out)]
    write_page(looks, out)
    return looks


def rendered(size: int) -> tuple[Tensor, Tensor]:
    """Scenes with so many objects as `COUNTS` says, and others: (n, 3, size, size) uint8 each."""
    counts = object_counts(SEED, range(100)).tolist()
    shown = ScenesDataset(100, seed=SEED, size=size).images([counts.index(n) for n in COUNTS])
    return shown, ScenesDataset(OTHERS, seed=SEED + 1, size=size).images(range(OTHERS))


def squares(size: int) -> Tensor:
    """`SQUARES` as images (n, 3, size, size) uint8."""
    from sklearn.datasets import load_sample_image

    parts = []
    for file, side, top, left in SQUARES.values():
        photograph = torch.tensor(load_sample_image(file)).permute(2, 0, 1)
        parts.append(fit_square(photograph[:, top : top + side, left : left + side], size))
    return torch.stack(parts)


def look(
    title: str,
    tokenizer: Tokenizer,
    images: Tensor,
    captions: list[str],
    out: Path,
    others: Tensor | None = None,
) -> Look:
    """Encode images (n, 3, H, H) and write them, their programs and two figures to `out`.

    The floor is the mean field of `others` (m, 3, H, H), which are of the kind; without others it
    is each image's own mean vector at every location.
    """
    paths = [str(out / f"{title}-{number}.png") for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        save_image(path, image)
    program, field = tokenizer.encode(paths), tokenizer.field(paths)
    program.save(out / f"{title}.parquet")
    if others is None:
        floor, flat = "own mean vector everywhere", field.mean(dim=1, keepdim=True)
    else:
        floor, flat = f"mean field of {len(others)} others", tokenizer.field(others).mean(dim=0)
    flat = flat.expand_as(field)

    def each(made: Tensor) -> Tensor:
        return torch.stack([r2(*pair) for pair in zip(made, field, strict=True)]).cpu()

    def scores(made: Tensor) -> dict[str, float]:
        return {"r2": r2(made, field).item(), "r2_centred": r2_centred(made, field).item()}

    made = tokenizer.interpret(program)
    forced = [
        tokenizer.interpret(program.with_lengths(length))
        for length in range(1, program.capacity + 1)
    ]
    seen = Look(
        title=title,
        tokenizer=tokenizer,
        images=images,
        previews=tokenizer.decode(made).cpu(),
        captions=captions,
        program=program,
        by_length=torch.stack([each(field) for field in forced], dim=1),
        floor=(floor, each(flat)),
        scores={
            CHOSEN: scores(made),
            ALL: scores(forced[-1]),
            floor: scores(flat),
        },
    )
    draw_programs(seen, out / f"{title}-programs.png")
    draw_rate(seen, out / f"{title}-rate.png")
    return seen


def draw_programs(seen: Look, path: PathLike) -> None:
    """A row for each image: itself, its preview, and the erasures that change the field most."""
    program = seen.program
    maps = erasure(seen.tokenizer, program).cpu()
    figure = new_figure(1.7 * (2 + MAPS), 2.05 * len(seen.images))
    axes = figure.subplots(len(seen.images), 2 + MAPS, squeeze=False)
    for row, line in enumerate(axes):
        image = seen.images[row]
        show_image(line[0], image, seen.captions[row])
        show_image(line[1], seen.previews[row], f"preview, {int(program.lengths[row])} codes")
        scores = maps[row].mean(dim=(1, 2)).nan_to_num()
        ranked = scores.argsort(descending=True).tolist()
        shown = [token for token in ranked if program.active[row, token]]
        for axis, token in zip(line[2:], shown, strict=False):
            title = f"erase #{token} (code {int(program.codes[row, token])})\n{scores[token]:.3f}"
            show_heat(axis, image, maps[row, token], title)
        for axis in line[2 + len(shown) :]:
            axis.set_axis_off()
    save_figure(figure, path)


def draw_rate(seen: Look, path: PathLike) -> None:
    """For each image R² at every forced length, with the model's own choice and the floor."""
    floor, floors = seen.floor
    lowest = min(floors.min().item(), seen.by_length.min().item())
    figure = new_figure(2.6 * len(seen.images), 2.7)
    panels = figure.add_gridspec(1, len(seen.images))
    for row, caption in enumerate(seen.captions):
        length = int(seen.program.lengths[row])
        axes = plain_axes(figure, "codes", "" if row else "R²", panels[row])
        axes.plot(range(1, seen.program.capacity + 1), seen.by_length[row], label="forced length")
        axes.plot(length, seen.chosen[row], "o", color=PALETTE[1], label="the model's own length")
        axes.axhline(floors[row].item(), color=MUTED, ls="--", label=floor)
        axes.set_ylim(1.05 * lowest - 0.05, 1)
        axes.set_title(f"{caption}\n{length} codes, R² {seen.chosen[row]:.2f}", size=9)
    key = axes.get_legend_handles_labels()
    figure.legend(*key, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    save_figure(figure, path)


def write_page(looks: Sequence[Look], out: Path) -> None:
    """`index.html`: all of it on one page that loads nothing from elsewhere."""
    sections = "".join(_section(seen) for seen in looks)
    write_text(
        out / "index.html",
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>strop</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>Images as programs</h1><p>{_INTRODUCTION}</p>{sections}</body></html>\n",
    )


def _section(seen: Look) -> str:
    title = html.escape(seen.title)
    rows = "".join(
        f"<tr><td>{html.escape(what)}</td><td>{score['r2']:.3f}</td>"
        f"<td>{score['r2_centred']:.3f}</td></tr>"
        for what, score in seen.scores.items()
    )
    return (
        f"<h2>{title.capitalize()}</h2><p>{_ABOUT[seen.title]}</p>"
        f'<figure><img src="{title}-programs.png" alt="Each image, its preview and the erasures '
        'that change its field most"><figcaption>Each row: the image, what its program decodes '
        "to, and where the field changes when one token is erased, with the mean change."
        "</figcaption></figure>"
        f'<div class="wide">{seen.program._repr_html_()}</div>'
        f'<figure><img src="{title}-rate.png" alt="R² by length"><figcaption>R² of each image '
        "about its own scalar mean, at every length that could be forced on it.</figcaption>"
        '</figure><div class="wide"><table><tr><th>all together</th><th>r2 (scalar mean)</th>'
        f"<th>r2_centred (channel means)</th></tr>{rows}</table></div>"
    )


_INTRODUCTION = (
    "Each image became a short program of discrete codes, as long as the model found it to need. "
    "An interpreter turned the program back into the patch field of a frozen teacher; what is "
    "decoded to pixels is only there to look at."
)
_ABOUT = {
    "scenes": "Rendered for this page; the model <code>scenes</code> never saw them. Other scenes "
    "have much the same field, so a program has to beat the mean field of others, which takes no "
    "codes at all.",
    "photos": "Busy and plain squares of two photographs, for the model <code>photos</code>. With "
    "no others at hand to take a mean field of, a program is held against the picture's own mean "
    "vector at every location. That is a high floor: nobody knows the vector without the picture. "
    "The photographs are scikit-learn's china.jpg and flower.jpg, by danielbuechele and vultilion "
    "on Flickr, CC BY 2.0, cropped here.",
}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1c1c1c;background:#fff}h1,h2{font-weight:600}h2{margin-top:3rem}img{max-width:100%}"
    "figure{margin:1rem 0}figcaption{color:#555;font-size:.9rem}.wide{overflow-x:auto}"
    "table{border-collapse:collapse;margin:1rem 0}td:first-child{white-space:nowrap}"
    "td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}"
    "figcaption{color:#aaa}img{background:#fff}}"
)
