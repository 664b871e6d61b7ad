"""One server for all tests of a worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor

pytest.importorskip("fastapi", reason="the inspector needs the extra `inspect`")
httpx = pytest.importorskip("httpx")
sys.path.insert(0, str(Path(__file__).parent))

from serving import image_file, served  # noqa: E402

from strop.model.tokenizer import Tokenizer  # noqa: E402


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory, images: Tensor) -> Path:
    """A folder of four images and one that is broken."""
    folder = tmp_path_factory.mktemp("gallery")
    for number, image in enumerate(images[:4]):
        (folder / f"{number}.png").write_bytes(image_file(image))
    (folder / "broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="session")
def address(tokenizer: Tokenizer, gallery: Path) -> Iterator[str]:
    with served(tokenizer, gallery=gallery) as address:
        yield address


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60) as client:
        yield client
