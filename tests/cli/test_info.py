"""`strop info`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strop import Tokenizer
from strop.cli import app, info
from strop.cli.info import describe
from strop.errors import TeacherError
from strop.training.preset import load_preset, preset_names

PAPER = {  # preset: trainable and total parameters in millions, from the paper's Table "variants"
    "strop-s-dinov3-s": (13.5, 35.1),
    "strop-m-dinov3-s": (64.3, 85.9),
    "strop-s-dinov3-b": (14.2, 99.8),
    "strop-m-dinov3-b": (65.1, 150.8),
    "strop-m-dinov3-l": (65.6, 368.8),
}


@pytest.mark.parametrize("name", PAPER)
def test_presets_have_the_parameters_of_the_paper(name: str) -> None:
    facts = describe(name)
    trainable, total = PAPER[name]
    assert facts["trainable_parameters"] / 1e6 == pytest.approx(trainable, abs=0.1)
    assert facts["total_parameters"] / 1e6 == pytest.approx(total, abs=0.1)
    assert facts["bits"] == 640


def test_compression_equals_the_paper() -> None:
    times = [describe(f"strop-{size}")["compression"] for size in ("s-dinov3-s", "s-dinov3-b")]
    assert [int(time) for time in times] == [4915, 9830]
    assert int(describe("strop-m-dinov3-l")["compression"]) == 13107


def test_xs_is_about_five_million() -> None:
    assert describe("strop-xs")["trainable_parameters"] / 1e6 == pytest.approx(5, abs=0.3)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_described_as_json(name: str) -> None:
    done = CliRunner().invoke(app, ["info", name, "--json"])
    facts = json.loads(done.stdout)
    assert facts["shapes"]["program"] == [facts["config"]["max_length"]]


def test_a_model_is_described_without_its_teacher(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer.save_pretrained(tmp_path / "model[b]")

    def unreachable(name: str) -> int:
        raise TeacherError(f"The teacher {name} could not be fetched.", "Check the network.")

    monkeypatch.setattr(info, "teacher_parameters", unreachable)
    name = str(tmp_path / "model[b]")
    facts = json.loads(CliRunner().invoke(app, ["info", name, "--json"]).stdout)
    assert facts["total_parameters"] is None
    assert facts["trainable_parameters"] == tokenizer.trainable_parameters
    shown = CliRunner().invoke(app, ["info", name], env={"COLUMNS": "200"}).stdout
    assert "unknown (teacher not found)" in shown
    assert "model[b]" in shown


def test_bundled_models_and_presets_are_listed() -> None:
    shown = CliRunner().invoke(app, ["info"], env={"COLUMNS": "200"}).stdout
    listed = [line.split()[0] for line in shown.splitlines() if line]
    assert listed[:4] == ["bundled", "photos", "scenes", "preset"]
    # What needs no download comes first.
    assert load_preset(listed[4]).model.teacher.name == "tiny"
    assert sorted(listed[4:]) == preset_names()
    facts = json.loads(CliRunner().invoke(app, ["info", "--json"]).stdout)
    assert list(facts["models"]) == ["photos", "scenes"]
    assert facts["models"]["scenes"]["model"]["teacher"]["name"] == "tiny"
    assert sorted(facts["presets"]) == preset_names()


def test_a_models_metrics_have_rows_of_their_own(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.about = {"steps": "7", "metrics": {"r2, held out": 0.96851089}}
    try:
        tokenizer.save_pretrained(tmp_path)
    finally:
        tokenizer.about = {}
    shown = CliRunner().invoke(app, ["info", str(tmp_path)], env={"COLUMNS": "200"}).stdout
    rows = [line.split() for line in shown.splitlines()]
    assert ["steps", "7"] in rows
    assert ["r2,", "held", "out", "0.9685"] in rows
