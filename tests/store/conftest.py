"""A tiny model on disk, and folders of small images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from strop.images import save_image
from strop.model.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def model(
    make_tokenizer: Callable[..., Tokenizer], tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The folder of a tiny model."""
    folder = tmp_path_factory.mktemp("store") / "model"
    make_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 30 images, of which two cannot be read."""
    folder = tmp_path_factory.mktemp("photos")
    write_images(folder, range(28))
    (folder / "1").mkdir(exist_ok=True)
    (folder / "1" / "empty.jpg").write_bytes(b"")
    (folder / "zz broken.png").write_bytes(b"\x89PNG but no more")
    return folder


def write_images(folder: Path, numbers: range) -> None:
    for number in numbers:
        random = torch.Generator().manual_seed(number)
        blocks = torch.rand(3, 4, 5 + number % 3, generator=random)
        image = blocks.repeat_interleave(12, -1).repeat_interleave(12, -2)
        save_image(folder / str(number % 3) / f"ü {number:03d}.png", image)
