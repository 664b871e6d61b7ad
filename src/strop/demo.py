"""The tour behind `strop demo`: train the smallest preset on rendered scenes, then look at it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from strop.data.scenes import ScenesDataset
from strop.errors import DataError
from strop.files import PathLike, atomic_path
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
CHOSEN, ALL, FLOOR = "the model's own lengths", "all codes", "mean field, no codes"


@dataclass(frozen=True)
class Tour:
    """What the demo made: a model, and the programs of a few scenes that it never saw.

    objects  how many objects each of these scenes holds
    by_length  R² over these scenes at every forced length, about the scalar mean
    scores   R² in both definitions, by name: at the lengths the model chose, with all codes, and
             of the training scenes' mean field, which takes no codes at all
    """

    tokenizer: Tokenizer
    program: Program
    objects: list[int]
    by_length: list[float]
    scores: dict[str, dict[str, float]]
    folder: Path


def tour(
    out: PathLike,
    *,
    steps: int | None = None,
    callbacks: Sequence[Callback] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Tour:
    """Train, encode, interpret, decode and erase; write model, programs and figures to `out`."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file.", "Name a folder for the demo.")
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
    tokenizer.save_pretrained(out / "model")

    say("Encoding scenes it never saw ...")
    records = ScenesDataset(SHOWN, seed=1, size=preset.model.image_size).records(range(SHOWN))
    paths = [str(out / f"scene-{number}.png") for number in range(SHOWN)]
    for path, record in zip(paths, records, strict=True):
        save_image(path, record.image)
    program = tokenizer.encode(paths)
    program.save(out / "programs.parquet")

    field = tokenizer.field(paths)
    by_length = [
        r2(tokenizer.interpret(program.with_lengths(length)), field).item()
        for length in range(1, program.capacity + 1)
    ]
    done = Tour(
        tokenizer=tokenizer,
        program=program,
        objects=[len(record.scene["objects"]) if record.scene else 0 for record in records],
        by_length=by_length,
        scores={
            what: {"r2": r2(made, field).item(), "r2_centred": r2_centred(made, field).item()}
            for what, made in {
                CHOSEN: tokenizer.interpret(program),
                ALL: tokenizer.interpret(program.with_lengths(program.capacity)),
                FLOOR: fields.mean(dim=0).expand_as(field),
            }.items()
        },
        folder=out,
    )
    draw_programs(done, torch.stack([record.image for record in records]), out / "programs.png")
    draw_rate(done, out / "rate.png")
    return done


def draw_programs(done: Tour, images: Tensor, path: PathLike) -> None:
    """A row for each scene: image, preview, and the erasure maps that change the field most."""
    program, size = done.program, images.shape[-1]
    previews = done.tokenizer.decode(done.tokenizer.interpret(program))
    maps = erasure(done.tokenizer, program)
    figure = Figure(figsize=(1.7 * (2 + MAPS), 2.05 * len(images)), layout="constrained")
    axes = figure.subplots(len(images), 2 + MAPS, squeeze=False)
    for row, line in enumerate(axes):
        picture = images[row].permute(1, 2, 0)
        line[0].imshow(picture)
        line[0].set_title(f"{done.objects[row]} objects", size=9)
        line[1].imshow(previews[row].permute(1, 2, 0))
        line[1].set_title(f"preview, {int(program.lengths[row])} codes", size=9)
        scores = maps[row].mean(dim=(1, 2)).nan_to_num()
        ranked = scores.argsort(descending=True).tolist()
        shown = [token for token in ranked if program.active[row, token]]
        for axis, token in zip(line[2:], shown, strict=False):
            axis.imshow(picture.float().mean(-1), cmap="gray", alpha=0.5)
            axis.imshow(
                maps[row, token],
                cmap="magma",
                alpha=0.65,
                extent=(-0.5, size - 0.5, size - 0.5, -0.5),
            )
            title = f"erase #{token} (code {int(program.codes[row, token])})"
            axis.set_title(f"{title}\n{scores[token]:.3f}", size=8)
    for axis in axes.flat:
        axis.set_axis_off()
    _save(figure, path)


def draw_rate(done: Tour, path: PathLike) -> None:
    """R² at every forced length, with the model's own choice and the floor."""
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    lengths = range(1, len(done.by_length) + 1)
    axes.plot(lengths, done.by_length, color="#3b6ea5", label="forced length")
    mean = done.program.lengths.float().mean().item()
    axes.plot(mean, done.scores[CHOSEN]["r2"], "o", color="#b3261e", label=CHOSEN)
    axes.axhline(done.scores[FLOOR]["r2"], color="0.6", ls="--", label=FLOOR)
    axes.set(xlabel="codes", ylabel="R² (about the scalar mean)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    _save(figure, path)


def _save(figure: Figure, path: PathLike) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)
