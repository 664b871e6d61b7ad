"""The server: page and API behind the guard, on a socket of its own."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path, PurePath

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

import strop.inspector.api as api
from strop.errors import ConfigError, StropError
from strop.inspector.engine import Engine
from strop.inspector.gallery import Gallery
from strop.inspector.guard import Guard, is_loopback
from strop.model.tokenizer import Tokenizer

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
SHORTEST_TOKEN = 16


def create_app(
    tokenizer: Tokenizer,
    *,
    name: str,
    gallery: Path | None = None,
    host: str = "127.0.0.1",
    token: str | None = None,
) -> ASGIApp:
    """The whole inspector as an ASGI app.

    name     what the model is called, for the page and for the Python lines it writes
    gallery  a folder of images to look codes up in; scenes are drawn if there is none
    host     where it will be bound, which decides what Host headers are let through
    token    a secret that every visitor must know
    """
    engine = Engine(tokenizer)
    pictures = Gallery(engine, gallery)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        pictures.close()

    app = FastAPI(
        lifespan=lifespan,
        title="strop inspector",
        description="Images to programs, programs to fields, and what each token holds up.",
        version="1",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(api.build(engine, pictures, name))
    for file, content in _page().items():
        _serve_file(app, file, content)
    app.add_exception_handler(StropError, _told)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _failed)
    return Guard(app, host, token)


def serve(
    tokenizer: Tokenizer,
    *,
    name: str,
    gallery: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the inspector until interrupted; `ready` is told the address once it is bound."""
    check_token(host, token)
    bound = _bind(host, port)
    _ = tokenizer.teacher  # loaded now, not while the first visitor waits
    if tokenizer.decoder is not None:  # previews are most of the work, and on a CPU faster so
        tokenizer.decoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    app = create_app(tokenizer, name=name, gallery=gallery, host=host, token=token)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", server_header=False, timeout_keep_alive=60)
    )
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    shown = f"[{shown}]" if ":" in shown else shown
    secret = f"?token={token}" if token else ""
    ready(f"http://{shown}:{bound.getsockname()[1]}/{secret}")
    server.run(sockets=[bound])


def check_token(host: str, token: str | None) -> None:
    """Refuse to be reachable from elsewhere without a secret."""
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isalnum()):
        raise ConfigError(
            "The token is too easy to guess or holds more than letters and digits.",
            f"Give at least {SHORTEST_TOKEN} of them, such as {secrets.token_hex(16)}.",
        )
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"Bound to {host}, the inspector could be used by everyone who can reach this machine.",
            f"Give --token with a secret, such as {secrets.token_hex(16)}, or leave --host away "
            "and come through an SSH tunnel.",
        )


def _bind(host: str, port: int) -> socket.socket:
    try:
        where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With its protocol: only then is the second packet of an answer, its body, not held back
        # until the visitor's machine has acknowledged the first, which it takes 40 ms to do.
        bound = socket.socket(*where[:3])
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where[4])
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"Port {port} of {host} cannot be used ({error}).",
            "Give another with --port, or 0 for any that is free.",
        ) from error
    return bound


def _page() -> dict[str, bytes]:
    """The page's files by name, read once: no path from a visitor reaches the file system."""
    folder = resources.files("strop.inspector") / "page"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def _serve_file(app: FastAPI, file: str, content: bytes) -> None:
    kind = TYPES[PurePath(file).suffix]

    def answer() -> Response:
        return Response(content, media_type=kind)

    path = "/" if file == "index.html" else f"/{file}"
    app.add_api_route(path, answer, include_in_schema=False)


def _problem(status: int, problem: str, remedy: str) -> JSONResponse:
    return JSONResponse({"problem": problem, "remedy": remedy}, status)


def _told(_request: Request, error: Exception) -> Response:
    assert isinstance(error, StropError)
    return _problem(422, error.problem, error.remedy)


def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _problem(400, "The body is not JSON.", "Send JSON; /api.html tells which.")
    where = ".".join(str(part)[:40] for part in first["loc"])
    return _problem(422, f"{where}: {first['msg']}.", "/api.html tells what is expected.")


def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _problem(error.status_code, f"{error.detail}.", "/api.html tells what there is.")


def _failed(_request: Request, _error: Exception) -> Response:
    return _problem(500, "Something went wrong here.", "The server's terminal tells what.")
