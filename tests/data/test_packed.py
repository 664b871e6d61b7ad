"""Packing, and reading what was packed."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from strop.data import Loader, concat, fit_record, open_dataset, pack_dataset, record_batches
from strop.errors import DataError, FormatError

Write = Callable[..., Path]


@pytest.mark.parametrize("workers", [0, 2])
def test_packed_records_are_the_fitted_ones(clevr_root: Path, tmp_path: Path, workers: int) -> None:
    steps: list[tuple[int, int]] = []
    report = pack_dataset(
        f"clevr:{clevr_root}",
        tmp_path / "out",
        size=20,
        workers=workers,
        progress=lambda _, done, total: steps.append((done, total)),
    )
    assert steps[-1] == (3, 3)
    assert report.count == 3
    assert report.parts == ("image", "semantic", "instance", "labels", "depth")
    source = open_dataset(f"clevr:{clevr_root}")
    packed = open_dataset(f"packed:{tmp_path}/out")
    assert packed.classes == source.classes
    assert packed.label_names == source.label_names
    assert len(packed) == 3
    for i in range(3):
        one, other = fit_record(source[i], 20), packed[i]
        assert one.name == other.name
        for part in ("image", "semantic", "instance", "labels", "depth"):
            a, b = getattr(one, part), getattr(other, part)
            assert a.dtype == b.dtype
            assert torch.equal(a, b), part
        assert other.scene is not None
        assert other.scene["objects"] == one.scene["objects"]  # type: ignore[index]
    assert packed[-1].name == packed[2].name
    with pytest.raises(IndexError):
        packed[3]
    again = pickle.loads(pickle.dumps(packed))  # noqa: S301 (what a spawned worker gets)
    assert torch.equal(again[1].image, packed[1].image)


def test_crop_is_kept(voc_root: Path, tmp_path: Path) -> None:
    pack_dataset(f"voc:{voc_root}", tmp_path / "out", size=16, fit="crop")
    record = fit_record(open_dataset(f"voc:{voc_root}")[0], 16, "crop")
    assert torch.equal(open_dataset(f"packed:{tmp_path}/out")[0].image, record.image)


def test_broken_records_are_left_out_and_named(tmp_path: Path, write_image: Write) -> None:
    for i in range(5):
        write_image(tmp_path / f"in/{i}.png", i)
    (tmp_path / "in/1.png").write_bytes(b"no image")
    report = pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=8)
    assert report.count == 4
    assert "1.png" in report.broken[1]
    data = open_dataset(f"packed:{tmp_path}/out")
    assert [data[i].name for i in range(4)] == ["0.png", "2.png", "3.png", "4.png"]


def test_a_interrupted_run_continues(
    tmp_path: Path, write_image: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(300):
        write_image(tmp_path / f"in/{i:03d}.png", i, 8, 8)
    (tmp_path / "in/007.png").write_bytes(b"")
    monkeypatch.setattr("strop.data.pack._SAVE_EVERY", 64)
    whole = pack_dataset(f"{tmp_path}/in", tmp_path / "whole", size=8)

    class StopError(Exception):
        pass

    def stop(task: str, done: int, total: int) -> None:
        if done >= 200:
            raise StopError

    with pytest.raises(StopError):
        pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=8, progress=stop)
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match=r"out\.partial is unfinished"):
        open_dataset(f"packed:{tmp_path}/out")
    first: list[int] = []
    report = pack_dataset(
        f"{tmp_path}/in", tmp_path / "out", size=8, progress=lambda _, done, __: first.append(done)
    )
    assert first[0] > 100  # it did not start over
    assert report.count == whole.count == 299
    assert report.broken == whole.broken
    for name in ("image.bin", "records.jsonl", "records.i64", "meta.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        p.name for p in (tmp_path / "whole").iterdir()
    }


@pytest.mark.parametrize("workers", [0, 1])
def test_padding_survives_packing(tmp_path: Path, write_image: Write, workers: int) -> None:
    write_image(tmp_path / "in/0.png", 0, 40, 20)
    write_image(tmp_path / "in/1.png", 1, 20, 20)
    report = pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=16, fit="pad", workers=workers)
    assert report.parts == ("image", "valid")
    expected = concat(list(record_batches(open_dataset(f"{tmp_path}/in"), size=16, fit="pad")))
    packed = concat(
        list(record_batches(open_dataset(f"packed:{tmp_path}/out"), size=16, fit="pad"))
    )
    assert torch.equal(packed.images, expected.images)
    assert torch.equal(packed.valid, expected.valid)
    assert packed.valid.flatten(1).sum(1).tolist() == [16 * 8, 16 * 16]


def test_a_folder_in_the_way_is_left_alone(tmp_path: Path, write_image: Write) -> None:
    write_image(tmp_path / "in/0.png")
    work = tmp_path / "out.partial"
    work.mkdir()
    (work / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match=r"out\.partial already exists \(thesis\.txt\)"):
        pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=8)
    (work / "progress.json").write_text('{"format": "strop.other/1"}')
    with pytest.raises(FormatError, match="not a strop packing file"):
        pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=8)
    (work / "progress.json").write_text('{"format": "strop.packing/1"}')
    with pytest.raises(DataError, match=r"progress\.json is damaged"):
        pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=8)
    assert (work / "thesis.txt").exists()


@pytest.mark.parametrize("saved", [True, False])
def test_work_of_other_settings(
    tmp_path: Path, write_image: Write, monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    for i in range(70):
        write_image(tmp_path / f"in/{i:02d}.png", i, 8, 8)
    monkeypatch.setattr("strop.data.pack._SAVE_EVERY", 64 if saved else 4096)

    def stop(task: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=8, progress=stop)
    if saved:
        with pytest.raises(DataError, match=r"holds 64 records .* with size 8, not 4"):
            pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=4)
        assert pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=8).count == 70
    else:  # there is nothing to lose
        assert pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=4).count == 70


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such file names")
def test_file_names_that_are_not_utf8(tmp_path: Path, write_image: Write) -> None:
    folder = tmp_path / os.fsdecode(b"in-\xe9")
    good, bad = (os.fsdecode(name) for name in (b"caf\xe9.png", b"x\xff.png"))
    write_image(folder / good)
    write_image(folder / "caf\u00e9.png")
    (folder / bad).write_bytes(b"no image")
    report = pack_dataset(f"folder:{folder}", tmp_path / "out", size=8)
    assert [bad in problem for problem in report.broken.values()] == [True]
    packed = open_dataset(f"packed:{tmp_path}/out")
    assert {packed[0].name, packed[1].name} == {good, "caf\u00e9.png"}


def test_another_fit_is_refused(voc_root: Path, tmp_path: Path) -> None:
    pack_dataset(f"voc:{voc_root}", tmp_path / "out", size=16, fit="crop")
    for spec in (f"packed:{tmp_path}/out", f"packed:{tmp_path}/out?limit=1"):
        data = open_dataset(spec)
        with pytest.raises(DataError, match="packed with fit 'crop', not 'squash'"):
            Loader(data, batch_size=1, size=16)
        assert len(list(Loader(data, batch_size=2, size=16, fit="crop"))) == 1


def test_what_goes_wrong(tmp_path: Path, write_image: Write, voc_root: Path) -> None:
    write_image(tmp_path / "in/0.png")
    pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=8)
    with pytest.raises(DataError, match="already exists"):
        pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=8)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/0.png").write_bytes(b"x")
    with pytest.raises(DataError, match="No record"):
        pack_dataset(f"{tmp_path}/bad", tmp_path / "none", size=8)
    image = tmp_path / "out/image.bin"
    image.write_bytes(image.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"image\.bin has 191 bytes, expected 192"):
        open_dataset(f"packed:{tmp_path}/out")
    (tmp_path / "out/meta.json").write_text('{"format": "strop.packed/9"}')
    with pytest.raises(FormatError, match=r"newer.* Upgrade strop"):
        open_dataset(f"packed:{tmp_path}/out")


def test_loading_needs_no_decoding(tmp_path: Path, write_image: Write) -> None:
    for i in range(40):
        write_image(tmp_path / f"in/{i:02d}.png", i)
    pack_dataset(f"{tmp_path}/in", tmp_path / "out", size=8)
    for path in (tmp_path / "in").iterdir():
        path.unlink()
    data = open_dataset(f"packed:{tmp_path}/out")
    batches = list(Loader(data, batch_size=16, size=8, shuffle=True))
    assert sorted(n for b in batches for n in b.names) == [f"{i:02d}.png" for i in range(40)]
    for batch in batches:
        for row, index in enumerate(batch.indices.tolist()):
            assert torch.equal(batch.images[row], data[index].image)
