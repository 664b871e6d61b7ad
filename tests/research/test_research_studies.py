"""The studies under research/ in the frame of `strop study`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from strop.analysis.frame import describe_options, run_study
from strop.errors import ConfigError, DataError
from strop.images import save_image

pytestmark = pytest.mark.slow
STUDIES = ("contingency", "llm", "reader", "vqa", "controls", "grammar")


@pytest.mark.parametrize(
    ("study", "option", "value", "remedy"),
    [
        ("reader", "test_share", 1.0, "above 0 and below 1"),
        ("reader", "curve", 0, "at least 1"),
        ("vqa", "rounds", 0, "at least 1"),
        ("llm", "scenes", 0, "at least 1"),
        ("controls", "draws", -1, "at least 1"),
        ("grammar", "samples", 0, "at least 1"),
    ],
)
def test_options_out_of_range_are_refused_before_the_work(
    tokenizer, tmp_path, monkeypatch, study, option, value, remedy
):
    monkeypatch.setattr(tokenizer, "analyse", None)  # nothing is encoded
    analysis = import_module(study).ANALYSIS
    with pytest.raises(ConfigError, match=rf"{study}\.{option} is .*{remedy}"):
        run_study(tokenizer, analysis, "scenes:?n=3&size=64", tmp_path, {option: value})


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_has_options_with_defaults_and_descriptions(study):
    analysis = import_module(study).ANALYSIS
    assert analysis.name == study
    assert analysis.options()
    assert all(describe_options(analysis.options).values())


def test_data_without_scenes_or_labels_is_refused(tokenizer, tmp_path, images):
    save_image(tmp_path / "pictures" / "0.png", images[0] / 255)
    analysis = import_module("contingency").ANALYSIS
    with pytest.raises(DataError, match=r"contingency needs scene or labels"):
        run_study(tokenizer, analysis, f"folder:{tmp_path / 'pictures'}", tmp_path / "out")


@pytest.mark.shared
@pytest.mark.parametrize("data", ["voc:{}/data/voc2012?limit=4", "clevr:{}/data/clevr?limit=4"])
def test_contingency_of_real_annotations(tokenizer, shared, tmp_path, data):
    run_study(tokenizer, import_module("contingency").ANALYSIS, data.format(shared), tmp_path)
    assert json.loads((tmp_path / "contingency.json").read_text())["images"] == 4


@pytest.mark.parametrize("study", ["contingency", "controls"])
def test_the_command_line(study, tmp_path):
    script = Path(import_module(study).__file__)
    command = [sys.executable, str(script), "scenes", "--out", str(tmp_path)]
    command += ["--data", "scenes:?n=6&size=128", "--draws", "2", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{study}.json").is_file()
    done = subprocess.run([*command, "--draws", "0"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "error --draws is 0. Give a number that is at least 1." in done.stderr
