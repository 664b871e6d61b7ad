"""`strop store`: info, check, export."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from strop.cli.console import (
    OUT,
    Json,
    check_writable,
    complain,
    fail,
    out,
    plural,
    print_json,
    progress_bars,
    say,
)
from strop.store import coded, report
from strop.store.store import open_store

app = typer.Typer(help="Describe, check and export stores of programs.", no_args_is_help=True)
StorePath = Annotated[str, typer.Argument(metavar="STORE", help="Folder or URL of a store.")]
Version = Annotated[
    str | None, typer.Option("--as", help="Programs that were written with --as VERSION.")
]


@app.command()
def info(store: StorePath, version: Version = None, as_json: Json = False) -> None:
    """Show counts, sizes, lengths, qualities and rejects."""
    opened = open_store(store, version=version)
    facts = report.summary(opened)
    rejects = opened.rejects.to_pylist()
    if as_json:
        print_json({**facts, "rejected": rejects})
        return
    lines = [
        f"{facts['store']}: {facts['programs']:,} programs of {facts['model']}",
        f"  K = {facts['capacity']}, {facts['codebook_size']:,} codes, {facts['identity']}",
        f"  columns: {', '.join(facts['columns'])}",
    ]
    if facts["programs"]:
        codes = facts["length"]["mean"] * math.log2(facts["codebook_size"]) / 8
        lines.append(
            f"  size: {facts['bytes'] / 1e3:,.0f} KB in {plural(facts['fragments'], 'file')}, "
            f"{facts['bytes_per_image']:,.0f} bytes per image, {codes:.0f} of them codes"
        )
    for name in ("length", "quality"):
        if facts[name]:
            lines.append(f"  {name}: {_spread(facts[name])}")
    lines += [f"  indexed: {facts['indexed']:,}", f"  rejects: {facts['rejects']:,}"]
    out.print("\n".join(lines), soft_wrap=True)
    for row in rejects[:10]:
        complain("rejected", f"{row['key']}: {row['reason']}")
    if len(rejects) > 10:
        say(f"... and {len(rejects) - 10:,} more: --json lists all")


@app.command()
def check(store: StorePath, version: Version = None, as_json: Json = False) -> None:
    """Verify every row. The exit status is 1 if anything is damaged."""
    with progress_bars() as progress:
        result = report.check(open_store(store, version=version), progress)
    if as_json:
        print_json(result)
    else:
        out.print(f"{result['good']:,} of {result['programs']:,} programs are valid")
    if result["problems"]:
        fail("damaged", () if as_json else result["problems"])


@app.command()
def export(
    store: StorePath,
    output: Annotated[
        Path, typer.Option(*OUT, help="Output file: .parquet, .jsonl, or .strop if entropy-coded.")
    ],
    version: Version = None,
    entropy_coded: Annotated[
        bool,
        typer.Option(help="Write a .strop file, coded with the prior of the model: the smallest."),
    ] = False,
    prior: Annotated[
        Path | None,
        typer.Option(help="File of the prior; by default that of the model, if it is bundled."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write all programs to one file. STORE may also be a .strop file, to expand it."""
    check_writable(output)
    found: dict[str, Any] = {}
    with progress_bars() as progress:
        if store.endswith(coded.SUFFIX):
            program = coded.read_coded(store, prior=prior)
            program.save(output)
            found["programs"] = len(program)
        elif entropy_coded:
            opened = open_store(store, version=version)
            found = coded.export_coded(opened, output, prior=prior, progress=progress)
        else:
            opened = open_store(store, version=version)
            found["programs"] = report.export(opened, output, progress)
    if as_json:
        print_json({**found, "output": str(output)})
        return
    say(f"Wrote {found['programs']:,} programs to {output}")
    if "of_fixed_rate" in found:
        size, share = found["bytes_per_image"], found["of_fixed_rate"]
        say(f"{size:.1f} bytes per image, {100 * share:.1f} % of the fixed rate")


def _spread(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
