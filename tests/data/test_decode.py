"""Masks and maps of depth, whole and broken."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
import torch
from PIL import Image

from strop.data.decode import nearest, read_depth, read_ids
from strop.errors import DataError


@pytest.mark.parametrize(
    "error", [struct.error, zlib.error, RuntimeError, SyntaxError, OSError, IndexError]
)
def test_whatever_pillow_raises_names_the_file(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("from a decoder")

    monkeypatch.setattr(Image, "open", fail)
    for read in (read_ids, read_depth):
        with pytest.raises(DataError, match=r"a\.png is damaged or cut short \(from a decoder"):
            read(b"x", "a.png")


def test_what_we_say_ourselves_is_not_damage(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="has mode RGB"):
        read_ids(str(tmp_path / "a.png"), "a.png")
    with pytest.raises(DataError, match=r"b\.png is missing"):
        read_ids(str(tmp_path / "b.png"), "b.png")


def test_the_nearest_pixel_is_that_at_the_centre() -> None:
    rows = torch.arange(6)[:, None].expand(6, 3)
    assert nearest(rows, 2, 1).tolist() == [[1], [4]]  # centres at 1.5 and 4.5
    assert nearest(rows.T, 1, 2).tolist() == [[1, 4]]
    assert nearest(rows.T, 3, 12)[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
