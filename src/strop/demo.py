"""The tour behind `strop demo`: the programs of a few images, looked at from all sides."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from strop.data.scenes import ScenesDataset
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
from strop.images import save_image
from strop.metrics import r2, r2_centred
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.structure.counterfactual import erasure
from strop.training.callbacks import Callback
from strop.training.decoder import train_decoder
from strop.training.loop import train
from strop.training.preset import load_preset

PRESET = "strop-nano"
TRAINED_ON = 160
SHOWN = 4
MAPS = 4
CHOSEN, ALL, FLOOR = "the model's own lengths", "all codes", "mean field of others, no codes"


@dataclass(frozen=True, kw_only=True)
class Look:
    """One model and a few images it never saw.

    title      what the images are
    images     (n, 3, H, H) uint8
    captions   n short texts about them
    by_length  R² over these images at every forced length, about the scalar mean
    scores     R² in both definitions, by name: at the lengths the model chose, with all codes, and
               of the mean field of other images, which takes no codes at all
    """

    title: str
    tokenizer: Tokenizer
    images: Tensor
    captions: list[str]
    program: Program
    by_length: list[float]
    scores: dict[str, dict[str, float]]


def tour(
    out: PathLike,
    *,
    steps: int | None = None,
    callbacks: Sequence[Callback] = (),
    say: Callable[[str], None] = lambda text: None,
) -> list[Look]:
    """Train, encode, interpret, decode and erase; leave model, programs, figures and a page."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file.", "Name a folder for the demo.")
    tokenizer, mean_field = _trained(steps, callbacks, say)
    tokenizer.save_pretrained(out / "model")
    say("Encoding scenes it never saw ...")
    size = tokenizer.config.image_size
    records = ScenesDataset(SHOWN, seed=1, size=size).records(range(SHOWN))
    captions = [f"{len(record.scene['objects'])} objects" for record in records if record.scene]
    images = torch.stack([record.image for record in records])
    looks = [look("scenes", tokenizer, images, captions, mean_field, out)]
    write_page(looks, out)
    return looks


def _trained(
    steps: int | None, callbacks: Sequence[Callback], say: Callable[[str], None]
) -> tuple[Tokenizer, Tensor]:
    """The smallest preset, trained on a few rendered scenes, with its decoder; and the mean field
    (S, d_enc) of those."""
    preset = load_preset(PRESET, {"training.steps": steps} if steps else None)
    say(f"Rendering {TRAINED_ON} scenes and computing their fields ...")
    scenes = ScenesDataset(TRAINED_ON, size=preset.model.image_size)
    images = scenes.images(range(TRAINED_ON))
    fields = Tokenizer(preset.model).field(images)
    say(f"Training {PRESET} for {preset.training.steps} steps ...")
    tokenizer = train(preset, fields[:, None], callbacks=callbacks, device="cpu").tokenizer
    say("Training its pixel decoder ...")
    # Without its perceptual term, which would run the teacher forwards and backwards.
    train_decoder(
        tokenizer, images, steps=preset.training.steps // 6 + 1, perceptual_weight=0.0, batch=16
    )
    return tokenizer, fields.mean(dim=0)


def look(
    title: str,
    tokenizer: Tokenizer,
    images: Tensor,
    captions: list[str],
    mean_field: Tensor,
    out: Path,
) -> Look:
    """Encode images (n, 3, H, H) and write them, their programs and two figures to `out`.

    mean_field  (S, d_enc) of other images of the kind, for comparison
    """
    paths = [str(out / f"{title}-{number}.png") for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        save_image(path, image)
    program, field = tokenizer.encode(paths), tokenizer.field(paths)
    program.save(out / f"{title}.parquet")

    def scores(made: Tensor) -> dict[str, float]:
        return {"r2": r2(made, field).item(), "r2_centred": r2_centred(made, field).item()}

    at_length = [
        scores(tokenizer.interpret(program.with_lengths(length)))
        for length in range(1, program.capacity + 1)
    ]
    seen = Look(
        title=title,
        tokenizer=tokenizer,
        images=images,
        captions=captions,
        program=program,
        by_length=[each["r2"] for each in at_length],
        scores={
            CHOSEN: scores(tokenizer.interpret(program)),
            ALL: at_length[-1],
            FLOOR: scores(mean_field.expand_as(field)),
        },
    )
    draw_programs(seen, out / f"{title}-programs.png")
    draw_rate(seen, out / f"{title}-rate.png")
    return seen


def draw_programs(seen: Look, path: PathLike) -> None:
    """A row for each image: itself, its preview, and the erasures that change the field most."""
    program = seen.program
    previews = seen.tokenizer.decode(seen.tokenizer.interpret(program)).cpu()
    maps = erasure(seen.tokenizer, program).cpu()
    figure = new_figure(1.7 * (2 + MAPS), 2.05 * len(seen.images))
    axes = figure.subplots(len(seen.images), 2 + MAPS, squeeze=False)
    for row, line in enumerate(axes):
        image = seen.images[row]
        show_image(line[0], image, seen.captions[row])
        show_image(line[1], previews[row], f"preview, {int(program.lengths[row])} codes")
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
    """R² at every forced length, with the model's own choice and the floor."""
    figure = new_figure(5, 3.2)
    axes = plain_axes(figure, "codes", "R² (about the scalar mean)")
    axes.plot(range(1, len(seen.by_length) + 1), seen.by_length, label="forced length")
    mean = seen.program.lengths.float().mean().item()
    axes.plot(mean, seen.scores[CHOSEN]["r2"], "o", color=PALETTE[1], label=CHOSEN)
    axes.axhline(seen.scores[FLOOR]["r2"], color=MUTED, ls="--", label=FLOOR)
    axes.legend(frameon=False, fontsize=8)
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
        f"<h2>{title}</h2>"
        f'<figure><img src="{title}-programs.png" alt="Each image, its preview and the erasures '
        'that change its field most"><figcaption>Each row: the image, what its program decodes '
        "to, and where the field changes when one token is erased, with the mean change."
        "</figcaption></figure>"
        f'<div class="programs">{seen.program._repr_html_()}</div>'
        f'<figure><img class="small" src="{title}-rate.png" alt="R² by length"></figure>'
        f"<table><tr><th></th><th>r2 (scalar mean)</th><th>r2_centred (channel means)</th></tr>"
        f"{rows}</table>"
    )


_INTRODUCTION = (
    "Each image became a short program of discrete codes, as long as the model found it to need. "
    "An interpreter turned the program back into the patch field of a frozen teacher; what is "
    "decoded to pixels is only there to look at."
)
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1c1c1c;background:#fff}h1,h2{font-weight:600}img{max-width:100%}img.small"
    "{max-width:26rem}figure{margin:1rem 0}figcaption{color:#555;font-size:.9rem}"
    ".programs{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0}"
    "td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}"
    "figcaption{color:#aaa}img{background:#fff}}"
)
