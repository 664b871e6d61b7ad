"""Small datasets in the layouts their owners use, built by the tests themselves."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

WriteImage = Callable[..., Path]
WriteIds = Callable[..., Path]


def picture(seed: int, width: int, height: int) -> Image.Image:
    """A smooth picture, so that JPEG keeps it."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def write_image() -> WriteImage:
    def write(path: Path, seed: int = 0, width: int = 40, height: int = 30) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(seed, width, height).save(path)
        return path

    return write


@pytest.fixture
def write_ids() -> WriteIds:
    """Writes a mask whose columns run through `ids`, grey, 16-bit or with a palette."""

    def write(
        path: Path, ids: list[int], width: int = 40, height: int = 30, mode: str = "L"
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        row = np.array(ids)[np.arange(width) * len(ids) // width]
        values = np.tile(row, (height, 1))
        if mode == "I;16":
            image = Image.fromarray(values.astype(np.uint16))
        else:
            image = Image.fromarray(values.astype(np.uint8))
        if mode == "P":
            image = Image.frombytes("P", (width, height), values.astype(np.uint8).tobytes())
            image.putpalette(bytes(np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8)))
        image.save(path)
        return path

    return write


@pytest.fixture
def write_tar() -> Callable[[Path, Mapping[str, bytes]], Path]:
    def write(path: Path, members: Mapping[str, bytes]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        return path

    return write


@pytest.fixture
def encoded() -> Callable[..., bytes]:
    """An image as the bytes of a file."""

    def encode(seed: int = 0, width: int = 40, height: int = 30, kind: str = "JPEG") -> bytes:
        buffer = io.BytesIO()
        picture(seed, width, height).save(buffer, kind)
        return buffer.getvalue()

    return encode


@pytest.fixture
def clevr_scene() -> Callable[..., dict[str, Any]]:
    def scene(filename: str, objects: int = 2) -> dict[str, Any]:
        return {
            "image_filename": filename,
            "image_index": 0,
            "split": "val",
            "objects": [
                {
                    "shape": ("cube", "sphere", "cylinder")[i % 3],
                    "size": "large",
                    "material": ("rubber", "metal")[i % 2],
                    "color": ("red", "cyan", "gray")[i % 3],
                    "3d_coords": [float(i), 0.0, 0.7],
                    "pixel_coords": [4 + 8 * i, 10, 11.5],
                    "rotation": 0.0,
                }
                for i in range(objects)
            ],
            "directions": {"left": [-1.0, 0.0, 0.0], "right": [1.0, 0.0, 0.0]},
            "relationships": {"left": [[], [0]], "right": [[1], []]},
        }

    return scene


@pytest.fixture
def voc_root(tmp_path: Path, write_image: WriteImage, write_ids: WriteIds) -> Path:
    """VOCdevkit with three images, of which two are in val; masks carry a palette and a rim."""
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for i, name in enumerate(["2007_000001", "2007_000002", "2008_000003"]):
        write_image(root / "JPEGImages" / f"{name}.jpg", seed=i)
        ids = [0, i + 1, 255, 20]
        write_ids(root / "SegmentationClass" / f"{name}.png", ids, mode="P")
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "val.txt").write_text("2007_000001\n2007_000002\n")
    (lists / "train.txt").write_text("2008_000003\n")
    (lists / "empty.txt").write_text("\n")
    return tmp_path


@pytest.fixture
def clevr_root(
    tmp_path: Path,
    write_image: WriteImage,
    write_ids: WriteIds,
    clevr_scene: Callable[..., dict[str, Any]],
) -> Path:
    """CLEVR v1.0 with three scenes, masks and depth."""
    root = tmp_path / "CLEVR_v1.0"
    names = [f"CLEVR_val_{i:06d}.png" for i in range(3)]
    for i, name in enumerate(names):
        write_image(root / "images" / "val" / name, seed=i)
        write_ids(root / "masks" / "val" / name, [0, 1, 2])
        write_ids(root / "depth" / "val" / name, [9500, 8250, 0], mode="I;16")
    (root / "scenes").mkdir()
    scenes = {"info": {"split": "val"}, "scenes": [clevr_scene(name) for name in names]}
    (root / "scenes" / "CLEVR_val_scenes.json").write_text(json.dumps(scenes))
    return tmp_path
