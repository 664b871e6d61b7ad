"""The demo behind `strop demo`: programs of a few images, with figures and a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.analysis.colours import Basis
from strop.analysis.counterfactual import erasure
from strop.analysis.findings import Table
from strop.analysis.page import to_html
from strop.analysis.panels import show_program
from strop.data import ScenesDataset
from strop.data.samples import square, squares
from strop.errors import DataError, StoreError
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
from strop.images import save_image
from strop.metrics import r2, r2_centred
from strop.model.checkpoint import load
from strop.model.tokenizer import Tokenizer
from strop.optional import require
from strop.program import Program
from strop.scenes import object_counts
from strop.store.encode import encode_corpus
from strop.store.pictures import write_sheet
from strop.store.store import open_store

OBJECT_COUNTS = (3, 5, 8, 10)
"""The demo shows the first scene of `SEED` with each of these numbers of objects."""
SEED, OTHER_SCENES = 7, 12
PHOTOS = {
    "a pagoda": ("china.jpg", 427, 0, 0),
    "the sky beside it": ("china.jpg", 214, 0, 426),
    "a flower": ("flower.jpg", 427, 0, 106),
    "the leaves beside it": ("flower.jpg", 214, 0, 426),
}
"""Squares of scikit-learn's sample images: file, side, top and left in pixels."""
MAPS = 3
OVERVIEW, SHEET = "overview.png", "search.html"
PAGE = Path(__file__).with_suffix(".md")


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """A model and its results on n images that it was not trained on.

    name          the model's name
    captions      descriptions of the images
    pictures      by name, (n, 3, h, w) each: the images, the features of the teacher and those from
                  the programs as colours, and previews
    maps          (n, K, h, w) erasure maps
    predicted_r2  (n,) R² of each image at its predicted length, about its own scalar mean
    scores        R² of all images together in both definitions, by name: at the predicted lengths,
                  with all codes, and of a baseline that needs no program
    """

    name: str
    captions: list[str]
    program: Program
    pictures: dict[str, Tensor]
    maps: Tensor
    predicted_r2: Tensor
    scores: dict[str, dict[str, float]]


def run_demo(
    folder: PathLike,
    *,
    device: str | torch.device | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[DemoResult]:
    """Encode, interpret, decode and erase. Writes images, programs, figures and a page."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file.", "Name a folder for the demo.")
    say(f"Rendering {len(OBJECT_COUNTS)} scenes, and {OTHER_SCENES} more for the baseline ...")
    model = load("scenes", device=device)
    images, others = render_scenes(model.config.image_size)
    say("Encoding them and erasing each token ...")
    captions = [f"{count} objects" for count in OBJECT_COUNTS]
    results = [evaluate("scenes", model, images, captions, folder, others)]
    say("The same with photographs ...")
    model = load("photos", device=device)
    size = model.config.image_size
    images = torch.stack([square(*place, size) for place in PHOTOS.values()])
    results.insert(0, evaluate("photos", model, images, list(PHOTOS), folder))
    draw_overview(results[0], folder / OVERVIEW)
    say("A store of more squares of them, and a search in it ...")
    try:
        search_store(model, folder)
    except StoreError as error:
        say(f"No store: {error}")
    write_page(results, folder)
    return results


def search_store(tokenizer: Tokenizer, folder: Path) -> None:
    """Encode squares of the photographs into `photos.lance` and search it for the leaves.

    Writes a contact sheet, `search.html`. `StoreError` if the packages of stores are missing.
    """
    require("lance", StoreError)
    source = folder / "squares"
    for name, image in squares(tokenizer.config.image_size).items():
        save_image(source / f"{name}.png", image)
    encode_corpus(
        str(source),
        folder / "photos.lance",
        model="photos",
        tokenizer=tokenizer,
        workers=0,
        overwrite=True,
    )
    store = open_store(folder / "photos.lance", model=tokenizer)
    query = folder / f"photos-{len(PHOTOS) - 1}.png"
    found = store.search(query, k=12)
    title = f"{list(PHOTOS)[-1]}, and what is most like it in {len(store)} squares"
    write_sheet(store, found, folder / SHEET, title=title, query=query)


def render_scenes(size: int) -> tuple[Tensor, Tensor]:
    """Scenes with `OBJECT_COUNTS` objects, and other scenes: (n, 3, size, size) uint8 each."""
    counts = object_counts(SEED, range(100)).tolist()
    indices = [counts.index(count) for count in OBJECT_COUNTS]
    shown = ScenesDataset(100, seed=SEED, size=size).images(indices)
    others = ScenesDataset(OTHER_SCENES, seed=SEED + 1, size=size)
    return shown, others.images(range(OTHER_SCENES))


def evaluate(
    name: str,
    tokenizer: Tokenizer,
    images: Tensor,
    captions: list[str],
    folder: Path,
    others: Tensor | None = None,
) -> DemoResult:
    """Encode images (n, 3, H, H); write them, their programs and two figures to `folder`.

    The baseline is the mean field of `others` (m, 3, H, H), images of the same kind. Without
    others it is the mean vector of each image at every location.
    """
    paths = [str(folder / f"{name}-{row}.png") for row in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        save_image(path, image)
    encoding = tokenizer.analyse(paths)
    program, target = tokenizer.to_program(encoding).named(paths), encoding.field
    program.save(folder / f"{name}.parquet", loads_as=name)
    if others is None:
        baseline, flat = "own mean vector everywhere", target.mean(dim=1, keepdim=True)
    else:
        baseline, flat = f"mean field of {len(others)} others", tokenizer.field(others).mean(dim=0)
    flat = flat.expand_as(target)

    def r2_of_each(field: Tensor) -> Tensor:
        return torch.stack([r2(*pair) for pair in zip(field, target, strict=True)]).cpu()

    field = tokenizer.interpret(program)
    forced = [tokenizer.interpret(program.with_lengths(k + 1)) for k in range(program.capacity)]
    r2_by_length = torch.stack([r2_of_each(each) for each in forced], dim=1)
    bases = [Basis.of(each) for each in target]

    def coloured(fields: Tensor) -> Tensor:
        return torch.stack([b.colours(f) for b, f in zip(bases, fields, strict=True)]).cpu()

    named = (("predicted lengths", field), ("all codes", forced[-1]), (baseline, flat))
    result = DemoResult(
        name=name,
        captions=captions,
        program=program,
        pictures={
            "images": images,
            "teacher": coloured(target),
            "features": coloured(field),
            "previews": smooth(tokenizer.decode(field).cpu()),
        },
        maps=erasure(tokenizer, program).cpu(),
        predicted_r2=r2_by_length.gather(1, program.lengths.cpu()[:, None] - 1)[:, 0],
        scores={
            label: {"r2": r2(each, target).item(), "r2_centred": r2_centred(each, target).item()}
            for label, each in named
        },
    )
    draw_programs(result, folder / f"{name}-programs.png")
    draw_r2(result, r2_by_length, baseline, r2_of_each(flat), folder / f"{name}-rate.png")
    return result


def smooth(previews: Tensor) -> Tensor:
    """Previews without the grid of the decoder's blocks, which is no part of the image."""
    small = F.avg_pool2d(previews, 4)
    return F.interpolate(small, scale_factor=4, mode="bicubic").clamp(0, 1)


def draw_overview(result: DemoResult, path: PathLike) -> None:
    """What happens to the first image: features, program, features again, and two of its tokens."""
    program = result.program[0]
    image, teacher, features, _ = (kind[0] for kind in result.pictures.values())
    tokens = strongest(result, 0)[:2]
    colours = {k: PALETTE[i] for i, k in enumerate(tokens)}
    figure = new_figure(13.2, 2.5)
    axes = figure.subplots(1, 6, width_ratios=[1, 1, 1.6, 1, 1, 1])
    show_image(axes[0], image, "1. an image")
    show_image(axes[1], teacher, "2. features of the teacher")
    show_program(axes[2], program, colours)
    size = math.ceil(program.bits.item() / 8)
    axes[2].set_title(f"3. its program: {len(program)} codes, {size} bytes", size=9)
    show_image(axes[3], features, "4. features from the program")
    for axis, k in zip(axes[4:], tokens, strict=False):
        show_heat(axis, image, result.maps[0, k])
        axis.set_title(f"5. what token {k} holds", size=9, color=colours[k], weight="bold")
    save_figure(figure, path)


def strongest(result: DemoResult, row: int) -> list[int]:
    """The active tokens of a program, those with the largest effect first."""
    scores = result.maps[row].mean(dim=(1, 2)).nan_to_num()
    ranked = scores.argsort(descending=True).tolist()
    return [token for token in ranked if result.program.active[row, token]]


def draw_programs(result: DemoResult, path: PathLike) -> None:
    """A row for each image: features, preview, and the erasures with the largest effect."""
    count = len(result.captions)
    figure = new_figure(1.7 * (4 + MAPS), 2.05 * count)
    axes = figure.subplots(count, 4 + MAPS, squeeze=False)
    for row, line in enumerate(axes):
        image, maps, length = result.pictures["images"][row], result.maps[row], result.program[row]
        titles = (
            result.captions[row],
            "teacher's features",
            f"from {len(length)} codes",
            "preview",
        )
        for axis, pictures, title in zip(line, result.pictures.values(), titles, strict=False):
            show_image(axis, pictures[row], title)
        for axis, token in zip(line[4:], strongest(result, row), strict=False):
            show_heat(axis, image, maps[token], f"erase token {token}: {maps[token].mean():.3f}")
        for axis in line[4 + len(length) :]:
            axis.set_axis_off()
    save_figure(figure, path)


def draw_r2(
    result: DemoResult, r2_by_length: Tensor, baseline: str, baseline_r2: Tensor, path: PathLike
) -> None:
    """R² (n, K) at every forced length, with the predicted length and the baseline (n,)."""
    lowest = min(baseline_r2.min().item(), r2_by_length.min().item())
    figure = new_figure(2.6 * len(r2_by_length), 2.7)
    panels = figure.add_gridspec(1, len(r2_by_length))
    for row, caption in enumerate(result.captions):
        length, predicted = int(result.program.lengths[row]), result.predicted_r2[row]
        axes = plain_axes(figure, "codes", "" if row else "R²", panels[row])
        lengths = range(1, r2_by_length.shape[1] + 1)
        axes.plot(lengths, r2_by_length[row], label="forced length")
        axes.plot(length, predicted, "o", color=PALETTE[1], label="predicted length")
        axes.axhline(baseline_r2[row].item(), color=MUTED, ls="--", label=baseline)
        axes.set_ylim(1.05 * lowest - 0.05, 1)
        axes.set_title(f"{caption}\n{length} codes, R² {predicted:.2f}", size=9)
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    save_figure(figure, path)


def tables(result: DemoResult) -> tuple[Table, Table]:
    """The programs with their R², and the scores of all images together."""
    programs: list[list[str | int]] = [
        [
            f"{result.name}-{row}.png",
            caption,
            f"{result.predicted_r2[row]:.2f}",
            len(program),
            " ".join(map(str, program.codes.tolist())),
        ]
        for row, (caption, program) in enumerate(zip(result.captions, result.program, strict=True))
    ]
    scores = [
        [label, f"{score['r2']:.2f}", f"{score['r2_centred']:.2f}"]
        for label, score in result.scores.items()
    ]
    heads = [f"on these {result.name}", "r2 (scalar mean)", "r2_centred (channel means)"]
    return (
        Table("", ["image", "", "r2", "length", "program"], programs),
        Table("", heads, scores),
    )


def write_page(results: Sequence[DemoResult], folder: Path) -> None:
    """Write `index.html`, which is `demo.md` with tables: one page without external resources."""
    shown: dict[str, str] = {}
    for result in results:
        programs, scores = (table.markdown() for table in tables(result))
        shown |= {f"{result.name}_programs": programs, f"{result.name}_scores": scores}
    text, _, store = PAGE.read_text(encoding="utf-8").partition("## A store")
    if (folder / SHEET).is_file():
        text += f"## A store{store}"
    write_text(folder / "index.html", to_html(Template(text).substitute(shown), folder))
