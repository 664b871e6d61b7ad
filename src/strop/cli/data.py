"""`strop data`: scenes, check, pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from strop.cli import console
from strop.cli.train import features
from strop.data.check import CheckReport, check_dataset
from strop.data.pack import pack_dataset
from strop.data.rendered import write_scenes
from strop.device import choose_device
from strop.images import Fit

app = typer.Typer(help="Make, check and pack datasets.", no_args_is_help=True)


@app.command()
def scenes(
    folder: Annotated[Path, typer.Option(*console.OUT, help="Output folder.")],
    n: Annotated[int, typer.Option("--n", min=1, help="Number of scenes.")] = 10_000,
    size: Annotated[int, typer.Option(min=1, help="Pixels along a side.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the scenes.")] = 0,
    split: Annotated[str, typer.Option(help="Name of the split in the file names.")] = "train",
    batch: Annotated[int, typer.Option(min=1, help="Scenes rendered in one batch.")] = 32,
    workers: console.Workers = console.WORKERS,
    device: console.Device = None,
    as_json: console.Json = False,
) -> None:
    """Render scenes and write them in CLEVR's layout, with masks and depth.

    Repeat the command to resume after an interruption.
    """
    console.check_writable(folder, folder=True)
    chosen = choose_device(device)
    with console.progress_bars() as progress:
        written = write_scenes(
            folder,
            n,
            size,
            seed,
            split,
            batch_size=batch,
            device=chosen,
            workers=workers,
            progress=progress,
        )
    facts = {"scenes": n, "output": str(folder), "descriptions": str(written)}
    console.show(as_json, facts, f"Wrote {n} scenes; their descriptions are in {written}")


@app.command()
def check(
    data: console.DataArgument,
    workers: console.Workers = console.WORKERS,
    as_json: console.Json = False,
) -> None:
    """Read every record of a dataset and report its contents and what is broken.

    The exit status is 1 if anything is broken.
    """
    with console.progress_bars() as progress:
        report = check_dataset(data, workers, progress)
    if as_json:
        console.print_json(report.as_dict())
    else:
        _print_report(report)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def pack(
    data: console.DataArgument,
    folder: Annotated[Path, typer.Option(*console.OUT, help="Output folder.")],
    size: Annotated[int, typer.Option(min=1, help="Pixels along a side.")] = 256,
    fit: Annotated[Fit, typer.Option(help="How images are made square.")] = "squash",
    workers: console.Workers = console.WORKERS,
    as_json: console.Json = False,
) -> None:
    """Write a dataset as raw uint8 that loads without decoding. Its spec is `packed:DIR`."""
    with console.progress_bars() as progress:
        report = pack_dataset(data, folder, size, fit, workers, progress)
    facts = {
        "records": report.count,
        "size": report.size,
        "parts": list(report.parts),
        "bytes": report.bytes,
        "output": str(report.path),
        "skipped": [{"index": at, "reason": reason} for at, reason in report.broken.items()],
    }
    wrote = f"Wrote {report.count} records of {report.size} px ({', '.join(report.parts)}) to "
    console.show(as_json, facts, wrote + f"{report.path}: {report.bytes / 2**20:,.0f} MiB")
    if report.broken:
        console.fail("skipped", report.broken.values())


def _print_report(report: CheckReport) -> None:
    console.out.print(f"{report.name}: {report.good} of {report.count} records are readable")
    for (width, height), number in report.sizes.most_common(5):
        console.out.print(f"  {width} x {height} px: {number}")
    if report.parts.total():
        parts = ", ".join(f"{part} ({number})" for part, number in report.parts.items() if number)
        console.out.print(f"  parts: {parts}")
    if report.depth:
        console.out.print(f"  depth: {report.depth[0]:.2f} to {report.depth[1]:.2f} m")
    if report.void is not None:
        console.out.print(f"  unlabelled pixels: {report.void:.1%}")
    if report.labels or report.pixels:
        table = Table("class", "images", "pixels", box=None)
        for name in dict.fromkeys([*report.labels, *report.pixels]):
            images = str(report.labels[name]) if name in report.labels else ""
            share = f"{report.pixels[name]:.2%}" if name in report.pixels else ""
            table.add_row(name, images, share)
        console.out.print(table)
    for problem in (*report.problems, *report.broken.values()):
        console.complain("broken", problem)


app.command()(features)
