"""`strop encode`, `strop interpret` and `strop decode`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import strop
from strop import Program, Tokenizer
from strop.cli import console
from strop.data import ScenesDataset
from strop.images import save_image
from strop.model.length_head import LengthHeadConfig
from strop.store import encode

Run = Callable[..., tuple[int, str, str]]


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


def test_encode_equals_the_library(run: Run, model: Path, pictures: Path, tmp_path: Path) -> None:
    run("encode", pictures, "-m", model, "-o", tmp_path / "a.jsonl", "--length", "5")
    paths = [str(pictures / "inner" / f"{n}.png") for n in range(3)]
    assert Program.load(tmp_path / "a.jsonl") == strop.load(model).encode(paths, length=5)


def test_mean_length_equals_the_library(
    run: Run, tokenizer: Tokenizer, images: Tensor, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path / "model")
    for number, image in enumerate(images):
        save_image(tmp_path / "in" / f"{number}.png", image)
    paths = [str(tmp_path / "in" / f"{number}.png") for number in range(len(images))]
    for mean in (2.5, 6, 9.25):
        target = tmp_path / "a.jsonl"
        options = ("-m", tmp_path / "model", "-o", target, "--mean-length", mean, "--batch", 4)
        assert run("encode", tmp_path / "in", *options)[0] == 0
        program = Program.load(target)
        assert program == strop.load(tmp_path / "model", device="cpu").encode(
            paths, mean_length=mean
        )
        assert len(set(program.lengths.tolist())) > 1


@pytest.mark.parametrize("rule", [[], ["--mean-length", 6]])
def test_workers_change_no_program(
    rule: list[object], run: Run, model: Path, pictures: Path, tmp_path: Path
) -> None:
    pictures = Path(shutil.copytree(pictures, tmp_path / "pictures"))
    (pictures / "inner" / "1a.png").write_bytes(b"no image")
    saved = []
    for workers in (0, 2):
        target = tmp_path / f"{workers}.jsonl"
        options = ("-m", model, "-o", target, "--workers", workers, "--batch", 2, *rule)
        status, _, err = run("encode", pictures, *options)
        assert (status, "1 of 4 images could not be read" in err) == (1, True)
        saved.append(Program.load(target))
    assert saved[0] == saved[1]
    assert saved[0].names == saved[1].names
    assert torch.equal(saved[0].codes, saved[1].codes), "inactive codes are kept, too"


def test_a_killed_run_resumes_with_the_parts_it_has_kept(
    run: Run, model: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs and complaints are those of an uninterrupted run; other settings start over."""
    monkeypatch.setattr(encode, "SLICE", 2)
    pictures = Path(shutil.copytree(pictures, tmp_path / "pictures"))
    (pictures / "inner" / "1a.png").write_bytes(b"no image")
    target, whole = tmp_path / "a.parquet", tmp_path / "whole.parquet"
    assert run("encode", pictures, "-m", model, "-o", whole)[0] == 1
    encoded = Tokenizer.encode_batches
    calls = 0

    def killed(*arguments: object, **options: object) -> Program:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(28, "No space left on device")
        return encoded(*arguments, **options)

    with monkeypatch.context() as dying:
        dying.setattr(Tokenizer, "encode_batches", killed)
        status, _, err = run("encode", pictures, "-m", model, "-o", target)
    assert (status, "No space left" in err) == (1, True)
    assert not target.exists()
    assert len(list((tmp_path / "a.parquet.partial").glob("*.parquet"))) == 1
    with monkeypatch.context() as counting:
        counting.setattr(Tokenizer, "encode_batches", killed)
        status, _, err = run("encode", pictures, "-m", model, "-o", target)
    assert status == 1
    assert "Resuming" in err
    assert "1 of 4 images could not be read" in err
    assert calls == 3, "only the second part was encoded again"
    assert Program.load(target) == Program.load(whole)
    assert Program.load(target).names == Program.load(whole).names
    assert not (tmp_path / "a.parquet.partial").exists()
    calls = 0
    with monkeypatch.context() as dying:
        dying.setattr(Tokenizer, "encode_batches", killed)
        status, _, err = run("encode", pictures, "-m", model, "-o", target)
    assert (status, "No space left" in err) == (1, True)
    _, _, err = run("encode", pictures, "-m", model, "-o", target, "--length", 3)
    assert "starting over" in err
    assert set(Program.load(target).lengths.tolist()) == {3}


def test_rates(run: Run, model: Path, pictures: Path, tmp_path: Path) -> None:
    for option, check in {
        ("--length", "max"): lambda lengths: (lengths == 16).all(),
        ("--mean-length", "7"): lambda lengths: lengths.sum() == 21,
        ("--length", "search", "--tolerance", "5"): lambda lengths: (lengths == 1).all(),
    }.items():
        assert run("encode", pictures, "-m", model, "-o", tmp_path / "a.jsonl", *option)[0] == 0
        assert check(Program.load(tmp_path / "a.jsonl").lengths)


def test_unreadable_images_are_skipped_and_listed(
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
    result = json.loads(out)
    assert status == 0
    assert result["images"] == len(result["programs"]) == 3
    assert all(len(row["codes"]) == row["length"] for row in result["programs"])
    assert result["skipped"] == []


def test_json_lists_skipped_images(run: Run, model: Path, pictures: Path, tmp_path: Path) -> None:
    missing, target = str(tmp_path / "missing.png"), tmp_path / "a.parquet"
    status, out, _ = run("encode", pictures, missing, "-m", model, "-o", target, "--json")
    result = json.loads(out)
    assert (status, result["images"], result["output"]) == (1, 3, str(target))
    assert [skipped["name"] for skipped in result["skipped"]] == [missing]
    assert missing in result["skipped"][0]["reason"]

    status, out, _ = run("encode", missing, "-m", model, "--json")
    result = json.loads(out)
    assert (status, result["images"], result["mean_length"], result["programs"]) == (1, 0, None, [])
    assert len(result["skipped"]) == 1


def test_interpret_and_decode_print_json(
    run: Run, model: Path, pictures: Path, tmp_path: Path
) -> None:
    programs, field, seen = (tmp_path / name for name in ("a.jsonl", "f.safetensors", "seen"))
    run("encode", pictures, "-m", model, "-o", programs)
    _, out, _ = run("interpret", programs, "-m", model, "-o", field, "--json")
    result = json.loads(out)
    assert (result["programs"], result["output"]) == (3, str(field))
    with safe_open(field, "pt") as file:
        assert result["field"] == list(file.get_tensor("field").shape)
    _, out, _ = run("decode", programs, "-m", model, "-o", seen, "--json")
    assert json.loads(out) == {"pictures": 3, "output": str(seen)}


def test_names_with_brackets_are_not_markup(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good, broken = "img[b].png", "x[/b].png"
    save_image(tmp_path / good, torch.rand(3, 20, 20))
    (tmp_path / "x[").mkdir()
    (tmp_path / broken).write_bytes(b"no image")
    status, out, err = run("encode", good, broken, "-m", model)
    assert status == 1
    assert good in out
    assert f"skipped {broken}" in err
    status, _, err = run("encode", good, "-m", model, "-o", "x[/a.jsonl")
    assert (status, "to x[/a.jsonl:" in err) == (0, True)
    status, _, err = run("decode", "x[/a.jsonl", "-m", model, "-o", "x[/[red]:smile:")
    assert (status, "to x[/[red]:smile:" in err) == (0, True)
    assert (tmp_path / "x[/[red]:smile:/0-img[b].png").is_file()
    status, _, err = run("decode", "x[/b].jsonl", "-m", model, "-o", "d")
    assert (status, "x[/b].jsonl" in err) == (1, True)


def test_without_a_bundled_model_one_must_be_given(
    run: Run, model: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.model.teacher.BUNDLED", tmp_path)
    status, _, err = run("encode", pictures, "-o", tmp_path / "a.jsonl")
    assert status == 1
    assert "none is bundled" in err
    assert "-m" in err
    shutil.copytree(model, tmp_path / "photos")
    assert run("encode", pictures, "-o", tmp_path / "a.jsonl")[0] == 0


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_programs_find_the_model_that_wrote_them(
    suffix: str, run: Run, model: Path, pictures: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(model, tmp_path / "own")
    file, field = tmp_path / f"a{suffix}", tmp_path / "f.safetensors"
    run("encode", pictures, "-m", own, "-o", file)
    assert run("interpret", file, "-o", field)[0] == 0
    assert run("decode", file, "-o", tmp_path / "seen")[0] == 0
    own.rename(tmp_path / "moved")
    status, _, err = run("interpret", file, "-o", field)
    assert (status, f"The model {own} that wrote {file}" in err, "-m MODEL" in err) == (
        1,
        True,
        True,
    )
    assert run("interpret", file, "-o", field, "-m", tmp_path / "moved")[0] == 0


def test_a_bundled_model_is_found_without_its_name(run: Run, tmp_path: Path) -> None:
    scenes = strop.load("scenes", device="cpu")
    images = ScenesDataset(2, size=scenes.config.image_size).images([0, 1])
    scenes.encode(images).save(tmp_path / "a.jsonl")
    status, _, err = run("interpret", tmp_path / "a.jsonl", "-o", tmp_path / "f.safetensors")
    assert (status, "(2, 64, 192)" in err) == (0, True), err


def test_specs_are_encoded(run: Run, model: Path, pictures: Path, tmp_path: Path) -> None:
    status, out, _ = run("encode", "scenes:?n=2&size=64", pictures, "-m", model, "--json")
    names = [row["name"] for row in json.loads(out)["programs"]]
    assert (status, len(names)) == (0, 5)
    assert names[2] == str(pictures / "inner" / "0.png")
    status, out, _ = run("encode", f"{pictures}?skip=1&limit=1", "-m", model, "--json")
    names = [row["name"] for row in json.loads(out)["programs"]]
    assert (status, names) == (0, [str(pictures / "inner" / "1.png")])


def test_decode_holds_one_batch_of_fields_at_a_time(
    run: Run, model: Path, pictures: Path, tmp_path: Path, monkeypatch
) -> None:
    run("encode", pictures, "-m", model, "-o", tmp_path / "a.jsonl")
    calls = []

    def recorded(verb: str) -> Callable[..., Tensor]:
        original = getattr(Tokenizer, verb)

        def call(*args: object, **options: object) -> Tensor:
            calls.append(verb)
            return original(*args, **options)

        return call

    for verb in ("interpret", "decode"):
        monkeypatch.setattr(Tokenizer, verb, recorded(verb))
    options = ("-m", model, "-o", tmp_path / "seen", "--batch", 2)
    assert run("decode", tmp_path / "a.jsonl", *options)[0] == 0
    assert calls == ["interpret", "decode"] * 2


@pytest.mark.parametrize("place", ["a-file/a.jsonl", "a-file/deeper/a.jsonl", "folder.jsonl"])
def test_an_impossible_output_is_refused_before_the_work(
    place: str, run: Run, model: Path, pictures: Path, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "a-file").write_text("")
    (tmp_path / "folder.jsonl").mkdir()
    monkeypatch.setattr(Tokenizer, "encode", _not_reached)
    status, _, err = run("encode", pictures, "-m", model, "-o", tmp_path / place)
    assert status == 1
    assert str(tmp_path / place) in err
    assert "Traceback" not in err


def test_a_read_only_folder_is_refused_before_the_work(
    run: Run, model: Path, pictures: Path, tmp_path: Path, monkeypatch
) -> None:
    # Patched, because root may write to every folder.
    monkeypatch.setattr(console.os, "access", lambda path, mode: Path(path) != tmp_path)
    monkeypatch.setattr(Tokenizer, "encode", _not_reached)
    status, _, err = run("encode", pictures, "-m", model, "-o", tmp_path / "new" / "a.jsonl")
    assert (status, f"{tmp_path} is not writable" in err) == (1, True)


def test_folders_are_searched_as_datasets_are(run: Run, model: Path, tmp_path: Path) -> None:
    for name in ("a.png", ".hidden.png", ".cache/b.png", "__MACOSX/._a.png", "deep/c.png"):
        save_image(tmp_path / name, torch.rand(3, 20, 20))
    _, out, _ = run("encode", tmp_path, "-m", model, "--json")
    names = [row["name"] for row in json.loads(out)["programs"]]
    assert names == [str(tmp_path / "a.png"), str(tmp_path / "deep/c.png")]


def test_table_on_stdout(run: Run, model: Path, pictures: Path) -> None:
    status, out, _ = run("encode", pictures, "-m", model)
    assert status == 0
    assert out.replace("\n", "").count(str(pictures)) == 3, out


@pytest.mark.parametrize("name", ["a\0b.parquet", "a" * 5000 + ".parquet", "~nouser/a.parquet"])
def test_impossible_names_give_a_sentence(run: Run, model: Path, pictures: Path, name: str) -> None:
    for arguments in (
        ("encode", pictures, "-m", model, "-o", name),
        ("encode", name, "-m", model),
        ("encode", f"folder:/{name}", "-m", model),
        ("encode", pictures, "-m", name),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (1, "")
        assert "Traceback" not in err


def test_interpret_writes_the_field(run: Run, model: Path, pictures: Path, tmp_path: Path) -> None:
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
    ("arguments", "message"),
    [
        (["encode", "x.png", "-m", "no-such-model"], "no-such-model"),
        (["encode", "x.png", "--length", "0"], "[1, 16]"),
        (["encode", "x.png", "--length", "17"], "[1, 16]"),
        (["encode", "x.png", "--length", "long"], "'long'"),
        (["encode", "x.png", "--length=-1"], "length is '-1'"),
        (["encode", "x.png", "--length", "9" * 5000], "length is '9"),
        (["encode", "x.png", "--mean-length", "0.5"], "[1, 16]"),
        (["encode", "missing.png", "--mean-length", "17"], "[1, 16]"),
        (["encode", "x.png", "--length", "3", "--mean-length", "4"], "at most one"),
        (["encode", "x.png", "-o", "a.parquet", "--engine", "ray"], "--engine ray is for a store."),
        (["encode", "x.png", "-o", "a.csv"], ".parquet or .jsonl"),
        (["encode", "x.png", "--device", "tpu9"], "tpu9"),
        (["encode", "x.png", "--device", "meta"], "cpu or cuda"),
        (["encode", "nothing*.png"], "nothing*.png"),
        (["interpret", "missing.parquet", "-o", "f.safetensors"], "missing.parquet"),
        (["interpret", "missing.parquet", "-o", "f.npy"], ".safetensors"),
        (["decode", "missing.parquet", "-o", "d"], "missing.parquet"),
        (["info", "programs.parquet"], "holds programs, not a model"),
        (["info", "strop-s-dinov3-z"], "Did you mean 'strop-s-dinov3-"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: list[str],
    message: str,
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
    assert message in err
    assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before


def _not_reached(*_args: object, **_options: object) -> None:
    raise AssertionError("the work had begun")


def test_images_below_the_quality_are_counted_and_named(
    run: Run, make_tokenizer: Callable[..., Tokenizer], images: Tensor, tmp_path: Path
) -> None:
    rated = make_tokenizer(length_head=LengthHeadConfig(kind="rate", hidden=(32,)))
    rated.save_pretrained(tmp_path / "model")
    for number, image in enumerate(images):
        save_image(tmp_path / "in" / f"{number}.png", image)
    target = tmp_path / "a.parquet"
    given = ("encode", tmp_path / "in", "-m", tmp_path / "model")
    for asked in (["--quality", 0.999, "--verify"], ["--quality", 0.999, "--confidence", 0.5]):
        status, out, err = run(*given, "-o", target, *asked)
        assert (status, out) == (0, "")
        verb = "do not" if "--verify" in asked else "are not expected to"
        said = f"{len(images)} of {len(images)} images {verb} reach a cosine of 0.999, even with"
        assert err.count(f"{said} all 12 tokens: ") == err.count("cosine") == 1
        assert all(f"{number}.png" in err for number in range(len(images)))
        assert Program.load(target).quality.max() < 0.999
    status, out, err = run(*given, "--quality", 0.001, "--verify", "--json")
    result = json.loads(out)
    below = [row["name"] for row in result["programs"] if row["quality"] < 0.001]
    assert (status, result["below_quality"]) == (0, below)
    assert len(below) < len(images)
