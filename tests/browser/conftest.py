"""A headless Chromium."""

from __future__ import annotations

import copy
import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch import Tensor

from strop.model.length_head import LengthHeadConfig
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

    # As a model of scenes, so that the page starts with one of few patches.
    model = copy.copy(tokenizer)
    model.about = {"data": "scenes:"}
    with served(model, gallery=folder / "gallery") as address:
        yield address


@pytest.fixture(scope="session")
def photo_address(
    make_tokenizer: Callable[..., Tokenizer], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """An inspector of a model of photographs with a rate head, and a store."""
    from serving import served

    from strop.store.encode import encode_corpus
    from strop.store.store import open_store

    rated = make_tokenizer(length_head=LengthHeadConfig(kind="rate", hidden=(32,)))
    path = tmp_path_factory.mktemp("store") / "photos.lance"
    encode_corpus(str(folder), path, model="rated", tokenizer=rated, workers=0)
    with served(rated, store=open_store(path, model=rated)) as address:
        yield address
