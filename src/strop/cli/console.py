"""What the commands share: printing, progress bars, finding images and checking options."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from strop.errors import DataError, FormatError, ModelError, StropError
from strop.pool import cores
from strop.progress import Progress, bars

if TYPE_CHECKING:
    from strop.model.tokenizer import Tokenizer

# Output is mostly paths and messages: `a[b].png` is a name, not markup.
out = Console(markup=False, emoji=False, highlight=False)
# Progress and problems go to stderr, so that stdout can be piped.
err = Console(stderr=True, markup=False, emoji=False, highlight=False)

DEFAULT_MODEL = "photos"
OUT = ("--out", "-o")
"""The names of the option for what a command writes."""
DATA = ("--data", "-d")
"""The names of the option for a dataset, in commands whose subject is a model."""
DATA_HELP = "Dataset: a folder of images, or a spec such as voc:/data/voc?split=val."
WORKERS = min(cores(), 8)
"""How many processes read data if nothing is said."""

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help=f"Bundled name, folder or hub id of a model. Default: {DEFAULT_MODEL}.",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda. Default: a GPU if there is one.")]
Engine = Annotated[
    str, typer.Option(help="What computes: torch; or on a CPU onnx or openvino, which are faster.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Batch = Annotated[int, typer.Option(min=1, help="Images or programs per batch.")]
Data = Annotated[str, typer.Option(*DATA, help=DATA_HELP)]
DataArgument = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Bundled name, folder or hub id of a model.")
]
Workers = Annotated[
    int,
    typer.Option(
        min=0,
        show_default="one per core, at most 8",
        help="Worker processes that read data; 0 reads in this process.",
    ),
]


def progress_bars() -> AbstractContextManager[Progress]:
    """A `strop.progress.Progress` that draws bars on stderr."""
    return bars(err)


def say(text: str) -> None:
    """A line on stderr, never wrapped inside a path."""
    err.print(text, soft_wrap=True)


def complain(label: str, problem: object, colour: str = "red") -> None:
    """A problem on stderr after a coloured label, such as "error" or "skipped"."""
    err.print(Text.assemble((label, f"bold {colour}"), f" {problem}"), soft_wrap=True)


def fail(label: str, problems: Iterable[object], summary: str | None = None) -> NoReturn:
    """Print problems and end the command with status 1."""
    for problem in problems:
        complain(label, problem)
    if summary is not None:
        say(summary)
    raise typer.Exit(1)


def print_json(value: Any) -> None:
    """JSON on stdout, without colours or wrapping."""
    typer.echo(json.dumps(value, indent=2))


def show(as_json: bool, facts: Any, line: str) -> None:
    """Facts as JSON on stdout, or one line on stderr."""
    if as_json:
        print_json(facts)
    else:
        say(line)


def load_model(name: str | None, device: str | None, engine: str = "torch") -> Tokenizer:
    """Load the model given by --model on the device given by --device, run by --engine."""
    from strop.model.checkpoint import load
    from strop.model.teacher import BUNDLED

    default = BUNDLED / DEFAULT_MODEL
    if name is None and not (default / "config.json").is_file():
        raise ModelError(
            "No model was given, and none is bundled with this installation.",
            "Name one with -m MODEL, or install strop with its weights.",
        )
    return load(default if name is None else name, device=device, engine=engine)


def plural(number: int, noun: str) -> str:
    """A number and its noun: `1 program`, `1,024 programs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def check_suffix(output: Path, *suffixes: str) -> None:
    """Raise if the name of an output file does not end in one of `suffixes`."""
    if output.suffix.lower() not in suffixes:
        raise FormatError(
            f"The output {output} has an unsupported suffix.", f"Name it {' or '.join(suffixes)}."
        )


def check_writable(output: Path, *, folder: bool = False) -> None:
    """Raise before the work if `output` cannot be written; nothing is created."""
    from strop.listing import expand  # it imports torch

    expand(output)
    if output.exists() and output.is_dir() != folder:
        raise DataError(
            f"{output} is a {'file' if output.is_file() else 'folder'}.",
            f"Name a {'folder' if folder else 'file'}.",
        )
    parent = output if folder else output.parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise DataError(f"{output} cannot be written: {parent} is a file.", "Name another path.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise DataError(
            f"{output} cannot be written: {parent} is not writable.",
            "Name another path, or change its permissions.",
        )


@contextmanager
def as_typed(prefix: str) -> Iterator[None]:
    """Let errors of the library name options as they are typed: `codes.max_size` is --max-size."""
    try:
        yield
    except StropError as error:
        pattern = rf"\b{re.escape(prefix)}\.(\w+)"
        error.problem, error.remedy = (
            re.sub(pattern, lambda found: f"--{found[1].replace('_', '-')}", text)
            for text in (error.problem, error.remedy)
        )
        raise
