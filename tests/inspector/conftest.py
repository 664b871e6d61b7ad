"""One server for all tests of a worker. Without the extra `inspect` the tests are not collected."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch import Tensor

from strop.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    import httpx

sys.path.insert(0, str(Path(__file__).parent))
if importlib.util.find_spec("fastapi") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory, images: Tensor) -> Path:
    """A folder of four images and a broken one."""
    from serving import image_file

    folder = tmp_path_factory.mktemp("gallery")
    for number, image in enumerate(images[:4]):
        (folder / f"{number}.png").write_bytes(image_file(image))
    (folder / "broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="session")
def address(tokenizer: Tokenizer, gallery: Path) -> Iterator[str]:
    from serving import served

    with served(tokenizer, gallery=gallery) as address:
        yield address


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[httpx.Client]:
    import httpx

    with httpx.Client(base_url=address, timeout=60) as client:
        yield client
