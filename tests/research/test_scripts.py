"""The scripts under research/: early errors, resumption, valid shell."""

from __future__ import annotations

import importlib
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

RESEARCH = Path(__file__).parents[2] / "research"
CLEVR = RESEARCH / "clevr"
TINY = RESEARCH.parent / "src" / "strop" / "weights" / "tiny"
SMALL = ("--held-out", "12", "--steps", "8", "--batch", "4")


def study(*arguments: str, timeout: int = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLEVR / "study.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


@pytest.mark.slow
def test_an_existing_row_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "ceiling-tiny-seed3").mkdir()
    folders = ("--out", str(tmp_path), "--runs", str(tmp_path / "runs"))
    done = study("64", "ceiling", "--teacher", "tiny", "--seed", "3", *folders)
    assert done.returncode == 2
    assert "ceiling-tiny-seed3 already exists: give --missing, or another --out" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_other_data_than_clevr_is_refused(tmp_path: Path) -> None:
    options = ("--out", str(tmp_path), "--clevr", "scenes:?n=4")
    done = study("64", "--teacher", "tiny", *options)
    assert done.returncode == 2
    assert "give clevr:PATH" in done.stderr


@pytest.mark.slow
def test_results_name_networks_and_data_without_paths(tmp_path: Path) -> None:
    folders = ("--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    write_scenes(tmp_path / "made", 12, 128, split="val")
    networks = ("--teacher", str(TINY), "--clevr", f"clevr:{tmp_path / 'made'}")
    done = study("ceiling", *networks, "--scenes", "24", *SMALL, *folders, timeout=300)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "out" / "ceiling-tiny" / "row.json").read_text())
    assert row["changes"] == {"curriculum.handoff_ceiling": 0.7}
    results = {path: path.read_text() for path in (tmp_path / "out").rglob("*.json")}
    assert any('"clevr:made"' in text for text in results.values())
    for path, text in results.items():
        assert str(TINY) not in text, path
        assert str(tmp_path) not in text, path


@pytest.mark.slow
def test_a_small_row_has_the_same_curriculum_and_no_decoder(tmp_path: Path) -> None:
    options = ("--small", "--scenes", "24", *SMALL, "--runs", str(tmp_path))
    done = study("64", "ceiling", "--teacher", "tiny", *options, timeout=300)
    assert done.returncode == 0, done.stderr
    plans = {}
    for row in ("64", "ceiling"):
        folder = tmp_path / "results" / f"{row}-tiny"
        plans[row] = json.loads((folder / "run.json").read_text())
        assert plans[row]["model"]["generator"]["width"] == 64
        assert {path.stem for path in folder.glob("*/*.json")} == {"alignment", "rate"}
    ours, trial = (plans[row]["curriculum"] for row in ("64", "ceiling"))
    assert {name for name in ours if ours[name] != trial[name]} == {"handoff_ceiling"}


def test_a_study_without_rows_says_so(tmp_path: Path) -> None:
    rows = {"TEACHER": "tiny", "ROWS": "64 --teacher tiny", "OUT": str(tmp_path / "out")}
    command = ["bash", str(CLEVR / "study.sh")]
    environment = {**os.environ, **rows}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "No rows are left" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_stopped_study_continues(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TEACHER": "tiny",
        "SCENES": "24",
        "OUT": str(tmp_path),
        "JOBS": "2",
        "ROWS": "64\nceiling --seed 1\nhigh-ceiling\n64 --teacher tiny",
    }
    interrupted = tmp_path / "64-tiny" / "run.json"
    interrupted.parent.mkdir()
    interrupted.write_text("{}")
    other = tmp_path / "results" / "high-ceiling-tiny"
    write_json(other / "row.json", "clevr", 1, {"images_seen": 7, "complexity": {"scenes": {}}})
    command = ["bash", str(CLEVR / "study.sh"), *SMALL, "--decoder-steps", "2"]
    run = partial(subprocess.run, command, capture_output=True, text=True, timeout=600)
    stopped = run(env=environment)
    assert stopped.returncode != 0
    assert "high-ceiling failed:" in stopped.stderr
    assert "high-ceiling-tiny was trained on 7 images and measured on scenes" in stopped.stderr
    shutil.rmtree(other)
    finished = run(env={**environment, "ROWS": "\n64\nceiling --seed 1\n"})
    assert finished.returncode == 0, finished.stderr
    assert "already measured" in (tmp_path / "logs" / "64.log").read_text()
    rows = {path.parent.name for path in tmp_path.glob("results/*/row.json")}
    assert rows == {"64-tiny", "ceiling-tiny-seed1"}
    assert (tmp_path / ".64-tiny.1" / "run.json").read_text() == "{}"
    assert "Past the paper" in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.parametrize("name", sorted(path.stem for path in RESEARCH.rglob("*.py")))
def test_modules_can_be_imported(name: str) -> None:
    importlib.import_module(name)


@pytest.mark.parametrize(
    "script", sorted(RESEARCH.rglob("*.sh")), ids=lambda path: path.relative_to(RESEARCH).as_posix()
)
def test_scripts_are_valid_shell(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("script", "variable"),
    [("bundle/tiny", "GROUPING"), ("bundle/photos", "PHOTOS"), ("clevr/study", "TEACHER")],
)
def test_scripts_name_missing_variables(script: str, variable: str) -> None:
    done = subprocess.run(
        ["bash", str(RESEARCH / f"{script}.sh")],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode != 0
    assert variable in done.stderr
