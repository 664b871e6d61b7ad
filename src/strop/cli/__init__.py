"""The command line: thin commands that parse, call the library and print."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import strop
from strop.cli import codes, data, demo, info, train
from strop.cli.console import err
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
app.command()(train.sweep)
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
    try:
        app()
    except StropError as error:
        err.print(f"[bold red]error[/bold red] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)
