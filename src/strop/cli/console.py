"""What the commands share: printing, progress bars, finding images and checking options."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from strop.errors import DataError, ModelError, ProgramError
from strop.progress import Progress

if TYPE_CHECKING:
    from strop.model.tokenizer import Tokenizer

# Output is mostly paths and messages: `a[b].png` is a name, not markup.
out = Console(markup=False, emoji=False, highlight=False)
# Progress and problems go to stderr, so that stdout can be piped.
err = Console(stderr=True, markup=False, emoji=False, highlight=False)

DEFAULT_MODEL = "photos"

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help=f"Bundled name, folder or hub id of a model. Default: {DEFAULT_MODEL}.",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda. Default: a GPU if there is one.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Batch = Annotated[int, typer.Option(min=1, help="Batch size on the device.")]


class _RateColumn(ProgressColumn):
    """Items per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f}/s" if task.speed else "", style="progress.data.speed")


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A `strop.progress.Progress` that draws a bar on stderr for each task.

    A bar shows count, rate and time left. Text after a colon in the name of a task is its status:
    "training" and "training: loss 0.31" are the same bar.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=err, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(task: str, done: int, total: int) -> None:
            name = task.partition(":")[0]
            if name not in tasks:
                tasks[name] = bars.add_task(task, total=total)
            bars.update(tasks[name], description=task, completed=done, total=total)

        yield report


@contextmanager
def counting(task: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar as a function of (done, total)."""
    with progress_bars() as report:
        yield lambda done, total: report(task, done, total)


def say(text: str) -> None:
    """A line on stderr, never wrapped inside a path."""
    err.print(text, soft_wrap=True)


def complain(label: str, problem: object, colour: str = "red") -> None:
    """A problem on stderr after a coloured label, such as "error" or "skipped"."""
    err.print(Text.assemble((label, f"bold {colour}"), f" {problem}"), soft_wrap=True)


def print_json(value: Any) -> None:
    """JSON on stdout, without colours or wrapping."""
    typer.echo(json.dumps(value, indent=2))


def load_model(name: str | None, device: str | None) -> Tokenizer:
    """Load the model given by --model on the device given by --device."""
    from strop.model.checkpoint import load
    from strop.model.teacher import BUNDLED

    default = BUNDLED / DEFAULT_MODEL
    if name is None and not (default / "config.json").is_file():
        raise ModelError(
            "No model was given, and none is bundled with this installation.",
            "Name one with -m MODEL, or install strop with its weights.",
        )
    return load(default if name is None else name, device=device)


def check_writable(output: Path, *, folder: bool = False) -> None:
    """Raise before the work if `output` cannot be written; nothing is created."""
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


def parse_length(text: str | None) -> int | Literal["max", "search"] | None:
    """`--length`: a whole number, "max" or "search"."""
    if text is None:
        return None
    if text == "max":
        return "max"
    if text == "search":
        return "search"
    if not text.isdecimal() or len(text) > 9:
        raise ProgramError(
            f"--length is {text[:20]!r}, not a number of codes.",
            'Give a whole number, "max", or "search".',
        )
    return int(text)
