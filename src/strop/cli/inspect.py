"""`strop inspect`: the web page."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from strop.cli import console
from strop.errors import ConfigError
from strop.store.store import open_store


def inspect(
    model: Annotated[
        str | None,
        typer.Argument(
            help=f"Bundled name, folder or hub id of a model. Default: {console.DEFAULT_MODEL}."
        ),
    ] = None,
    gallery: Annotated[
        Path | None,
        typer.Option(help="Folder of images to look codes up in. Default: sample images."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Store to search, on the page's Search tab.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free port.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to bind to. Other than loopback needs --token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(envvar="STROP_TOKEN", help="A secret that clients must send.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    device: console.Device = None,
    engine: console.Engine = "torch",
) -> None:
    """View and edit programs on a web page. Only this machine can open it by default."""
    try:
        from strop.inspector.server import check_token, serve
    except ImportError as error:
        raise ConfigError(
            "The inspector needs FastAPI and uvicorn, which are not installed.",
            "Install them with `pip install 'strop[inspect]'`.",
        ) from error

    check_token(host, token)

    def ready(address: str) -> None:
        console.out.print(f"The inspector is at {address} (Ctrl-C to stop).", soft_wrap=True)
        if browser:
            webbrowser.open(address)

    opened = None
    if store is None:
        tokenizer = console.load_model(model, device, engine)
    else:
        opened = open_store(store)
        model = model or opened.info.model
        tokenizer = opened.model = console.load_model(model, device, engine)
    shown = model or console.DEFAULT_MODEL
    if Path(shown).is_absolute():
        shown = Path(shown).name  # clients do not see the folder that the model is in
    serve(
        tokenizer,
        name=shown,
        gallery=gallery,
        store=opened,
        host=host,
        port=port,
        token=token,
        ready=ready,
    )
