"""A chat-completions server on a local port, with the answers of a test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """An HTTP answer: a completion with `text`, or a raw body."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None

    def body(self) -> bytes:
        if self.raw is not None:
            return self.raw
        usage = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}
        choice = {"index": 0, "message": {"role": "assistant", "content": self.text}}
        return json.dumps({"choices": [choice], "usage": usage}).encode()


@dataclass
class ChatServer:
    """`requests` holds (path, headers, body) of all requests."""

    base_url: str
    requests: list[tuple[str, dict[str, str], dict[str, Any]]]

    @property
    def prompts(self) -> list[str]:
        return [body["messages"][-1]["content"] for _, _, body in self.requests]


@contextmanager
def serve(answer: Callable[[int, str], Answer]) -> Iterator[ChatServer]:
    """Serve `answer(number of the request, prompt)`."""
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.path, dict(self.headers), body))
            reply = answer(len(requests) - 1, body["messages"][-1]["content"])
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield ChatServer(f"http://127.0.0.1:{server.server_port}/v1", requests)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
