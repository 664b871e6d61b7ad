"""`strop inspect`: the web page."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from strop.cli.console import DEFAULT_MODEL, Device, load_model, out
from strop.errors import ConfigError


def inspect(
    model: Annotated[
        str | None,
        typer.Argument(
            help=f"Bundled name, folder or hub id of the model; {DEFAULT_MODEL} if none is given."
        ),
    ] = None,
    gallery: Annotated[
        Path | None,
        typer.Option(help="Folder of images to look codes up in; without one, rendered scenes."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to bind to; beyond loopback a token is needed.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(envvar="STROP_TOKEN", help="A secret that visitors must know.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    device: Device = None,
) -> None:
    """See and edit programs on a web page, served from this machine to this machine."""
    try:
        from strop.inspector.server import check_token, serve
    except ImportError as error:
        raise ConfigError(
            "The inspector needs FastAPI and uvicorn, which are not installed.",
            "Install them with `pip install 'strop[inspect]'`.",
        ) from error

    check_token(host, token)

    def ready(address: str) -> None:
        out.print(f"The inspector is at {address} (Ctrl-C ends it).", soft_wrap=True)
        if browser:
            webbrowser.open(address)

    serve(
        load_model(model, device),
        name=_shown(model),
        gallery=gallery,
        host=host,
        port=port,
        token=token,
        ready=ready,
    )


def _shown(model: str | None) -> str:
    """The model's name for visitors, who need not know where on this disk it lies."""
    if model is None:
        return DEFAULT_MODEL
    return Path(model).name if Path(model).is_absolute() else model
