"""`strop study`: what the codes of a model mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.markdown import Markdown

from strop.analysis.findings import Table
from strop.analysis.frame import find_analysis, run_study
from strop.analysis.registry import STUDIES
from strop.cli.console import (
    Batch,
    Device,
    Json,
    check_writable,
    out,
    print_json,
    progress_bars,
    say,
)
from strop.errors import ConfigError
from strop.model.checkpoint import load

HELP = (
    "Study what the codes of a model mean.\n\n"
    + "\n\n".join(f"{name}: {entry.summary}." for name, entry in STUDIES.items())
    + "\n\nFurther options are the study's own; docs/reference.md lists them."
)
app = typer.Typer()


# Options that the command does not know are the study's.
@app.command(help=HELP, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def study(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Bundled name, folder or hub id of the model.")],
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(STUDIES)}.")],
    data: Annotated[str, typer.Option(help="Such as scenes:?n=200, or voc:/data?split=val.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for JSON, Markdown and figures.")],
    batch: Batch = 32,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read images.")] = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run a study on a dataset; the command line shows `HELP`."""
    options = parse_options(find_analysis(name, STUDIES, "study").options, context.args)
    check_writable(folder, folder=True)
    tokenizer = load(model, device=device)
    tokenizer.precision = "fp32"  # studies look at small differences between fields
    with progress_bars() as bars:
        found = run_study(
            tokenizer, name, data, folder, options, batch=batch, workers=workers, progress=bars
        )
    if as_json:
        print_json(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
        return
    for table in found["tables"]:
        out.print(Markdown(Table(**table).markdown()))
    say(f"Wrote {folder / name}.json, {name}.md and {len(found['figures'])} figures")


def parse_options(kind: type, arguments: list[str]) -> dict[str, Any]:
    """`--base-url URL --think --sizes 32,64` to values for the dataclass `kind`."""
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word, equals, text = rest.pop(0).partition("=")
        key = word.removeprefix("--").replace("-", "_")
        if not word.startswith("--"):
            raise ConfigError(f"{word!r} is not an option.", "Options are written --name value.")
        if not equals and rest and not rest[0].startswith("--"):
            equals, text = "=", rest.pop(0)
        values[key] = _value(str(hints.get(key, str)), text) if equals else True
    return values


def _value(hint: str, text: str) -> Any:
    """`text` as the number, list or text that the option's type asks for."""
    if "str" in hint and "tuple" not in hint:
        return text
    if "tuple" in hint:
        parts = text.split(",")
        return parts if "str" in hint else [_value("number", part) for part in parts]
    try:
        return json.loads(text)
    except ValueError:
        return text
