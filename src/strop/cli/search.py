"""`strop index` and `strop search`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from strop.cli.console import (
    OUT,
    Device,
    Json,
    check_writable,
    load_model,
    out,
    print_json,
    progress_bars,
    say,
    show,
)
from strop.cli.store import StorePath, Version
from strop.errors import StoreError
from strop.store.index import build_index
from strop.store.pictures import write_sheet
from strop.store.search import Box, Results
from strop.store.store import Store, open_store

ModelFolder = Annotated[
    str | None, typer.Option("--model", "-m", help="The model, if it is not where the store says.")
]


def index(
    store: StorePath,
    version: Version = None,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Compute all vectors again."),
    ] = False,
    model: ModelFolder = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Index a store, so that `strop search` finds similar images.

    Run it again when the store has grown: only new programs are indexed.
    """
    opened = _open(store, version, model, device)
    with progress_bars() as progress:
        added = build_index(opened, rebuild=rebuild, progress=progress)
    facts = {"store": opened.path, "programs": len(opened), "indexed": added}
    show(as_json, facts, f"Indexed {added:,} of {len(opened):,} programs of {opened.path}")


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
    output: Annotated[Path | None, typer.Option(*OUT, help="Contact sheet: an .html file.")] = None,
    version: Version = None,
    model: ModelFolder = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Find images in a store by image, by region or by codes.

    A store of more than 1,024 programs needs an index: run `strop index STORE` first.
    """
    if output is not None:
        if output.suffix.lower() not in (".html", ".htm"):
            raise StoreError(f"{output.name} is not a contact sheet.", "Name it .html.")
        check_writable(output)
    box = None if region is None else _box(region)
    positions = [] if without is None else _positions(without)
    opened = _open(store, version, model, device)
    found = opened.search(query, k=count, region=box, like=like, without=positions, codes=codes)
    if output is not None:
        asked = {"image": query, "region": region, "like": like, "without": without, "codes": codes}
        about = ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
        write_sheet(opened, found, output, title=f"{about} in {opened.path}", query=query)
    if as_json:
        program = None if found.program is None else found.program[0].codes.tolist()
        print_json(
            {
                "store": opened.path,
                "query": program,
                "total": found.total,
                "unindexed": found.unindexed,
                "hits": [asdict(hit) for hit in found.hits],
            }
        )
    else:
        _show(found)
    if output is not None:
        say(f"Wrote {output}")
    if found.unindexed:
        say(f"{found.unindexed:,} newer programs were not searched: strop index {opened.path}")


def _open(store: str, version: str | None, model: str | None, device: str | None) -> Store:
    opened = open_store(store, version=version)
    if model is not None or device is not None:
        opened.model = load_model(model or opened.info.model, device)
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


def _show(found: Results) -> None:
    if found.total is not None:
        say(f"{found.total:,} programs fit the codes.")
    if not found.hits:
        say("Nothing was found.")
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
    out.print(table)
