"""What the commands share: how they print, show progress, find images and check options."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from strop.data.layout import list_files
from strop.errors import DataError, ModelError, ProgramError
from strop.images import SUFFIXES
from strop.model.checkpoint import load
from strop.model.teacher import BUNDLED
from strop.model.tokenizer import Tokenizer

# What is printed is mostly paths and messages: `a[b].png` is a name there, not markup.
out = Console(markup=False, emoji=False, highlight=False)
# Progress and complaints go elsewhere, so that output can be piped.
err = Console(stderr=True, markup=False, emoji=False, highlight=False)

DEFAULT_MODEL = "photos"

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help=f"Bundled name, folder or hub id of the model; {DEFAULT_MODEL} if none is given.",
    ),
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


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar as a function of (done, total)."""
    with progress() as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Progress bars as a function of (task, done, total): one for each task."""
    with progress() as bar:
        tasks: dict[str, TaskID] = {}

        def update(task: str, done: int, total: int) -> None:
            if task not in tasks:
                tasks[task] = bar.add_task(task, total=total)
            bar.update(tasks[task], completed=done, total=total)

        yield update


def say(text: str) -> None:
    """A line on stderr, never broken inside a path."""
    err.print(text, soft_wrap=True)


def complain(label: str, problem: object, colour: str = "red") -> None:
    """A problem on stderr, with what it means for the command in colour before it."""
    err.print(Text.assemble((label, f"bold {colour}"), f" {problem}"), soft_wrap=True)


def print_json(value: Any) -> None:
    """JSON on stdout, without colours or wrapping."""
    typer.echo(json.dumps(value, indent=2))


def load_model(name: str | None, device: str | None) -> Tokenizer:
    """The model that --model names on the device that --device names."""
    if name is None and not (BUNDLED / DEFAULT_MODEL / "config.json").is_file():
        raise ModelError(
            "No model was given, and none is bundled with this installation.",
            "Name one (-m MODEL), or install strop whole.",
        )
    return load(BUNDLED / DEFAULT_MODEL if name is None else name, device=device)


def check_writable(output: Path, *, folder: bool = False) -> None:
    """Refuse an output that could not be written, before the work; nothing is created."""
    if output.exists() and output.is_dir() != folder:
        raise DataError(
            f"{output} is a {'file' if output.is_file() else 'folder'}.",
            f"Name a {'folder' if folder else 'file'}.",
        )
    above = output if folder else output.parent
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise DataError(f"{output} cannot be written: {above} is a file.", "Name another place.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise DataError(
            f"{output} cannot be written: {above} is not writable.",
            "Name another place, or change its permissions.",
        )


def parse_length(text: str | None) -> int | Literal["max"] | None:
    """`--length`: a whole number or "max"."""
    if text is None:
        return None
    if text == "max":
        return "max"
    if not text.isdecimal():
        raise ProgramError(
            f"A length of {text!r} is no number of codes.", 'Give a whole number, or "max".'
        )
    return int(text)


def find_images(patterns: Sequence[str]) -> list[str]:
    """Files, folders (searched to the bottom) and globs to a list of files, in order."""
    found: list[str] = []
    for pattern in patterns:
        if not pattern.strip():  # an unset variable in a shell, not this folder
            raise DataError("A path is empty.", "Give a file, a folder or a pattern; . is here.")
        path = Path(pattern).expanduser()
        if path.is_dir():
            inside = list_files(path)
            if not inside:
                raise DataError(
                    f"The folder {pattern} holds no images.",
                    f"Looked for {', '.join(sorted(SUFFIXES))}.",
                )
            found += [str(path / name) for name in inside]
        elif path.exists() or not glob.has_magic(pattern):
            found.append(str(path))  # a missing file is reported when it is read
        else:
            matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 (may be absolute)
            files = sorted(match for match in matches if Path(match).is_file())
            if not files:
                raise DataError(f"No file matches {pattern}.", "Check the pattern.")
            found += files
    return list(dict.fromkeys(found))
