"""`strop encode -o STORE` and `strop store`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import strop
from strop import Program, Tokenizer
from strop.model.length_head import LengthHeadConfig

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(run: Run, model: Path, pictures: Path, tmp_path: Path) -> Path:
    target = tmp_path / "pictures.lance"
    status, out, err = run("encode", pictures, "-m", model, "-o", target, "--workers", 0)
    assert (status, out) == (0, "")
    assert f"Wrote 3 of 3 programs to {target}" in err
    return target


def test_encode_goes_on_and_names_rejects(
    run: Run, store: Path, model: Path, pictures: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff not really")
    options = ("-m", model, "-o", store, "--workers", 0)
    status, out, err = run("encode", pictures, broken, *options, "--json")
    report = json.loads(out)
    assert (status, report["images"], report["encoded"], report["known"]) == (1, 4, 0, 3)
    assert report["rejects"][0]["key"] == str(broken)
    assert str(broken) in err
    assert run("encode", pictures, broken, *options)[0] == 0


def test_info(run: Run, store: Path) -> None:
    status, out, _ = run("store", "info", store, "--json")
    facts = json.loads(out)
    assert (status, facts["programs"], facts["rejects"], facts["capacity"]) == (0, 3, 0, 16)
    assert facts["length"]["mean"] == pytest.approx(
        strop.open_store(store)[:].lengths.float().mean().item(), abs=1e-4
    )
    status, out, _ = run("store", "info", store)
    assert status == 0
    assert "3 programs of" in out


def test_check_finds_a_damaged_file(run: Run, store: Path) -> None:
    status, out, _ = run("store", "check", store)
    assert (status, out.strip()) == (0, "3 of 3 programs are valid")
    (file,) = (store / "data").iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    file.write_bytes(content[: len(content) // 2])
    status, out, err = run("store", "check", store)
    assert (status, out.strip()) == (1, "0 of 3 programs are valid")
    assert file.name in err


def test_programs_are_neither_a_store_nor_images(run: Run, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    run("store", "export", store, "-o", file)
    for command in ("info", "check"):
        status, _, err = run("store", command, file)
        assert (status, "damaged" in err) == (1, False)
        assert f"{file} is a file, not a store. A store is a folder." in err
    for programs in (file, store):
        status, _, err = run("encode", programs, "-o", tmp_path / "b.lance")
        assert status == 1
        assert f"{programs} holds programs, not images." in err


def test_programs_below_the_quality_are_counted(
    run: Run, make_tokenizer: Callable[..., Tokenizer], pictures: Path, tmp_path: Path
) -> None:
    rated = make_tokenizer(length_head=LengthHeadConfig(kind="rate", hidden=(32,)))
    rated.save_pretrained(tmp_path / "rated")
    given = ("encode", pictures, "-m", tmp_path / "rated", "--workers", 0)
    status, _, err = run(*given, "-o", tmp_path / "a.lance", "--quality", 0.9999)
    told = "3 of 3 images are not expected to reach a cosine of 0.9999, even with all 12 tokens."
    assert (status, told in err, err.count("cosine")) == (0, True, 1)
    status, out, err = run(*given, "-o", tmp_path / "b.lance", "--quality", 1e-6, "--json")
    assert (status, json.loads(out)["below_quality"], "quality" in err) == (0, 0, False)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_an_exported_file_holds_the_programs(run: Run, store: Path, tmp_path: Path, name) -> None:
    assert run("store", "export", store, "-o", tmp_path / name)[0] == 0
    loaded, opened = Program.load(tmp_path / name), strop.open_store(store)
    assert loaded == opened[:]
    assert loaded.names == tuple(opened.keys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("store", "info", "nothing.lance"), "There is no store at nothing.lance"),
        (("encode", "{pictures}", "-o", "a.txt"), "Name it .parquet or .jsonl or .lance"),
        (("encode", "{pictures}", "-o", "{pictures}/"), "is not a store"),
        (("encode", "{pictures}", "-o", "a.lance", "--engine", "spark"), "no engine 'spark'"),
        (("encode", "voc:/none", "-o", "a.lance"), "/none does not exist"),
        (("encode", "{pictures}", "-o", "a.lance", "--keep", "caption"), "no column 'caption'"),
    ],
)
def test_mistakes_are_named(
    run: Run, pictures: Path, tmp_path: Path, monkeypatch, arguments, message
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = run(*(each.format(pictures=pictures) for each in arguments))
    assert status == 1
    assert message in err
    assert not (tmp_path / "a.lance").exists()
