"""The command line: thin commands that parse options, call the library and print."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from safetensors import SafetensorError
from typer.core import TyperCommand, TyperGroup

import strop
from strop.cli.console import complain
from strop.errors import StropError, reason

COMMANDS = {
    "demo": ("strop.cli.demo", "demo", "Run the bundled models on a few images."),
    "encode": ("strop.cli.codes", "encode", "Turn images into programs."),
    "interpret": ("strop.cli.codes", "interpret", "Turn programs into the teacher's patch field."),
    "decode": ("strop.cli.codes", "decode", "Turn programs into preview images, one PNG each."),
    "export": ("strop.cli.info", "export", "Export a model as ONNX graphs."),
    "store": ("strop.cli.store", "app", "Describe, check and export stores of programs."),
    "index": ("strop.cli.store", "index", "Index a store, so that it can be searched."),
    "search": ("strop.cli.store", "search", "Find similar images in a store."),
    "train": ("strop.cli.train", "train", "Train a tokenizer."),
    "train-decoder": ("strop.cli.train", "train_decoder", "Train the pixel decoder of a model."),
    "train-lengths": ("strop.cli.train", "train_lengths", "Fit a rate head to a model."),
    "sweep": ("strop.cli.train", "sweep", "Train at every combination of settings."),
    "eval": ("strop.cli.evaluation", "eval_", "Evaluate a model."),
    "study": ("strop.cli.study", "app", "Study what the codes of a model mean."),
    "report": ("strop.cli.evaluation", "report", "Put the results of runs on one page."),
    "inspect": ("strop.cli.inspect", "inspect", "View and edit programs on a web page."),
    "data": ("strop.cli.data", "app", "Make, check and pack datasets."),
    "info": ("strop.cli.info", "info", "Describe presets and models."),
}
"""Name: module, function or Typer app in it, and the line that `strop --help` shows."""


def load_command(name: str) -> Any:
    """Import the command `name` of `COMMANDS`, as a click command."""
    module, attribute, _ = COMMANDS[name]
    command = getattr(import_module(module), attribute)
    if not isinstance(command, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(name)(command)
        command = alone
    return typer.main.get_command(command)


class _LazyCommand(TyperCommand):
    """A line of `strop --help`. The module of the command is imported when the command runs."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Import the command and hand over to it."""
        assert self.name is not None
        return load_command(self.name).make_context(*args, **options)


class _LazyGroup(TyperGroup):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name, (_, _, summary) in COMMANDS.items():
            self.commands[name] = _LazyCommand(name, help=summary)


app = typer.Typer(
    name="strop",
    cls=_LazyGroup,
    help="Images as short programs of discrete codes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"strop {strop.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Images as short programs of discrete codes."""


def main(command: Callable[[], Any] = app) -> None:
    """Run the command line. Expected errors end it with a sentence instead of a traceback."""
    warnings.showwarning = lambda message, *_, **__: complain("warning", message, "yellow")
    try:
        command()
    except StropError as error:
        complain("error", error)
        sys.exit(1)
    except (OSError, SafetensorError) as error:  # a full disk raises either
        name = getattr(error, "filename", None)
        problem = f"{name} could not be read or written" if name else "A file could not be used"
        remedy = "Check the path, its permissions and the space on the disk."
        complain("error", f"{problem} ({reason(error)}). {remedy}")
        sys.exit(1)
