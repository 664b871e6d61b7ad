"""`strop store` (info, check, export), `strop index` and `strop search`."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from strop.cli import console
from strop.errors import StoreError
from strop.store import coded, report
from strop.store.index import build_index
from strop.store.pictures import write_sheet
from strop.store.search import Box, Results
from strop.store.store import Store, open_store

app = typer.Typer(help="Describe, check and export stores of programs.", no_args_is_help=True)
StorePath = Annotated[str, typer.Argument(metavar="STORE", help="Folder or URL of a store.")]
Version = Annotated[
    str | None, typer.Option("--as", help="Programs that were written with --as VERSION.")
]
ModelFolder = Annotated[
    str | None, typer.Option("--model", "-m", help="The model, if it is not where the store says.")
]


@app.command()
def info(store: StorePath, version: Version = None, as_json: console.Json = False) -> None:
    """Show counts, sizes, lengths, qualities and rejects."""
    opened = open_store(store, version=version)
    facts = report.summary(opened)
    rejects = opened.rejects.to_pylist()
    if as_json:
        console.print_json({**facts, "rejected": rejects})
        return
    lines = [
        f"{facts['store']}: {facts['programs']:,} programs of {facts['model']}",
        f"  K = {facts['capacity']}, {facts['codebook_size']:,} codes, {facts['identity']}",
        f"  columns: {', '.join(facts['columns'])}",
    ]
    if facts["programs"]:
        codes = facts["length"]["mean"] * math.log2(facts["codebook_size"]) / 8
        files = console.plural(facts["fragments"], "file")
        lines.append(
            f"  size: {facts['bytes'] / 1e3:,.0f} KB in {files}, "
            f"{facts['bytes_per_image']:,.0f} bytes per image, {codes:.0f} of them codes"
        )
    for name in ("length", "quality"):
        if facts[name]:
            spread = (f"{what} {value:.4g}" for what, value in facts[name].items())
            lines.append(f"  {name}: {', '.join(spread)}")
    lines += [f"  indexed: {facts['indexed']:,}", f"  rejects: {facts['rejects']:,}"]
    console.out.print("\n".join(lines), soft_wrap=True)
    for row in rejects[:10]:
        console.complain("rejected", f"{row['key']}: {row['reason']}")
    if len(rejects) > 10:
        console.say(f"... and {len(rejects) - 10:,} more: --json lists all")


@app.command()
def check(store: StorePath, version: Version = None, as_json: console.Json = False) -> None:
    """Verify every row. The exit status is 1 if anything is damaged."""
    with console.progress_bars() as progress:
        result = report.check(open_store(store, version=version), progress)
    if as_json:
        console.print_json(result)
    else:
        console.out.print(f"{result['good']:,} of {result['programs']:,} programs are valid")
    if result["problems"]:
        console.fail("damaged", () if as_json else result["problems"])


@app.command()
def export(
    store: StorePath,
    output: Annotated[
        Path,
        typer.Option(
            *console.OUT, help="Output file: .parquet, .jsonl, or .strop if entropy-coded."
        ),
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
    as_json: console.Json = False,
) -> None:
    """Write all programs to one file. STORE may also be a .strop file, to expand it."""
    console.check_writable(output)
    found: dict[str, Any] = {}
    with console.progress_bars() as progress:
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
        console.print_json({**found, "output": str(output)})
        return
    console.say(f"Wrote {found['programs']:,} programs to {output}")
    if "of_fixed_rate" in found:
        size, share = found["bytes_per_image"], found["of_fixed_rate"]
        console.say(f"{size:.1f} bytes per image, {100 * share:.1f} % of the fixed rate")


def index(
    store: StorePath,
    version: Version = None,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Compute all vectors again."),
    ] = False,
    model: ModelFolder = None,
    device: console.Device = None,
    as_json: console.Json = False,
) -> None:
    """Index a store, so that `strop search` finds similar images.

    Run it again when the store has grown: only new programs are indexed.
    """
    opened = _with_model(store, version, model, device)
    with console.progress_bars() as progress:
        added = build_index(opened, rebuild=rebuild, progress=progress)
    facts = {"store": opened.path, "programs": len(opened), "indexed": added}
    console.show(as_json, facts, f"Indexed {added:,} of {len(opened):,} programs of {opened.path}")


def search(
    store: StorePath,
    query: Annotated[
        str | None, typer.Argument(metavar="[IMAGE]", help="Find images similar to this one.")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-k", min=1, help="Number of results.")] = 20,
    region: Annotated[
        str | None,
        typer.Option(help="Find images with a part like this one of IMAGE: x,y,w,h in pixels."),
    ] = None,
    like: Annotated[
        str | None, typer.Option(help="Find images similar to that of this key of the store.")
    ] = None,
    without: Annotated[
        str | None, typer.Option(help="Erase these tokens of the query first, such as 3,5.")
    ] = None,
    codes: Annotated[
        str | None,
        typer.Option(help='Only programs with and without some codes, such as "17 and not 903".'),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(*console.OUT, help="Contact sheet: an .html file.")
    ] = None,
    version: Version = None,
    model: ModelFolder = None,
    device: console.Device = None,
    as_json: console.Json = False,
) -> None:
    """Find images in a store by image, by region or by codes.

    A store of more than 1,024 programs needs an index: run `strop index STORE` first.
    """
    if output is not None:
        if output.suffix.lower() not in (".html", ".htm"):
            raise StoreError(f"{output.name} is not a contact sheet.", "Name it .html.")
        console.check_writable(output)
    box = None if region is None else _box(region)
    positions = [] if without is None else _positions(without)
    opened = _with_model(store, version, model, device)
    found = opened.search(query, k=count, region=box, like=like, without=positions, codes=codes)
    if output is not None:
        asked = {"image": query, "region": region, "like": like, "without": without, "codes": codes}
        about = ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
        write_sheet(opened, found, output, title=f"{about} in {opened.path}", query=query)
    if as_json:
        program = None if found.program is None else found.program[0].codes.tolist()
        console.print_json(
            {
                "store": opened.path,
                "query": program,
                "total": found.total,
                "unindexed": found.unindexed,
                "hits": [asdict(hit) for hit in found.hits],
            }
        )
    else:
        _show_hits(found)
    if output is not None:
        console.say(f"Wrote {output}")
    if found.unindexed:
        console.say(
            f"{found.unindexed:,} newer programs were not searched: strop index {opened.path}"
        )


def _with_model(store: str, version: str | None, model: str | None, device: str | None) -> Store:
    opened = open_store(store, version=version)
    if model is not None or device is not None:
        opened.model = console.load_model(model or opened.info.model, device)
    return opened


def _box(text: str) -> Box:
    try:
        x, y, width, height = map(float, text.split(","))
    except ValueError as error:
        raise StoreError(
            f"--region is {text!r}, not four numbers.", "Give x,y,width,height in pixels."
        ) from error
    return x, y, width, height


def _positions(text: str) -> list[int]:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise StoreError(f"--without is {text!r}.", "Give positions of tokens, such as 3,5.")
    return [int(part) for part in text.split(",")]


def _show_hits(found: Results) -> None:
    if found.total is not None:
        console.say(f"{found.total:,} programs fit the codes.")
    if not found.hits:
        console.say("Nothing was found.")
        return
    regions = any(hit.region for hit in found.hits)
    table = Table("score", Column("image", no_wrap=True), "length", "row", box=None)
    if regions:
        table.add_column("region")
    for hit in found.hits:
        cells = ["" if hit.score is None else f"{hit.score:.3f}", hit.key, str(hit.length)]
        cells.append(str(hit.row))
        if hit.region is not None:
            cells.append(",".join(f"{side:.0f}" for side in hit.region))
        table.add_row(*cells)
    console.out.print(table)
