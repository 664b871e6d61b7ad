"""The server: page and API behind the guard, with limits on connections and time."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path, PurePath
from threading import Timer
from types import FrameType

import h11
import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

import strop.inspector.api as api
from strop.errors import ConfigError, StropError
from strop.inspector.engine import Engine
from strop.inspector.gallery import Gallery
from strop.inspector.guard import Guard, is_loopback
from strop.model.tokenizer import Tokenizer
from strop.store.store import Store

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
MIN_TOKEN_LENGTH = 16
MAX_CONNECTIONS = 128
HEAD_SECONDS = 10.0
"""Time from opening a connection, or the first byte of a later request, to the last header."""
KEEP_ALIVE_SECONDS = 60
GRACE_SECONDS = 2
"""How long requests may still run after a signal to stop. Twice this time ends the process."""


def create_app(
    tokenizer: Tokenizer,
    *,
    name: str,
    gallery: Path | None = None,
    store: Store | None = None,
    host: str = "127.0.0.1",
    token: str | None = None,
) -> ASGIApp:
    """The inspector as an ASGI application.

    name     name of the model, for the page and for the Python code that it exports
    gallery  a folder of images to look codes up in; None for samples
    store    a store to search
    host     the address the server is bound to, which decides the accepted Host headers
    token    a secret that every client must send
    """
    engine = Engine(tokenizer)
    images = Gallery(engine, gallery)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        images.close()

    app = FastAPI(
        lifespan=lifespan,
        title="strop inspector",
        description="Images to programs, programs to fields, and the effect of each token.",
        version="1",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(api.build(engine, images, name, store))
    _add_page(app)
    for kind in (StropError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)
    return Guard(app, host, token)


class Connection(H11Protocol):
    """An HTTP/1.1 connection with a time limit for request heads, one of `MAX_CONNECTIONS`."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit, or refuse the connection if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n")
            transport.close()
        else:
            self._update_timer()

    def data_received(self, data: bytes) -> None:
        """Process data; stop the time limit when the head of the request is complete."""
        super().data_received(data)
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._stop_timer()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection without waiting for a client that does not read."""
        self.transport.abort()

    def shutdown(self) -> None:
        """Finish the current response, but do not wait for the rest of a request."""
        super().shutdown()
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.abort()

    def _update_timer(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Server(uvicorn.Server):
    """A uvicorn server that ends within seconds of a signal, whatever its threads are doing."""

    def __init__(self, app: ASGIApp, *, port: int = 0, log_level: str = "warning") -> None:
        config = uvicorn.Config(
            app,
            port=port,
            http=Connection,
            ws="none",
            log_level=log_level,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        super().__init__(config)
        self._watchdog: Timer | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down; end the process if that takes too long. The server holds no state to lose."""
        if self._watchdog is None:
            self._watchdog = Timer(2 * GRACE_SECONDS, os._exit, (128 + sig,))
            self._watchdog.daemon = True
            self._watchdog.start()
        super().handle_exit(sig, frame)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal arrives."""
        try:
            super().run(sockets)
        finally:
            if self._watchdog is not None:
                self._watchdog.cancel()


def serve(
    tokenizer: Tokenizer,
    *,
    name: str,
    gallery: Path | None = None,
    store: Store | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the inspector until interrupted. `ready` is called with the address of the page."""
    check_token(host, token)
    bound = _bind(host, port)
    _ = tokenizer.teacher  # load it before the first request
    if tokenizer.decoder is not None:  # decoding dominates, and is faster so on a CPU
        tokenizer.decoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    app = create_app(tokenizer, name=name, gallery=gallery, store=store, host=host, token=token)
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    shown = f"[{shown}]" if ":" in shown else shown
    query = f"?token={token}" if token else ""
    ready(f"http://{shown}:{bound.getsockname()[1]}/{query}")
    Server(app).run(sockets=[bound])


def check_token(host: str, token: str | None) -> None:
    """Raise if the token is weak, or if other machines can connect without one."""
    if token is not None and (len(token) < MIN_TOKEN_LENGTH or not token.isalnum()):
        raise ConfigError(
            "The token is too short or holds other characters than letters and digits.",
            f"Give at least {MIN_TOKEN_LENGTH} of them, such as {secrets.token_hex(16)}.",
        )
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"With --host {host}, everyone who can reach this machine could use the inspector.",
            f"Give --token with a secret, such as {secrets.token_hex(16)}, or omit --host and "
            "connect through an SSH tunnel.",
        )


def _bind(host: str, port: int) -> socket.socket:
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sets TCP_NODELAY only on sockets with an explicit protocol. Without it the body
        # of a response waits up to 40 ms for the acknowledgement of its head.
        bound = socket.socket(*address[:3])
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address[4])
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"Port {port} of {host} cannot be used ({error}).",
            "Give another with --port, or 0 for any free port.",
        ) from error
    return bound


def _add_page(app: FastAPI) -> None:
    """Serve the files of the page, read once: no path of a request reaches the file system."""
    for file in (resources.files("strop.inspector") / "page").iterdir():
        if file.is_file():
            kind, content = TYPES[PurePath(file.name).suffix], file.read_bytes()
            path = "/" if file.name == "index.html" else f"/{file.name}"
            app.add_api_route(path, _responder(content, kind), include_in_schema=False)


def _responder(content: bytes, kind: str) -> Callable[[], Response]:
    return lambda: Response(content, media_type=kind)


def _answer(_request: Request, error: Exception) -> Response:
    """The JSON of an error: `problem` and `remedy`."""
    status, problem, remedy = 500, "The server failed.", "See the terminal of `strop inspect`."
    if isinstance(error, StropError):
        status, problem, remedy = 422, error.problem, error.remedy
    elif isinstance(error, HTTPException):
        status, problem = error.status_code, f"{error.detail}."
        remedy = "See /api.html for all endpoints."
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            status, problem = 400, "The body is not JSON."
            remedy = "Send JSON as described at /api.html."
        else:
            where = ".".join(str(part)[:40] for part in first["loc"])
            status, problem = 422, f"{where}: {first['msg']}."
            remedy = "See /api.html for the expected request."
    return JSONResponse({"problem": problem, "remedy": remedy}, status)
