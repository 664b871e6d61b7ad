"""`encode`, `interpret` and `decode`, as typed in a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open

from strop import Program, Tokenizer, cli
from strop.images import save_image
from strop.training.preset import load_preset

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Call the command line: exit status, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["strop", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capfd.readouterr()
        return int(stopped.value.code or 0), out, err

    return call


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    Tokenizer(load_preset("strop-nano").model).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    torch.manual_seed(1)
    for number in range(3):
        save_image(folder / "inner" / f"{number}.png", torch.rand(3, 40, 60))
    return folder


def test_encode_finds_folders_files_and_globs(
    run: Run, model: Path, pictures: Path, tmp_path: Path
) -> None:
    saved = []
    for number, what in enumerate(
        [pictures, pictures / "inner" / "*.png", pictures / "**" / "?.png"]
    ):
        target = tmp_path / f"{number}.parquet"
        status, out, err = run("encode", what, "-m", model, "-o", target)
        assert (status, out) == (0, "")
        assert "Wrote 3 programs" in err
        saved.append(Program.load(target))
    assert saved[0] == saved[1] == saved[2]
    assert saved[0].names == tuple(str(pictures / "inner" / f"{n}.png") for n in range(3))


def test_parquet_and_json_lines_agree(
    run: Run, model: Path, pictures: Path, tmp_path: Path
) -> None:
    for name in ("a.parquet", "a.jsonl"):
        assert run("encode", pictures, "-m", model, "-o", tmp_path / name)[0] == 0
    assert Program.load(tmp_path / "a.parquet") == Program.load(tmp_path / "a.jsonl")
    assert pq.read_table(tmp_path / "a.parquet").column_names[:3] == ["name", "length", "codes"]


def test_encode_does_what_the_library_does(
    run: Run, model: Path, pictures: Path, tmp_path: Path
) -> None:
    import strop

    run("encode", pictures, "-m", model, "-o", tmp_path / "a.jsonl", "--length", "5")
    paths = [str(pictures / "inner" / f"{n}.png") for n in range(3)]
    assert Program.load(tmp_path / "a.jsonl") == strop.load(model).encode(paths, length=5)


def test_rates(run: Run, model: Path, pictures: Path, tmp_path: Path) -> None:
    for option, check in {
        ("--length", "max"): lambda lengths: (lengths == 16).all(),
        ("--mean-length", "7"): lambda lengths: lengths.sum() == 21,
        ("--tolerance", "5"): lambda lengths: (lengths == 1).all(),
    }.items():
        assert run("encode", pictures, "-m", model, "-o", tmp_path / "a.jsonl", *option)[0] == 0
        assert check(Program.load(tmp_path / "a.jsonl").lengths)


def test_unreadable_images_are_skipped_named_and_reported(
    run: Run, model: Path, pictures: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff not really")
    missing = tmp_path / "missing.png"
    target = tmp_path / "a.parquet"
    status, _, err = run("encode", pictures, broken, missing, "-m", model, "-o", target)
    assert status == 1
    assert str(broken) in err
    assert str(missing) in err
    assert "2 of 5" in err
    assert len(Program.load(target)) == 3


def test_json_on_stdout(run: Run, model: Path, pictures: Path) -> None:
    status, out, _ = run("encode", pictures, "-m", model, "--json")
    told = json.loads(out)
    assert status == 0
    assert told["images"] == len(told["programs"]) == 3
    assert all(len(row["codes"]) == row["length"] for row in told["programs"])


def test_table_on_stdout(run: Run, model: Path, pictures: Path) -> None:
    status, out, _ = run("encode", pictures, "-m", model)
    assert status == 0
    assert out.replace("\n", "").count(str(pictures)) == 3, out


def test_interpret_writes_the_field(run: Run, model: Path, pictures: Path, tmp_path: Path) -> None:
    import strop

    run("encode", pictures, "-m", model, "-o", tmp_path / "a.parquet")
    target = tmp_path / "field.safetensors"
    assert run("interpret", tmp_path / "a.parquet", "-m", model, "-o", target)[0] == 0
    with safe_open(target, "pt") as file:
        assert file.metadata()["format"] == "strop.field/1"
        field = file.get_tensor("field")
    expected = strop.load(model).interpret(Program.load(tmp_path / "a.parquet"))
    torch.testing.assert_close(field, expected)


def test_decode_writes_one_picture_each(
    run: Run, model: Path, pictures: Path, tmp_path: Path
) -> None:
    run("encode", pictures, "-m", model, "-o", tmp_path / "a.parquet")
    assert run("decode", tmp_path / "a.parquet", "-m", model, "-o", tmp_path / "seen")[0] == 0
    assert sorted(p.name for p in (tmp_path / "seen").iterdir()) == [
        "0-0.png",
        "1-1.png",
        "2-2.png",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["encode", "x.png", "-m", "no-such-model"], "no-such-model"),
        (["encode", "x.png", "--length", "0"], "[1, 16]"),
        (["encode", "x.png", "--length", "17"], "[1, 16]"),
        (["encode", "x.png", "--length", "long"], "'long'"),
        (["encode", "x.png", "--length", "3", "--mean-length", "4"], "at most one"),
        (["encode", "x.png", "-o", "a.csv"], ".parquet or .jsonl"),
        (["encode", "x.png", "--device", "tpu9"], "tpu9"),
        (["encode", "nothing*.png"], "nothing*.png"),
        (["interpret", "missing.parquet", "-o", "f.safetensors"], "missing.parquet"),
        (["interpret", "missing.parquet", "-o", "f.npy"], ".safetensors"),
        (["decode", "missing.parquet", "-o", "d"], "missing.parquet"),
        (["info", "strop-s-dinov3-z"], "strop-s-dinov3-s"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(
    arguments: list[str],
    told: str,
    run: Run,
    model: Path,
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    save_image(tmp_path / "x.png", torch.rand(3, 20, 20))
    before = sorted(tmp_path.iterdir())
    if arguments[0] == "encode" and "-m" not in arguments:
        arguments = [*arguments, "-m", str(model)]
    status, out, err = run(*arguments)
    assert status == 1
    assert out == ""
    assert told in err
    assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before
