"""`strop train`, `train-decoder`, `train-lengths`, `sweep` and `data features`."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from strop.cli import console
from strop.config import flatten, to_dict
from strop.device import choose_device
from strop.errors import ConfigError, did_you_mean
from strop.files import exclusive
from strop.model.checkpoint import find_folder, list_models, load
from strop.model.tokenizer import Tokenizer
from strop.training.callbacks import LOGS, Callback
from strop.training.decoder_training import train_decoder as fit_decoder
from strop.training.distributed import this_process
from strop.training.field_cache import cache_fields
from strop.training.lengths import LENGTHS
from strop.training.lengths import train_lengths as fit_lengths
from strop.training.loop import train as run_training
from strop.training.plan import describe, describe_data, measure
from strop.training.preset import Preset, load_preset, parse_assignments
from strop.training.sweep import sweep as run_sweep

Back = Annotated[
    Path | None, typer.Option(*console.OUT, help="Output folder. Default: the model's own.")
]
PresetName = Annotated[str, typer.Argument(help="A preset (`strop info` lists them) or a .toml.")]
Out = Annotated[Path, typer.Option(*console.OUT, help="Folder for everything the run writes.")]
Cache = Annotated[
    str | None,
    typer.Option(help="File of cached features, written if missing; or `memory`."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting: --set training.seed=3. Repeatable.")
]
Steps = Annotated[int | None, typer.Option(min=1, help="Optimizer steps; the schedule scales.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Images per step, over all processes.")]
TeacherName = Annotated[str | None, typer.Option(help="Teacher to use instead of the preset's.")]
Validation = Annotated[
    str | None, typer.Option("--val", help="Validation images; default: part of --data.")
]


def train(
    preset: PresetName,
    data: Annotated[str | None, typer.Option(*console.DATA, help=console.DATA_HELP)] = None,
    folder: Out = Path("runs/latest"),
    steps: Steps = None,
    batch: BatchSize = None,
    validation: Validation = None,
    teacher: TeacherName = None,
    cache: Cache = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint in --out.")
    ] = False,
    init: Annotated[
        str | None, typer.Option(help="Start from the weights of this model, as far as they fit.")
    ] = None,
    settings: Settings = None,
    logs: Annotated[
        list[str] | None,
        typer.Option("--log", help=f"Also log metrics to {' or '.join(LOGS)}. Repeatable."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Open the data and the teacher, print the configuration, time a step."
        ),
    ] = False,
    workers: console.Workers = console.WORKERS,
    device: console.Device = None,
    as_json: console.Json = False,
) -> None:
    """Train a tokenizer. Start it with `torchrun` to use several GPUs or machines."""
    plan = _resolved(preset, steps, batch, settings)
    callbacks = [_log(name)(folder) for name in logs or ()]
    if dry_run:
        _dry_run(plan, data, validation, teacher, device, as_json)
        return
    console.check_writable(folder, folder=True)
    with console.progress_bars() as bars:
        result = run_training(
            plan,
            data,
            out=folder,
            validation=validation,
            cache=cache,
            teacher=teacher,
            resume=resume,
            init=load(init, device="cpu") if init else None,
            callbacks=callbacks,
            progress=bars,
            device=device,
            loading_workers=workers,
        )
    first = this_process().first  # they all know the same
    if first and as_json:
        console.print_json({"finished": result.finished, "step": result.step, **result.metrics})
    elif first and result.finished:
        _print_metrics(result.metrics)
        console.out.print(f"The model is in {folder / 'model'}", soft_wrap=True)
    elif first:
        console.out.print(f"Stopped after step {result.step}. Continue with --resume.")
    if not result.finished:
        raise typer.Exit(130)  # the status after Ctrl-C in shells


def train_decoder(
    context: typer.Context,
    model: console.ModelArgument,
    data: console.Data,
    folder: Back = None,
    steps: Annotated[int, typer.Option(min=1)] = 20_000,
    batch: Annotated[int, typer.Option(min=1)] = 32,
    workers: console.Workers = console.WORKERS,
    device: console.Device = None,
    as_json: console.Json = False,
) -> None:
    """Train the pixel decoder of a model. Everything else stays unchanged."""
    _lock_folder(context, model, folder)
    tokenizer = load(model, device=device)
    with console.progress_bars() as bars:
        metrics = fit_decoder(
            tokenizer, data, steps=steps, batch=batch, loading_workers=workers, progress=bars
        )
    _write_back(tokenizer, folder or model, metrics, as_json)


def train_lengths(
    context: typer.Context,
    model: console.ModelArgument,
    data: console.Data,
    folder: Back = None,
    quality: Annotated[
        float | None,
        typer.Option(help="Cosine similarity to encode to by default: the model's, or 0.9."),
    ] = None,
    lengths: Annotated[
        int, typer.Option(min=1, help="Random lengths at which each image is interpreted.")
    ] = LENGTHS,
    held_out: Annotated[
        float, typer.Option(help="Share of the images that the head is calibrated on.")
    ] = 0.25,
    steps: Annotated[
        int,
        typer.Option(min=0, help="Optimizer steps; 0 only calibrates the rate head it has."),
    ] = 2000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    batch: Annotated[int, typer.Option(min=1)] = 32,
    workers: console.Workers = console.WORKERS,
    device: console.Device = None,
    as_json: console.Json = False,
) -> None:
    """Fit a rate head to any finished model, so that it can encode to a quality.

    Codes and features do not change. Use images that the model was not trained on, thousands of
    them if possible.
    """
    _lock_folder(context, model, folder)
    tokenizer = load(model, device=device)
    with console.progress_bars() as bars:
        metrics = fit_lengths(
            tokenizer,
            data,
            quality=quality,
            lengths=lengths,
            held_out=held_out,
            steps=steps,
            seed=seed,
            batch=batch,
            loading_workers=workers,
            progress=bars,
        )
    _write_back(tokenizer, folder or model, metrics, as_json)


def _lock_folder(context: typer.Context, model: str, folder: Path | None) -> None:
    """Lock the folder that the model is written to until the command ends."""
    if not Path(model).is_dir() and "/" not in model:
        find_folder(model)  # raises unless it is a bundled model
    bundled = model in list_models()
    if folder is None and (bundled or not Path(model).is_dir()):
        what = f"{model} is a bundled model" if bundled else f"There is no folder {model}"
        raise ConfigError(f"{what}.", "Name a folder to write to with --out.")
    context.with_resource(exclusive(folder or model))


def _write_back(
    tokenizer: Tokenizer, folder: Path | str, metrics: dict[str, float], as_json: bool
) -> None:
    tokenizer.save_pretrained(folder)
    if as_json:
        console.print_json(metrics)
    else:
        _print_metrics(metrics)
        console.out.print(f"The model is in {folder}", soft_wrap=True)


def sweep(
    preset: PresetName,
    data: console.Data,
    axes: Annotated[
        list[str],
        typer.Option("--axis", help="--axis model.quantizer.codes=256,1024. Repeatable."),
    ],
    folder: Out = Path("runs/sweep"),
    steps: Steps = None,
    batch: BatchSize = None,
    validation: Validation = None,
    cache: Cache = None,
    settings: Settings = None,
    workers: console.Workers = console.WORKERS,
    device: console.Device = None,
) -> None:
    """Train at every combination of settings and plot R² against bits."""
    with console.progress_bars() as bars:
        results = run_sweep(
            _resolved(preset, steps, batch, settings),
            data,
            _axes(axes),
            out=folder,
            progress=bars,
            validation=validation,
            cache=cache,
            device=device,
            loading_workers=workers,
        )
    if not this_process().first:
        return
    table = Table("run", "bits", "R² (channel means)", "mean length", box=None)
    for run in sorted(results, key=lambda run: float(run["bits"])):
        figures = (f"{run['bits']:.0f}", f"{run['r2_centred']:.4f}", f"{run['length_mean']:.1f}")
        table.add_row(run["name"], *figures)
    console.out.print(table)


def features(
    data: console.DataArgument,
    cache: Annotated[Path, typer.Option(*console.OUT, help="Output file.")],
    preset: Annotated[
        str, typer.Option(help="Preset whose teacher, size, fit, flips and views apply.")
    ] = "strop-xs",
    teacher: TeacherName = None,
    settings: Settings = None,
    workers: console.Workers = console.WORKERS,
    device: console.Device = None,
) -> None:
    """Write the teacher's fields of a dataset to a file, for `train --cache`."""
    from dataclasses import replace

    from strop.model.teacher import describe_teacher

    resolved = load_preset(preset, parse_assignments(settings or []))
    config = resolved.model
    if teacher is not None:
        config = replace(config, teacher=describe_teacher(teacher))
    with console.progress_bars() as bars:
        written = cache_fields(
            cache,
            data,
            config,
            resolved.training,
            device=choose_device(device),
            loading_workers=workers,
            progress=bars,
        )
    shape = " x ".join(map(str, written.fields.shape))
    size = written.path.stat().st_size / 2**30
    console.say(f"Wrote {shape} fields ({size:.2f} GiB) to {written.path}")


def _resolved(
    preset: str, steps: int | None, batch: int | None, settings: list[str] | None
) -> Preset:
    changes = parse_assignments(settings or [])
    for name, given in (("steps", steps), ("batch", batch)):
        if given is not None and changes.setdefault(f"training.{name}", given) != given:
            raise ConfigError(f"--{name} and --set training.{name} differ.", "Give one of them.")
    try:
        return load_preset(preset, changes)
    except ConfigError as error:
        error.problem = error.problem.replace("config.", "--set ", 1)
        raise


def _log(name: str) -> Callable[[Path], Callback]:
    if name not in LOGS:
        raise ConfigError(
            f"--log is {name!r}.", f"{did_you_mean(name, LOGS)}Give {' or '.join(LOGS)}."
        )
    return LOGS[name]


def _dry_run(
    preset: Preset,
    data: str | None,
    validation: str | None,
    teacher: str | None,
    device: str | None,
    as_json: bool,
) -> None:
    chosen = choose_device(device)
    found: dict[str, Any] = {}
    if data := data or preset.training.data:
        preset, found = describe_data(preset, data, validation, teacher, torch.device(chosen))
    facts: dict[str, Any] = {"config": to_dict(preset), **describe(preset), **found}
    if not as_json:
        for key, value in flatten(facts.pop("config")).items():
            console.out.print(f"{key} = {value}", highlight=False, soft_wrap=True)
        _print_metrics(facts)
        console.say("Taking a few steps ...")
    facts |= (measured := measure(preset, torch.device(chosen)))
    if as_json:
        console.print_json(facts)
    else:
        _print_metrics(measured)


def _print_metrics(metrics: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None)
    for name, value in metrics.items():
        table.add_row(name, _shown(value))
    console.out.print(table)


def _shown(value: Any) -> str:
    if isinstance(value, dict):  # phases
        return ", ".join(f"{key}: {start:,}-{end:,}" for key, (start, end) in value.items())
    if value is None:
        return "–"
    if isinstance(value, float):  # what is small keeps two digits
        return f"{value:,.4f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.2g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _axes(assignments: list[str]) -> dict[str, list[Any]]:
    """`["training.seed=0,1", "curriculum.truncation=beta,uniform"]` to the values of each key."""
    grid: dict[str, list[Any]] = {}
    for assignment in assignments:
        key, equals, text = (part.strip() for part in assignment.partition("="))
        if not (equals and key and text):
            raise ConfigError(
                f"The axis {assignment!r} has no values.", "Write it as training.seed=0,1,2."
            )
        if key in grid:
            raise ConfigError(f"The axis {key} is given twice.", f"Write it as {key}=A,B,C.")
        grid[key] = _values(text)
        if any(value in grid[key][:at] for at, value in enumerate(grid[key])):
            raise ConfigError(f"The axis {key} has a value twice.", "Give each value once.")
    return grid


def _values(text: str) -> list[Any]:
    """Values by comma: TOML each, and what is not is a string. Brackets hold a list together."""
    for listed in (text, f"[{text}]"):
        with contextlib.suppress(tomllib.TOMLDecodeError):
            if isinstance(values := tomllib.loads(f"values = {listed}")["values"], list):
                return values
    return [parse_assignments([f"value={part}"])["value"] for part in text.split(",")]
