"""`strop eval` and `strop report`: a model's figures, and a page of them beside the paper's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from strop.analysis.evaluate import choose_suites, evaluate, open_splits
from strop.analysis.evaluation_report import write_report
from strop.analysis.metric_info import METRICS
from strop.analysis.registry import EVALUATIONS
from strop.cli import console

Specs = Annotated[
    list[str],
    typer.Option(*console.DATA, help=f"{console.DATA_HELP} Repeatable."),
]


def eval_(
    model: Annotated[str, typer.Argument(help="Bundled name, folder or hub id of the model.")],
    data: Specs,
    suite: Annotated[
        list[str],
        typer.Option(help=f"{', '.join(EVALUATIONS)}, or all. Repeatable."),
    ] = ["all"],  # noqa: B006 (typer copies it)
    train: Annotated[
        list[str],
        typer.Option(help="Dataset to fit probes and baselines on, one for each --data."),
    ] = [],  # noqa: B006
    folder: Annotated[Path, typer.Option(*console.OUT, help="Folder for the results.")] = Path(
        "evaluation"
    ),
    protocol: Annotated[str, typer.Option(help="Probe protocol: paper or strong.")] = "paper",
    probe_length: Annotated[
        list[int],
        typer.Option(help="Probe at this forced length too. Repeatable."),
    ] = [],  # noqa: B006
    lpips: Annotated[
        Path | None, typer.Option(help="LPIPS weights (AlexNet) as safetensors.", exists=True)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of probes, baselines and intervals.")] = 0,
    batch: console.Batch = 32,
    workers: console.Workers = console.WORKERS,
    device: console.Device = None,
    as_json: console.Json = False,
) -> None:
    """Evaluate a model: alignment, pixels, rate, and probes of frozen representations.

    Repeat the command to continue an interrupted run.
    """
    console.check_writable(folder, folder=True)
    choose_suites(suite)
    open_splits(data, train)  # before the model: what is misspelt is told at once
    with console.progress_bars() as bars:
        parts = evaluate(
            console.load_model(model, device),
            data,
            folder,
            suites=suite,
            train=train,
            protocol=protocol,
            probe_lengths=probe_length,
            lpips=lpips,
            name=Path(model).name,
            seed=seed,
            batch=batch,
            workers=workers,
            progress=bars,
            note=console.say,
        )
    if as_json:
        console.print_json(parts)
        return
    for part in parts:
        _show(part)
    console.say(f"Results are in {folder}; `strop report {folder}` makes a page of them.")


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders that `strop eval` wrote."),
    ],
    folder: Annotated[Path, typer.Option(*console.OUT, help="Folder for the page.")] = Path(
        "report"
    ),
    as_json: console.Json = False,
) -> None:
    """Put the results of one or more runs on one page, next to the paper's."""
    console.check_writable(folder, folder=True)
    written = write_report(runs, folder)
    if as_json:
        console.print_json(json.loads((folder / "report.json").read_text(encoding="utf-8")))
        return
    for path in written:
        console.say(f"Wrote {path}")


def _show(part: dict[str, Any]) -> None:
    title = f"{part['suite']} on {part['data']}"
    if values := part.get("values"):
        table = Table("", "", "95 %", title=title, box=None)
        for name, value in values.items():
            measure = METRICS[name]
            interval = part.get("intervals", {}).get(name)
            bounds = " to ".join(map(measure.format, interval)) if interval else ""
            table.add_row(measure.heading, measure.format(value), bounds)
        console.out.print(table)
    if probed := part.get("representations"):
        names = list(next(iter(probed.values()))["values"])
        table = Table("", *(METRICS[name].heading for name in names), title=title, box=None)
        for representation, found in probed.items():
            cells = [METRICS[name].format(found["values"][name]) for name in names]
            table.add_row(representation, *cells)
        console.out.print(table)
    for note in part["notes"]:
        console.say(note)
