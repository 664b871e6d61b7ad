"""The studies under research/reading in the frame of `strop study`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import studies
from strop.analysis.frame import find_analysis, run_study
from strop.analysis.registry import ANALYSES, STUDIES
from strop.errors import ConfigError, DataError
from strop.images import save_image

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    for table in (STUDIES, ANALYSES):
        for name, entry in studies.READING.items():
            monkeypatch.setitem(table, name, entry)


@pytest.mark.parametrize(
    ("study", "option", "value", "remedy"),
    [
        ("reader", "test_share", 1.0, "above 0 and below 1"),
        ("reader", "curve", 0, "at least 1"),
        ("vqa", "rounds", 0, "at least 1"),
        ("llm", "scenes", 0, "at least 1"),
    ],
)
def test_options_out_of_range_are_refused_before_the_work(
    tokenizer, tmp_path, monkeypatch, study, option, value, remedy
):
    monkeypatch.setattr(tokenizer, "analyse", None)  # nothing is encoded
    with pytest.raises(ConfigError, match=rf"{study}\.{option} is .*{remedy}"):
        run_study(tokenizer, study, "scenes:?n=3&size=64", tmp_path, {option: value})


@pytest.mark.parametrize("name", studies.READING)
def test_every_study_has_options_with_defaults(name):
    analysis = find_analysis(name)
    assert analysis.options()
    assert analysis.options.__doc__


def test_data_without_scenes_or_labels_is_refused(tokenizer, tmp_path, images):
    save_image(tmp_path / "pictures" / "0.png", images[0] / 255)
    with pytest.raises(DataError, match=r"needs scene or labels"):
        run_study(tokenizer, "contingency", f"folder:{tmp_path / 'pictures'}", tmp_path / "out")


@pytest.mark.shared
@pytest.mark.parametrize("data", ["voc:{}/data/voc2012?limit=4", "clevr:{}/data/clevr?limit=4"])
def test_contingency_of_real_annotations(tokenizer, shared, tmp_path, data):
    run_study(tokenizer, "contingency", data.format(shared), tmp_path)
    assert json.loads((tmp_path / "contingency.json").read_text())["images"] == 4


def test_the_command_line(tmp_path):
    script = Path(studies.__file__)
    command = [sys.executable, str(script), "scenes", "contingency", "--out", str(tmp_path)]
    command += ["--data", "scenes:?n=6&size=128", "--draws", "2", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "contingency.json").is_file()
