"""`strop data`: scenes, check, pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer
from rich.table import Table

from strop.cli.console import (
    Device,
    Json,
    complain,
    counting,
    out,
    print_json,
    say,
)
from strop.cli.train import features
from strop.data.check import CheckReport, check_dataset
from strop.data.pack import pack_dataset
from strop.data.rendered import write_scenes
from strop.device import choose_device
from strop.errors import ConfigError
from strop.images import Fit

app = typer.Typer(help="Make, check and pack datasets.", no_args_is_help=True)
Spec = Annotated[
    str, typer.Argument(help="Such as voc:/data?split=val, scenes:?n=256, or a folder of images.")
]
Workers = Annotated[int, typer.Option(min=0, help="Processes that read; 0 for none but this one.")]


@app.command()
def scenes(
    folder: Annotated[Path, typer.Option("--out", help="Where the dataset goes.")],
    n: Annotated[int, typer.Option("--n", min=1, help="How many scenes.")] = 10_000,
    size: Annotated[int, typer.Option(min=1, help="Pixels along a side.")] = 128,
    seed: Annotated[int, typer.Option(help="Other seeds, other scenes.")] = 0,
    split: Annotated[str, typer.Option(help="Name of the split, as in CLEVR's files.")] = "train",
    batch: Annotated[int, typer.Option(min=1, help="Scenes rendered together.")] = 32,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that render; 0 for none but this one.")
    ] = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Render scenes and write them in CLEVR's layout, with masks and depth.

    Called again after an interruption, it goes on where it stopped.
    """
    chosen = choose_device(device)
    with counting("rendering") as count:
        written = write_scenes(
            folder,
            n,
            size,
            seed,
            split,
            batch_size=batch,
            device=chosen,
            workers=workers,
            progress=lambda _, done, total: count(done, total),
        )
    if as_json:
        print_json({"scenes": n, "output": str(folder), "descriptions": str(written)})
    else:
        say(f"Wrote {n} scenes; their descriptions are in {written}")


@app.command()
def check(spec: Spec, workers: Workers = 2, as_json: Json = False) -> None:
    """Read every record of a dataset and say what is there and what is broken.

    The exit status is 1 if anything is broken.
    """
    with counting("checking") as count:
        report = check_dataset(spec, workers, count)
    if as_json:
        print_json(report.as_dict())
    else:
        _print_report(report)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def pack(
    spec: Spec,
    folder: Annotated[Path, typer.Option("--out", help="Where the packed dataset goes.")],
    size: Annotated[int, typer.Option(min=1, help="Pixels along a side.")] = 256,
    fit: Annotated[str, typer.Option(help="squash, or crop to the centre.")] = "squash",
    workers: Workers = 2,
    as_json: Json = False,
) -> None:
    """Write a dataset as raw uint8, which loads without decoding: `packed:DIR` from then on."""
    if fit not in ("squash", "crop"):
        raise ConfigError(f"--fit is {fit!r}.", "Give squash or crop.")
    with counting("packing") as count:
        report = pack_dataset(spec, folder, size, cast(Fit, fit), workers, count)
    if as_json:
        print_json(
            {
                "records": report.count,
                "size": report.size,
                "parts": list(report.parts),
                "bytes": report.bytes,
                "output": str(report.path),
                "skipped": [
                    {"index": index, "reason": reason} for index, reason in report.broken.items()
                ],
            }
        )
    else:
        say(
            f"Wrote {report.count} records of {report.size} px ({', '.join(report.parts)}) to "
            f"{report.path}: {report.bytes / 2**20:,.0f} MiB"
        )
    for problem in report.broken.values():
        complain("skipped", problem)
    if report.broken:
        raise typer.Exit(1)


def _print_report(report: CheckReport) -> None:
    out.print(f"{report.name}: {report.good} of {report.count} records are whole")
    for (width, height), number in report.sizes.most_common(5):
        out.print(f"  {width} x {height} px: {number}")
    if report.parts.total():
        parts = ", ".join(f"{part} ({number})" for part, number in report.parts.items() if number)
        out.print(f"  parts: {parts}")
    if report.depth:
        out.print(f"  depth: {report.depth[0]:.2f} to {report.depth[1]:.2f} m")
    if report.void is not None:
        out.print(f"  unlabelled pixels: {report.void:.1%}")
    if report.labels or report.pixels:
        table = Table("class", "images", "pixels", box=None)
        for name in dict.fromkeys([*report.labels, *report.pixels]):
            images = str(report.labels[name]) if name in report.labels else ""
            share = f"{report.pixels[name]:.2%}" if name in report.pixels else ""
            table.add_row(name, images, share)
        out.print(table)
    for problem in (*report.problems, *report.broken.values()):
        complain("broken", problem)


app.command()(features)
