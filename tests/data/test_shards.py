"""Tar shards in WebDataset layout."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from strop.data import VOID, Loader, check_dataset, open_dataset
from strop.errors import DataError, ImageError

Encode = Callable[..., bytes]
WriteTar = Callable[..., Path]


def grey(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


def test_parts(tmp_path: Path, write_tar: WriteTar, encoded: Encode, clevr_scene: Any) -> None:
    ids = np.tile(np.array([0, 3, 255, 7], dtype=np.uint8).repeat(10), (30, 1))
    depth = np.full((30, 40), 2345, dtype=np.uint16)
    write_tar(
        tmp_path / "a-000.tar",
        {
            "x/0001.jpg": encoded(1),
            "x/0001.mask.png": grey(ids),
            "x/0001.instance.png": grey(ids % 4),
            "x/0001.depth.png": grey(depth),
            "x/0001.json": json.dumps(clevr_scene("0001.jpg")).encode(),
            "x/0001.cls": b"2\n",
            "x/0002.PNG": encoded(2, kind="PNG"),
            "x/0002.json": b'{"caption": "no scene"}',
            "x/._0001.jpg": b"junk that a Mac leaves",
            "notes.txt": b"no image",
        },
    )
    data = open_dataset(f"shards:{tmp_path}/a-*.tar?classes=3")
    assert len(data) == 2
    record = data[0]
    assert record.name == "a-000/x/0001"
    assert record.semantic is not None
    assert record.semantic.unique().tolist() == [0, 3, 7, VOID]
    assert record.instance is not None
    assert record.depth is not None
    assert record.depth.unique().tolist() == pytest.approx([2.345])
    assert record.labels is not None
    assert record.labels.tolist() == [False, False, True]
    assert record.scene is not None
    assert data[1].scene is None
    assert data[1].semantic is None
    assert torch.equal(record.image, open_dataset(f"shards:{tmp_path}")[0].image)


def test_several_shards_and_random_access(
    tmp_path: Path, write_tar: WriteTar, encoded: Encode
) -> None:
    for shard in range(3):
        members = {f"{i:03d}.jpg": encoded(10 * shard + i) for i in range(5)}
        write_tar(tmp_path / f"s-{shard}.tar", members)
    data = open_dataset(f"shards:{tmp_path}")
    assert len(data) == 15
    names = [data[i].name for i in range(15)]
    assert len(set(names)) == 15
    assert names[7] == "s-1/002"
    again = pickle.loads(pickle.dumps(data))  # noqa: S301 (what a spawned worker gets)
    for i in (14, 0, 7):
        assert torch.equal(data[i].image, again[i].image)


def test_long_names(tmp_path: Path, encoded: Encode) -> None:
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / f"{format}.tar"
        with tarfile.open(path, "w", format=format) as tar:
            content = encoded()
            info = tarfile.TarInfo("deep/" * 40 + "é" * 60 + ".jpg")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        data = open_dataset(f"shards:{path}")
        assert data[0].name.endswith("é" * 60)
        assert data[0].image.shape == (3, 30, 40)


@pytest.mark.parametrize("where", ["data", "header", "boundary"])
def test_a_tar_cut_in_the_middle(
    tmp_path: Path, write_tar: WriteTar, encoded: Encode, where: str
) -> None:
    members = {f"{i}.jpg": encoded(i) for i in range(4)}
    path = write_tar(tmp_path / "s.tar", members)
    with tarfile.open(path) as tar:
        last = tar.getmember("3.jpg")
    at = {"data": last.offset_data + 100, "header": last.offset + 200, "boundary": last.offset}
    path.write_bytes(path.read_bytes()[: at[where]])
    data = open_dataset(f"shards:{path}")
    assert len(data) == 3  # what is whole is read
    assert data[2].image.shape == (3, 30, 40)
    report = check_dataset(data)
    assert report.good == 3
    assert not report.ok
    assert "s.tar" in report.problems[0]
    assert "3 records" in report.problems[0]
    loader = Loader(data, batch_size=2, size=16)
    assert sum(len(batch) for batch in loader) == 3
    assert "s.tar" in str(loader.report())


def test_a_record_whose_mask_is_cut_is_left_out(
    tmp_path: Path, write_tar: WriteTar, encoded: Encode
) -> None:
    mask = grey(np.zeros((30, 40), dtype=np.uint8))
    members = {"0.jpg": encoded(), "0.mask.png": mask, "1.jpg": encoded(), "1.mask.png": mask}
    path = write_tar(tmp_path / "s.tar", members)
    with tarfile.open(path) as tar:
        cut = tar.getmember("1.mask.png").offset_data + 10
    path.write_bytes(path.read_bytes()[:cut])
    assert len(open_dataset(f"shards:{path}")) == 1


def test_what_goes_wrong(tmp_path: Path, write_tar: WriteTar, encoded: Encode) -> None:
    with pytest.raises(DataError, match="No shards match"):
        open_dataset(f"shards:{tmp_path}/*.tar")
    (tmp_path / "z.tar").write_bytes(b"not a tar" * 200)
    with pytest.raises(DataError, match=r"z\.tar is not a plain tar"):
        open_dataset(f"shards:{tmp_path}/z.tar")
    (tmp_path / "z.tar").write_bytes(b"")
    with pytest.raises(DataError, match=r"z\.tar is empty"):
        open_dataset(f"shards:{tmp_path}/z.tar")
    write_tar(tmp_path / "none.tar", {"a.txt": b"x"})
    with pytest.raises(DataError, match="hold no images"):
        open_dataset(f"shards:{tmp_path}/none.tar")
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "none.tar")
    with pytest.raises(DataError, match="not compressed"):
        open_dataset(f"shards:{tmp_path}/c.tar.gz")
    # With other shards to read, a bad one is reported and passed over.
    write_tar(tmp_path / "good.tar", {"a.jpg": encoded()})
    (tmp_path / "none.tar").unlink()
    data = open_dataset(f"shards:{tmp_path}/*.tar")
    assert len(data) == 1
    assert "z.tar" in data.problems[0]  # type: ignore[attr-defined]


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """A ustar header with a `size` field of 12 raw bytes."""
    block = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size + b"00000000000\0"
    block += b" " * 8 + kind + b"\0" * 100 + b"ustar\x0000" + b"\0" * 247
    total = sum(block)
    return block[:148] + b"%06o\0 " % total + block[156:]


@pytest.mark.parametrize(
    "bad",
    [
        header(b"b.jpg", b"\x80" + b"\0" * 3 + b"\x7f" * 8),  # 2^62 bytes
        header(b"b.jpg", b"\x80" + b"\xff" * 11),  # 2^88 bytes
        header(b"b.jpg", b"\xff" * 10 + b"\xfe\x00"),  # -512 bytes, so the next header is itself
        header(b"x", b"\x80" + b"\0" * 3 + b"\x7f" * 8, b"x"),  # a pax header of 2^62 bytes
        header(b"x", b"\x80" + b"\0" * 3 + b"\x7f" * 8, b"L"),  # a long name of 2^62 bytes
        (header(b"x", b"00000000013\0", b"x") + b"11 path=ab\n".ljust(512, b"\0")) * 5000,
    ],
    ids=["2^62", "2^88", "negative", "pax size", "long name size", "chained pax headers"],
)
def test_absurd_headers_end_a_shard(
    tmp_path: Path, write_tar: WriteTar, encoded: Encode, bad: bytes
) -> None:
    path = write_tar(tmp_path / "s.tar", {"0.jpg": encoded(), "a.jpg": encoded()})
    with tarfile.open(path) as tar:
        end = tar.getmember("a.jpg").offset_data + -(-len(encoded()) // 512) * 512
    path.write_bytes(path.read_bytes()[:end] + bad + b"\0" * 1024)
    data = open_dataset(f"shards:{path}")
    assert len(data) in (1, 2)  # without the last if the bad header may belong to it
    assert data[0].image.shape == (3, 30, 40)
    assert "cut short or damaged" in data.problems[0]  # type: ignore[attr-defined]
    path.write_bytes(bad + b"\0" * 1024)
    with pytest.raises(DataError, match=r"s\.tar"):
        open_dataset(f"shards:{path}")


def test_a_member_over_the_limit_is_refused_before_it_is_read(
    tmp_path: Path, write_tar: WriteTar, encoded: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_dataset(f"shards:{write_tar(tmp_path / 's.tar', {'a.jpg': encoded()})}")
    monkeypatch.setattr("strop.data.shards.MAX_FILE_BYTES", 100)
    with pytest.raises(DataError, match=r"s\.tar/a\.jpg has .* more than the limit of 100"):
        data[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
def test_a_pipe_or_device_is_no_shard(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar")
    for path in (tmp_path / "a.tar", "/dev/zero"):
        with pytest.raises(DataError, match="is not a regular file"):
            open_dataset(f"shards:{path}")


def test_broken_members_name_themselves(
    tmp_path: Path, write_tar: WriteTar, encoded: Encode
) -> None:
    small = grey(np.zeros((5, 5), dtype=np.uint8))
    path = write_tar(
        tmp_path / "s.tar",
        {
            "cut.jpg": encoded()[:200],
            "mask.jpg": encoded(),
            "mask.mask.png": small,
            "scene.jpg": encoded(),
            "scene.json": b'{"objects": [{"shape": "cube"}]}',
            "json.jpg": encoded(),
            "json.json": b"{",
            "cls.jpg": encoded(),
            "cls.cls": b"7",
        },
    )
    data = open_dataset(f"shards:{path}?classes=3")
    with pytest.raises(ImageError, match=r"s\.tar/cut\.jpg"):
        data[0]
    with pytest.raises(DataError, match=r"s\.tar/mask\.mask\.png is 5 x 5"):
        data[1]
    with pytest.raises(DataError, match=r"s\.tar/scene\.json, object 0: field 'size' is missing"):
        data[2]
    with pytest.raises(DataError, match=r"s\.tar/json\.json is not valid JSON"):
        data[3]
    with pytest.raises(DataError, match=r"s\.tar/cls\.cls holds b'7'"):
        data[4]
