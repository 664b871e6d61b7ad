"""An inspector on a real socket, for tests."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image
from torch import Tensor

from strop.inspector.server import Server, create_app
from strop.model.tokenizer import Tokenizer


@contextmanager
def served(tokenizer: Tokenizer, **options: Any) -> Iterator[str]:
    """Serve an inspector within the block; the value is its address."""
    app = create_app(tokenizer, **{"name": "model", **options})
    server = Server(app, log_level="critical")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def image_file(image: Tensor, kind: str = "PNG") -> bytes:
    """The bytes of an image file, from uint8 `(3, H, W)`."""
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, format=kind)
    return file.getvalue()


def base64_file(image: Tensor, kind: str = "PNG") -> str:
    return base64.b64encode(image_file(image, kind)).decode()
