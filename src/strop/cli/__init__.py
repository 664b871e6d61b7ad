"""The command line: thin commands that parse, call the library and print."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer
from safetensors import SafetensorError

import strop
from strop.cli import codes, data, demo, evaluation, info, inspect, study, train
from strop.cli.console import complain
from strop.errors import StropError

app = typer.Typer(
    name="strop",
    help="Images as short programs of discrete codes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(codes.encode)
app.command()(codes.interpret)
app.command()(codes.decode)
app.command()(train.train)
app.command("train-decoder")(train.train_decoder)
app.command("train-lengths")(train.train_lengths)
app.command()(train.sweep)
app.command(context_settings=study.SETTINGS, help=study.HELP)(study.study)
app.command()(inspect.inspect)
app.command("eval")(evaluation.eval_)
app.command()(evaluation.report)
app.command()(info.info)
data.app.command()(train.features)
app.add_typer(data.app, name="data")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"strop {strop.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Images as short programs of discrete codes."""


def main() -> None:
    """Run the command line; errors that strop expects are told in a sentence, without a trace."""
    warnings.showwarning = lambda message, *_, **__: complain("warning", message, "yellow")
    try:
        app()
    except StropError as error:
        complain("error", error)
        sys.exit(1)
    except (OSError, SafetensorError) as error:  # a full disk is either, by who was writing
        complain("error", _told(error))
        sys.exit(1)


def _told(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    where = getattr(error, "filename", None)
    what = f"{where} could not be read or written" if where else "A file could not be used"
    return f"{what} ({reason}). Check the path, its permissions and the space on the disk."
