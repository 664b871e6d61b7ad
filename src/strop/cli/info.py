"""`strop info` and `strop export`: sizes of presets and models, and models as ONNX graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.table import Table

from strop.cli import console
from strop.config import to_dict
from strop.errors import ModelError, TeacherError, did_you_mean
from strop.model.checkpoint import find_folder, list_models, load_folder, read_config
from strop.model.teacher import teacher_parameters
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.program import SUFFIXES
from strop.training.preset import load_preset, preset_names


def info(
    name: Annotated[
        str | None, typer.Argument(help="A preset, or the name, folder or hub id of a model.")
    ] = None,
    as_json: console.Json = False,
) -> None:
    """Show parameters, shapes and bits of a preset or a model. Without a name, list all of them."""
    if name is None:
        _list_all(as_json)
        return
    facts = describe(name)
    if as_json:
        console.print_json(facts)
        return
    table = Table(title=name, show_header=False, box=None)
    million = 1e6
    table.add_row("trainable parameters", f"{facts['trainable_parameters'] / million:.2f} M")
    total = facts["total_parameters"]
    table.add_row(
        "with the teacher",
        "unknown (teacher not found)" if total is None else f"{total / million:.2f} M",
    )
    for part, shape in facts["shapes"].items():
        table.add_row(part, " x ".join(map(str, shape)))
    table.add_row("bits at full length", f"{facts['bits']:.0f}")
    table.add_row("compression of the field", f"{facts['compression']:,.0f}x")
    table.add_row("teacher", facts["config"]["teacher"]["name"])
    about = facts["about"]
    for key, value in {**about, **about.get("metrics", {})}.items():
        if key not in ("load", "metrics", "training"):
            table.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
    console.out.print(table)


def describe(name: str) -> dict[str, Any]:
    """The output of `strop info --json` for a preset or a model."""
    if name in preset_names() or name.endswith(".toml"):
        with torch.device("meta"):  # shapes without memory
            tokenizer = Tokenizer(load_preset(name).model)
    else:
        tokenizer = load_folder(_model_folder(name))
    config = tokenizer.config
    locations, width = config.grid**2, config.teacher.width
    trainable = tokenizer.trainable_parameters
    try:
        total = trainable + teacher_parameters(config.teacher.name)
    except TeacherError:  # everything else is known without the teacher
        total = None
    return {
        "name": name,
        "trainable_parameters": trainable,
        "total_parameters": total,
        "shapes": {
            "image": [3, config.image_size, config.image_size],
            "field": [locations, width],
            "program": [config.max_length],
            "codebook": [config.quantizer.codes, config.quantizer.code_width],
        },
        "bits": config.bits,
        "compression": locations * width * 32 / config.bits,
        "config": to_dict(config),
        "about": tokenizer.about,
    }


def _model_folder(name: str) -> Path:
    if Path(name).suffix.lower() in SUFFIXES:
        raise ModelError(
            f"{name} holds programs, not a model.", "`strop interpret` and `strop decode` read it."
        )
    try:
        return find_folder(name)
    except ModelError as error:
        error.remedy = did_you_mean(name, preset_names()) + error.remedy
        raise


def _list_all(as_json: bool) -> None:
    models = {name: read_config(find_folder(name))[0] for name in list_models()}
    presets = {name: load_preset(name) for name in preset_names()}
    # Those on the bundled teacher, which need no download, come first.
    first = sorted(presets, key=lambda name: presets[name].model.teacher.name != "tiny")
    presets = {name: presets[name] for name in first}
    if as_json:
        console.print_json(
            {
                "models": {name: {"model": to_dict(config)} for name, config in models.items()},
                "presets": {name: to_dict(preset) for name, preset in presets.items()},
            }
        )
        return
    columns = ("parameters", "teacher", "image", "K", "codes")
    if models:
        table = Table("bundled model", *columns, box=None)
        for name, config in models.items():
            table.add_row(name, *_cells(config))
        console.out.print(table, "")
    table = Table("preset", *columns, "batch", box=None)
    for name, preset in presets.items():
        table.add_row(name, *_cells(preset.model), str(preset.training.batch))
    console.out.print(table)


def _cells(config: TokenizerConfig) -> tuple[str, ...]:
    """The sizes of a model, as cells of a table."""
    with torch.device("meta"):  # shapes without memory
        parameters = Tokenizer(config).trainable_parameters
    return (
        f"{parameters / 1e6:.1f} M",
        config.teacher.name,
        f"{config.image_size} px",
        str(config.max_length),
        str(config.quantizer.codes),
    )


def export(
    model: console.ModelArgument,
    output: Annotated[Path, typer.Option(*console.OUT, help="Output folder.")],
    to: Annotated[Literal["onnx"], typer.Option(help="Format of the graphs.")] = "onnx",
    as_json: console.Json = False,
) -> None:
    """Export a model with its teacher and preprocessing as ONNX graphs.

    The folder holds encoder.onnx, interpreter.onnx, and a README with code that runs them.
    """
    console.check_writable(output, folder=True)
    from strop.model.onnx import export_onnx

    folder = export_onnx(console.load_model(model, "cpu"), output)
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    if as_json:
        console.print_json({"output": str(folder), "files": files})
        return
    for name, size in files.items():
        console.say(f"{folder / name}: {size / 1e6:.1f} MB")
