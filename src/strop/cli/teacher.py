"""`strop teacher distill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from strop.cli.console import (
    Device,
    Json,
    check_writable,
    err,
    out,
    print_json,
)
from strop.device import choose_device
from strop.errors import ConfigError
from strop.training.distill import DistillConfig
from strop.training.distill import distill as run_distillation

app = typer.Typer(no_args_is_help=True, help="Make a teacher of your own.")

_DEFAULT = DistillConfig()


@app.callback()
def _teacher() -> None:
    """Make a teacher of your own."""


@app.command()
def distill(
    sources: Annotated[
        list[str],
        typer.Option(
            "--from",
            help="A network to learn from, as NAME or NAME=WEIGHT: any teacher, or a convolutional "
            "network. Repeatable; the first also lends the geometry of its field.",
        ),
    ],
    data: Annotated[list[str], typer.Option(help="Spec of images to learn on. Repeatable.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the new teacher.")],
    shares: Annotated[
        list[float] | None,
        typer.Option("--share", help="Share of each --data in a batch; by default by its size."),
    ] = None,
    validation: Annotated[
        str | None, typer.Option("--val", help="Images to measure on; else some of --data.")
    ] = None,
    student: Annotated[str, typer.Option(help="Its architecture.")] = _DEFAULT.student,
    sizes: Annotated[str, typer.Option(help="Its image sizes in pixels.")] = "128,256",
    steps: Annotated[int, typer.Option(min=1)] = _DEFAULT.steps,
    batch: Annotated[int, typer.Option(min=1, help="Views a step.")] = _DEFAULT.batch,
    minutes: Annotated[
        float | None, typer.Option(help="Train for this long instead of --steps.")
    ] = None,
    learning_rate: Annotated[float, typer.Option("--lr")] = _DEFAULT.learning_rate,
    views: Annotated[
        int,
        typer.Option(
            min=0,
            help="Views of each image that the networks look at once, before the first step; 0 for "
            "new ones in every step.",
        ),
    ] = _DEFAULT.views,
    geometry: Annotated[
        float, typer.Option(min=0, help="Weight of keeping the first network's geometry.")
    ] = _DEFAULT.geometry,
    grouping: Annotated[
        float,
        typer.Option(
            min=0,
            help="Average the other networks' fields over what the first holds alike, at this "
            "temperature of its cosines, such as 0.1; 0 for as they are.",
        ),
    ] = _DEFAULT.grouping,
    inherit: Annotated[
        bool,
        typer.Option(
            "--inherit",
            help="Start from the first network's own layers, fitted to the student's width.",
        ),
    ] = _DEFAULT.inherit,
    name: Annotated[str | None, typer.Option(help="Title of the card.")] = None,
    notes: Annotated[
        list[str] | None,
        typer.Option("--note", help="A line for the card: a source and its licence. Repeatable."),
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option("--limit", help="A sentence for the card: what it is not good for."),
    ] = None,
    fp32: Annotated[bool, typer.Option("--fp32", help="Store fp32 weights, not bf16.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on from the last checkpoint in --out.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read images.")] = 2,
    seed: Annotated[int, typer.Option()] = _DEFAULT.seed,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Distil frozen networks into a small DINOv3 that every command takes as a teacher."""
    check_writable(folder, folder=True)
    config = DistillConfig(
        student=student,
        sizes=_sizes(sizes),
        steps=steps,
        batch=batch,
        minutes=minutes,
        learning_rate=learning_rate,
        geometry=geometry,
        grouping=grouping,
        inherit=inherit,
        views=views,
        seed=seed,
    )
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
    ) as bar:
        task = bar.add_task("starting", total=1.0)
        metrics = run_distillation(
            dict(map(_weighted, sources)),
            data,
            out=folder,
            config=config,
            shares=shares,
            validation=validation,
            name=name,
            notes=notes or (),
            limits=limits or (),
            dtype="fp32" if fp32 else "bf16",
            resume=resume,
            device=choose_device(device),
            loading_workers=workers,
            watch=lambda share, text: bar.update(task, completed=share, description=text),
        )
    if as_json:
        print_json(metrics)
        return
    table = Table(show_header=False, box=None)
    for metric, value in metrics.items():
        table.add_row(metric, f"{value:.4f}")
    out.print(table)
    out.print(f"The teacher is in {folder}", soft_wrap=True)


def _weighted(source: str) -> tuple[str, float]:
    """`NAME=WEIGHT` or `NAME`; a name may hold an equals sign of its own."""
    name, _, weight = source.rpartition("=")
    try:
        return (name, float(weight)) if name else (source, 1.0)
    except ValueError:
        return source, 1.0


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--sizes is {text!r}.", "Give whole numbers, such as 128,256.")
    return tuple(map(int, parts))
