"""What the commands share: where they print, how they show progress, how they find images."""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from strop.errors import ConfigError, DataError, ProgramError
from strop.images import SUFFIXES

out = Console()
err = Console(stderr=True)  # progress and complaints, so that output can be piped

Model = Annotated[
    str, typer.Option("--model", "-m", help="Bundled name, folder or hub id of the model.")
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Batch = Annotated[int, typer.Option(min=1, help="Images on the device at a time.")]


class RateColumn(ProgressColumn):
    """Finished per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f}/s" if task.speed else "", style="progress.data.speed")


def progress() -> Progress:
    """A bar with count, rate and time left, on stderr."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
    )


def print_json(value: Any) -> None:
    """JSON on stdout, without colours or wrapping."""
    typer.echo(json.dumps(value, indent=2))


def check_device(device: str | None) -> str | None:
    """`device` if it exists here; None stays None and means "choose"."""
    if device is None:
        return None
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ConfigError(f"There is no device {device!r}.", "Give cpu or cuda.") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError("There is no GPU that torch can use here.", "Use --device cpu.")
    return device


def parse_length(text: str | None) -> int | Literal["max"] | None:
    """`--length`: a whole number or "max"."""
    if text is None:
        return None
    if text == "max":
        return "max"
    if not text.isdecimal():
        raise ProgramError(f"A length of {text!r} is no number.", 'Give a number, or "max".')
    return int(text)


def find_images(patterns: Sequence[str]) -> list[str]:
    """Files, folders (searched to the bottom) and globs to a list of files, in order."""
    found: list[str] = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
            if not inside:
                raise DataError(
                    f"The folder {pattern} holds no images.",
                    f"Looked for {', '.join(sorted(SUFFIXES))}.",
                )
            found += map(str, inside)
        elif path.exists() or not glob.has_magic(pattern):
            found.append(str(path))  # a missing file is reported when it is read
        else:
            matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (may be absolute)
            if not matches:
                raise DataError(f"Nothing matches {pattern}.", "Check the pattern.")
            found += [match for match in matches if Path(match).is_file()]
    return list(dict.fromkeys(found))
