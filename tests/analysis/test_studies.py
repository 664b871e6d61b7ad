"""All studies through the frame: ranges of options, reproducibility, real masks."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

import pytest
import torch

from strop.analysis.findings import Findings
from strop.analysis.frame import Analysis, identities, run_study
from strop.analysis.subject import Subject
from strop.data.spec import open_dataset
from strop.errors import ConfigError
from strop.images import save_image


@pytest.mark.parametrize(
    ("study", "option", "value", "remedy"),
    [
        ("erasure", "draws", 0, "at least 1"),
        ("readouts", "clusters", -2, "at least 0"),
        ("complexity", "seed", -1, "at least 0"),
        ("synergy", "pairs", -1, "at least 0"),
    ],
)
def test_options_out_of_range_are_refused_before_the_work(
    tokenizer, tmp_path, monkeypatch, study, option, value, remedy
):
    monkeypatch.setattr(tokenizer, "analyse", None)  # nothing is encoded
    with pytest.raises(ConfigError, match=rf"{study}\.{option} is .*{remedy}"):
        run_study(tokenizer, study, "scenes:?n=3&size=64", tmp_path, {option: value})


def test_a_study_of_rendered_scenes_is_reproducible(tokenizer, tmp_path):
    for folder in ("a", "b"):
        run_study(tokenizer, "complexity", "scenes:?n=4&size=64", tmp_path / folder, {"draws": 5})
    first, second = ((tmp_path / folder / "complexity.json").read_text() for folder in ("a", "b"))
    assert first == second


@pytest.mark.shared
@pytest.mark.parametrize("data", ["voc:{}/data/voc2012?limit=4", "clevr:{}/data/clevr?limit=4"])
def test_studies_of_real_masks(tokenizer, shared, tmp_path, data):
    run_study(tokenizer, "readouts", data.format(shared), tmp_path)
    assert json.loads((tmp_path / "readouts.json").read_text())["images"] == 4


def test_a_broken_first_image_is_skipped(tokenizer, tmp_path):
    (tmp_path / "0.png").write_bytes(b"no picture")
    for number in range(1, 5):
        plain = torch.full((3, 64, 64), 50 * number, dtype=torch.uint8)
        save_image(tmp_path / f"{number}.png", plain)
    with pytest.warns(UserWarning, match="1 of 5 records"):
        found = run_study(tokenizer, "complexity", f"folder:{tmp_path}", tmp_path / "out")
    assert found["images"] == 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options with further data."""

    pairs: str = field(default="", metadata={"dataset": True})


def test_a_result_depends_on_the_files_of_further_data(tokenizer, tmp_path):
    picture = tmp_path / "0.png"
    save_image(picture, torch.zeros(3, 64, 64, dtype=torch.uint8))
    dataset = open_dataset("scenes:?n=3&size=64")
    subject = Subject(tokenizer=tokenizer, dataset=dataset, data="scenes:")
    analysis = Analysis(run=lambda subject, options: Findings(), options=Options)
    options = Options(pairs=f"folder:{tmp_path}")
    first = identities(subject, analysis, options)
    assert identities(subject, analysis, options) == first
    assert "pairs" not in identities(subject, analysis, Options())
    os.utime(picture, ns=(1, 1))
    assert identities(subject, analysis, options)["pairs"] != first["pairs"]
