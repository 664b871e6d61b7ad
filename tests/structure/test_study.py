"""The frame: data that lacks what a study needs, options, and what is written."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from strop.data.record import Record
from strop.data.spec import open_dataset
from strop.errors import ConfigError, DataError
from strop.figures import new_figure, plain_axes
from strop.images import save_image
from strop.structure.study import (
    STUDIES,
    Findings,
    Table,
    check_needs,
    encode_dataset,
    find_study,
    run_study,
    write_findings,
)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_options_with_defaults(name):
    study = find_study(name)
    assert study.options()
    assert study.options.__doc__


def test_another_name_is_no_study():
    with pytest.raises(ConfigError, match=r"Did you mean 'erasure'\?"):
        find_study("erasures")


def test_data_without_masks_is_refused_before_the_work(tokenizer, tmp_path, images):
    for number, image in enumerate(images):
        save_image(tmp_path / "pictures" / f"{number}.png", image / 255)
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"needs semantic, which .* its records have image, name"):
        run_study(tokenizer, "readouts", f"folder:{tmp_path / 'pictures'}", out)
    with pytest.raises(DataError, match=r"needs scene or labels"):
        run_study(tokenizer, "contingency", f"folder:{tmp_path / 'pictures'}", out)
    assert not out.exists()


def test_one_of_several_needs_will_do():
    record = Record(image=torch.zeros(3, 4, 4), name="a", labels=torch.ones(2))
    check_needs(("scene or labels",), record, "x", "y")
    with pytest.raises(DataError):
        check_needs(("scene",), record, "x", "y")


def test_options_are_checked_by_name_before_the_work(tokenizer, tmp_path):
    with pytest.raises(ConfigError, match=r"Unknown key erasure.draw\. .*'draws'"):
        run_study(tokenizer, "erasure", "scenes:?n=2", tmp_path, {"draw": 3})


@pytest.mark.parametrize(
    ("study", "option", "value", "remedy"),
    [
        ("erasure", "draws", 0, "at least 1"),
        ("erasure", "examples", 0, "at least 1"),
        ("readouts", "clusters", -2, "at least 0"),
        ("controls", "transplants", -1, "at least 1"),
        ("grammar", "samples", 0, "at least 1"),
        ("complexity", "seed", -1, "at least 0"),
        ("synergy", "memory", -1.0, "above 0"),
        ("reader", "test_share", 1.0, "between 0 and 1"),
    ],
)
def test_options_out_of_range_are_refused_before_the_work(
    tokenizer, tmp_path, monkeypatch, study, option, value, remedy
):
    monkeypatch.setattr(tokenizer, "encode", None)  # nothing is encoded
    with pytest.raises(ConfigError, match=rf"{study}\.{option} is .*{remedy}"):
        run_study(tokenizer, study, "scenes:?n=3&size=64", tmp_path, {option: value})


def test_a_dataset_is_encoded_once_and_in_order(tokenizer):
    seen = []
    dataset = open_dataset("scenes:?n=5&size=64")
    encoded = encode_dataset(
        tokenizer, dataset, "scenes:", batch=2, watch=lambda *step: seen.append(step)
    )
    images = torch.stack([dataset[number].image for number in range(5)])
    assert torch.equal(encoded.records.images, images)
    assert encoded.program == tokenizer.encode(images)
    assert encoded.program.names == encoded.records.names
    assert len(encoded.records.scenes) == len(encoded) == 5
    assert seen == [("encoding", done, 5) for done in (2, 4, 5)]


def test_what_is_written_can_be_read(tmp_path):
    figure = new_figure(2, 2)
    plain_axes(figure, "x", "y")
    findings = Findings(
        numbers={"a": math.nan, "b": [1.5, (math.inf,)], "c": {"d": 2}},
        tables=[Table("Some", ("x", "y"), [["a", math.nan], [1, 0.123456]])],
        figures={"one": figure},
        files={"page/index.html": "<p>", "page/a.bin": b"\x00"},
        notes=("A note.",),
    )
    setting = {"study": "some", "model": "m", "data": "d", "images": 3, "options": {}}
    write_findings(tmp_path, setting, findings)
    read = json.loads(
        (tmp_path / "some.json").read_text(), parse_constant=lambda name: pytest.fail(name)
    )
    assert read["format"] == "strop.study/1"
    assert read["a"] is None
    assert read["b"] == [1.5, [None]]
    assert read["tables"][0]["rows"] == [["a", None], [1, 0.123456]]
    page = (tmp_path / "some.md").read_text()
    assert "| a | – |\n| 1 | 0.1235 |" in page
    assert "![one](some-one.png)" in page
    assert "[page/index.html](page/index.html)" in page
    assert (tmp_path / "some-one.png").read_bytes()[1:4] == b"PNG"
    assert (tmp_path / "page" / "a.bin").read_bytes() == b"\x00"


def test_numpy_numbers_are_numbers(tmp_path):
    setting = {"study": "some", "model": "m", "data": "d", "images": 3, "options": {}}
    write_findings(tmp_path, setting, Findings(numbers={"a": np.float64(1), "b": np.int64(2)}))
    assert json.loads((tmp_path / "some.json").read_text())["b"] == 2


def test_a_study_of_rendered_scenes_is_reproducible(tokenizer, tmp_path):
    for folder in ("a", "b"):
        run_study(tokenizer, "complexity", "scenes:?n=4&size=64", tmp_path / folder, {"draws": 5})
    first, second = ((tmp_path / folder / "complexity.json").read_text() for folder in ("a", "b"))
    assert first == second


@pytest.mark.shared
@pytest.mark.parametrize("data", ["voc:{}/data/voc2012?limit=4", "clevr:{}/data/clevr?limit=4"])
def test_studies_of_real_masks(tokenizer, shared, tmp_path, data):
    for name in ("readouts", "contingency"):
        run_study(tokenizer, name, data.format(shared), tmp_path)
        assert json.loads((tmp_path / f"{name}.json").read_text())["images"] == 4


def test_a_broken_first_file_costs_that_file_alone(tokenizer, tmp_path):
    (tmp_path / "0.png").write_bytes(b"no picture")
    for number in range(1, 5):
        plain = torch.full((3, 64, 64), 50 * number, dtype=torch.uint8)
        save_image(tmp_path / f"{number}.png", plain)
    with pytest.warns(UserWarning, match="1 of 5 records"):
        run_study(tokenizer, "complexity", f"folder:{tmp_path}", tmp_path / "out")
