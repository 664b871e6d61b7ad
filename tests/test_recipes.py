"""Recipes that train for minutes say at once what would stop them afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from strop.data import write_scenes
from strop.files import write_json

RECIPES = Path(__file__).parents[1] / "recipes"
TINY = RECIPES.parent / "src" / "strop" / "weights" / "tiny"


def clevr(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RECIPES / "clevr.py"), "64", "price", "--teacher", "tiny"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)


def test_a_row_that_is_there_is_not_trained_over(tmp_path: Path) -> None:
    (tmp_path / "price-tiny-seed3").mkdir()
    done = clevr("--out", str(tmp_path), "--seed", "3", "--runs", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "price-tiny-seed3 is there already: give --missing, or another --out" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_only_blenders_scenes_are_reported_on_beside(tmp_path: Path) -> None:
    done = clevr("--out", str(tmp_path), "--clevr", "scenes:?n=4")
    assert done.returncode == 2
    assert "give clevr:PATH" in done.stderr


@pytest.mark.slow
def test_a_row_whose_lengths_are_fitted_afterwards(tmp_path: Path) -> None:
    sizes = ("--scenes", "24", "--held-out", "12", "--steps", "8", "--batch", "4")
    folders = ("--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    write_scenes(tmp_path / "made", 12, 128, split="val")
    networks = ("--teacher", str(TINY), "--clevr", f"clevr:{tmp_path / 'made'}")
    command = [sys.executable, str(RECIPES / "clevr.py"), "refitted", *networks]
    subprocess.run([*command, *sizes, *folders], check=True, capture_output=True, timeout=300)
    row = json.loads((tmp_path / "out" / "refitted-tiny" / "row.json").read_text())
    assert row["changes"]["lengths.mean"] == 18
    model = json.loads((tmp_path / "runs" / "refitted-tiny" / "model" / "config.json").read_text())
    assert model["about"]["lengths"].startswith("fitted anew to a mean of 18 tokens")
    results = {path: path.read_text() for path in (tmp_path / "out").rglob("*.json")}
    assert any('"clevr:made"' in text for text in results.values())
    for path, text in results.items():
        assert str(TINY) not in text, path
        assert str(tmp_path) not in text, path


@pytest.mark.slow
def test_a_small_row_has_the_same_curriculum_and_no_decoder(tmp_path: Path) -> None:
    sizes = ("--scenes", "24", "--held-out", "12", "--steps", "8", "--batch", "4")
    command = [sys.executable, str(RECIPES / "clevr.py"), "64", "outlines", "--teacher", "tiny"]
    command += ["--small", *sizes, "--runs", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    plans = {}
    for row in ("64", "outlines"):
        folder = tmp_path / "results" / f"{row}-tiny"
        plans[row] = json.loads((folder / "run.json").read_text())
        assert plans[row]["model"]["generator"]["width"] == 64
        assert {path.stem for path in folder.glob("*/*.json")} == {"alignment", "rate"}
    assert plans["outlines"]["curriculum"]["oracle"] == "outlines"
    ours, trial = (plans[row]["curriculum"] for row in ("64", "outlines"))
    same = {name for name in ours if ours[name] == trial[name]}
    assert {*ours} - same == {"oracle", "oracle_scale", "handoff_ceiling"}


def test_a_study_of_no_rows_says_so(tmp_path: Path) -> None:
    rows = {"TEACHER": "tiny", "ROWS": "64 --teacher tiny", "OUT": str(tmp_path / "out")}
    command = ["bash", str(RECIPES / "clevr.sh")]
    environment = {**os.environ, **rows}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "No rows are left" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_whole_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TEACHER": "tiny",
        "SCENES": "24",
        "OUT": str(tmp_path),
        "JOBS": "2",
        "ROWS": "64\nceiling --seed 1\ntolerance\n64 --teacher tiny",
    }
    broken = tmp_path / "64-tiny" / "run.json"
    broken.parent.mkdir()
    broken.write_text("{}")
    other = tmp_path / "results" / "tolerance-tiny"
    write_json(other / "row.json", "clevr", 1, {"images_seen": 7, "complexity": {"scenes": {}}})
    sizes = ("--held-out", "12", "--steps", "8", "--batch", "4", "--decoder-steps", "2")
    command = ["bash", str(RECIPES / "clevr.sh"), *sizes]
    run = partial(subprocess.run, command, capture_output=True, text=True, timeout=600)
    stopped = run(env=environment)
    assert stopped.returncode != 0
    assert "tolerance failed:" in stopped.stderr
    assert "tolerance-tiny is of 7 images, measured on scenes" in stopped.stderr
    shutil.rmtree(other)
    finished = run(env={**environment, "ROWS": "\n64\nceiling --seed 1\n"})
    assert finished.returncode == 0, finished.stderr
    assert "its figures are there" in (tmp_path / "logs" / "64.log").read_text()
    rows = {path.parent.name for path in tmp_path.glob("results/*/row.json")}
    assert rows == {"64-tiny", "ceiling-tiny-seed1"}
    assert (tmp_path / ".64-tiny.1" / "run.json").read_text() == "{}"
    assert "Past the paper" in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.parametrize("script", sorted(RECIPES.glob("*.sh")), ids=lambda path: path.stem)
def test_scripts_are_sound_shell(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("script", "lacks"), [("tiny", "GROUPING"), ("photos", "PHOTOS"), ("clevr", "TEACHER")]
)
def test_scripts_ask_for_what_they_need(script: str, lacks: str) -> None:
    done = subprocess.run(
        ["bash", str(RECIPES / f"{script}.sh")],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode != 0
    assert lacks in done.stderr
