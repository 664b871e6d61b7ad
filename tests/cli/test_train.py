"""`strop train` and related commands, from the command line to the files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from strop.cli import train as commands
from strop.errors import ConfigError, DataError, StropError, TeacherError, TrainingError
from strop.training.distributed import Workers
from strop.training.field_cache import open_fields

app = typer.Typer()
app.command()(commands.train)
app.command()(commands.train_decoder)
app.command()(commands.train_lengths)
app.command()(commands.sweep)
app.command()(commands.features)

SMALL = [
    "--set=model.image_size=32",
    "--set=training.held_out=2",
    "--set=training.log_every=2",
    "--workers=0",
    "--device=cpu",
]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for number in range(24):
        array = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(array).save(folder / f"{number:02d}.png")
    return f"folder:{folder}"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    if isinstance(result.exception, StropError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_train_resume_decoder(pictures: str, tmp_path: Path) -> None:
    out, cache = tmp_path / "run", tmp_path / "fields.safetensors"
    run("features", pictures, "--out", cache, "--preset", _small(tmp_path), "--device=cpu")
    assert open_fields(cache).fields.shape == (24, 2, 4, 192)
    arguments = ["train", "strop-nano", "--data", pictures, "--out", out, "--steps", 6]
    arguments += ["--batch", 4, "--cache", cache, "--json", *SMALL]
    figures = json.loads(run(*arguments))
    assert figures["finished"]
    assert figures["step"] == 6
    assert "r2_centred" in figures
    assert (out / "model/README.md").is_file()
    with pytest.raises(StropError, match="already holds a run"):
        run(*arguments)
    assert json.loads(run(*arguments, "--resume"))["step"] == 6

    decoded = json.loads(
        run(
            "train-decoder",
            out / "model",
            *("--data", pictures, "--steps", 2, "--batch", 4, "--workers", 0),
            *("--device", "cpu", "--json"),
        )
    )
    assert decoded["psnr"] > 0
    lengths = ["train-lengths", out / "model", "--data", pictures, "--quality", 0.3]
    lengths += ["--steps", 5, "--workers", 0, "--device", "cpu", "--json"]
    assert json.loads(run(*lengths, "--out", tmp_path / "rated"))["quality"] == 0.3
    config = json.loads((tmp_path / "rated/config.json").read_text())
    assert config["model"]["length_head"]["kind"] == "rate"
    with pytest.raises(ConfigError, match=r"held_out is 0\.0"):
        run(*lengths, "--out", tmp_path / "rated", "--held-out", 0)
    again = run(*arguments[:5], tmp_path / "again", *arguments[6:], "--init", out / "model")
    assert json.loads(again)["finished"]


def test_folders_with_brackets_are_printed_as_they_are(pictures: str, tmp_path: Path) -> None:
    out = tmp_path / "run[b]"
    options = ["--out", out, "--steps", 2, "--batch", 4, *SMALL]
    assert f"The model is in {out / 'model'}" in run(
        "train", "strop-nano", "--data", pictures, *options
    )


def test_one_of_several_processes_prints(pictures: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(commands, "this_process", lambda: Workers(1, 2))
    options = ["--data", pictures, "--steps", 2, "--batch", 4, *SMALL]
    assert not run("train", "strop-nano", "--out", tmp_path / "run", *options)
    axis = "--axis=training.seed=0"
    assert not run("sweep", "strop-nano", "--out", tmp_path / "sweep", axis, *options)


def test_a_stopped_run_ends_with_the_status_of_an_interrupt(
    pictures: str, tmp_path: Path, monkeypatch
) -> None:
    stopped = SimpleNamespace(finished=False, step=3, metrics={})
    monkeypatch.setattr(commands, "run_training", lambda *given, **options: stopped)
    options = ["train", "strop-nano", f"--data={pictures}", f"--out={tmp_path / 'run'}"]
    for rank, said in ((0, "Stopped after step 3. Continue with --resume.\n"), (1, "")):
        monkeypatch.setattr(commands, "this_process", lambda rank=rank: Workers(rank, 2))
        result = CliRunner().invoke(app, options)
        assert (result.exit_code, result.stdout) == (130, said)


def test_broken_images_are_named(pictures: str, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    shutil.copytree(pictures.removeprefix("folder:"), folder)
    (folder / "07.png").write_bytes(b"no picture")
    options = ["--out", tmp_path / "run", "--cache=memory", "--steps=2", "--batch=4", *SMALL]
    with pytest.warns(UserWarning, match="07.png"):
        run("train", "strop-nano", "--data", folder, *options)


def test_dry_run(tmp_path: Path) -> None:
    printed = run("train", "strop-nano", "--dry-run", "--batch", 4, *SMALL)
    assert "projected hours" in printed
    facts = json.loads(run("train", "strop-nano", "--dry-run", "--json", "--batch", 4, *SMALL))
    assert facts["config"]["training"]["batch"] == 4
    assert facts["trainable parameters"] > 0


def test_a_dry_run_opens_the_data_and_the_teacher(pictures: str) -> None:
    given = ("train", "strop-nano", "--dry-run", "--json", *SMALL, "--data")
    facts = json.loads(run(*given, pictures, "--batch", 4))
    assert (facts["training images"], facts["held-out images"]) == (22, 2)
    with pytest.raises(DataError, match="no folder nowhere"):
        run(*given, "nowhere")
    with pytest.raises(TeacherError, match="Unknown teacher 'nobody'"):
        run(*given, pictures, "--teacher", "nobody")


def test_sweep(pictures: str, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    axis = "--axis=training.seed=0,1"
    run(
        "sweep",
        "strop-nano",
        "--data",
        pictures,
        "--out",
        out,
        axis,
        "--steps=2",
        "--batch=4",
        *SMALL,
    )
    assert (out / "frontier.png").is_file()
    assert (out / "seed=1/model/config.json").is_file()


def test_axes_hold_words_and_lists() -> None:
    given = ["training.seed=0, 1", "curriculum.truncation=beta,uniform", "training.batch=[4, 8]"]
    assert commands._axes([*given, "model.length_head.hidden=[4],[]"]) == {
        "training.seed": [0, 1],
        "curriculum.truncation": ["beta", "uniform"],
        "training.batch": [4, 8],
        "model.length_head.hidden": [[4], []],
    }
    for wrong, message in [
        (["training.seed=1", "training.seed=2"], "given twice. Write it as training.seed=A,B,C"),
        (["training.seed=1,1"], "a value twice"),
        (["training.seed="], "has no values"),
        (["training.seed"], "has no values"),
    ]:
        with pytest.raises(ConfigError, match=message):
            commands._axes(wrong)


def test_what_is_learnt_from_is_not_held_out(pictures: str, tmp_path: Path) -> None:
    same = ["--data", pictures, "--val", pictures.removeprefix("folder:")]
    with pytest.raises(TrainingError, match="is both the training and the validation data"):
        run("train", "strop-nano", *same, "--out", tmp_path, "--steps=2", "--batch=4", *SMALL)


def test_unknown_keys_and_a_model_that_cannot_be_written_back(pictures: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.bach"):
        run("train", "strop-nano", "--data", pictures, "--set=training.bach=3")
    with pytest.raises(ConfigError, match="--out"):
        run("train-decoder", "someone/model", "--data", pictures)
    with pytest.raises(ConfigError, match="--out"):
        run("train-lengths", "scenes", "--data", pictures)


def _small(tmp_path: Path) -> Path:
    preset = tmp_path / "small.toml"
    preset.write_text('extends = "strop-nano"\n[model]\nimage_size = 32\n')
    return preset
