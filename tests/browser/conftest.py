"""A headless Chromium."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch import Tensor

from strop.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

sys.path.insert(0, str(Path(__file__).parents[1] / "inspector"))
if not all(map(importlib.util.find_spec, ("fastapi", "playwright"))):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no chromium here; install the distribution's (apt-get install chromium)")
    with sync_playwright() as driver:
        # As root, as in most containers, Chromium runs without its sandbox or not at all.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, images: Tensor) -> Path:
    """A model, a gallery and two images to drop."""
    from serving import image_file

    folder = tmp_path_factory.mktemp("browser")
    tokenizer.save_pretrained(folder / "model")
    (folder / "gallery").mkdir()
    for number, image in enumerate(images[:3]):
        (folder / "gallery" / f"{number}.png").write_bytes(image_file(image))
    (folder / "first.png").write_bytes(image_file(images[3]))
    (folder / "second.jpg").write_bytes(image_file(images[4], "JPEG"))
    return folder


@pytest.fixture(scope="session")
def address(tokenizer: Tokenizer, folder: Path) -> Iterator[str]:
    from serving import served

    with served(tokenizer, gallery=folder / "gallery") as address:
        yield address
