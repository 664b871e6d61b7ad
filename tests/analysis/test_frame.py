"""The frame: refusals before any work, encoding once, resumption, and what is written."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from strop.analysis import frame
from strop.analysis.findings import Findings, Table, read_findings, write_findings
from strop.analysis.frame import Analysis, check_needs, find_analysis, run_study
from strop.analysis.registry import ANALYSES
from strop.analysis.subject import Subject
from strop.config import check_ranges
from strop.data.record import Record
from strop.data.spec import open_dataset
from strop.errors import ConfigError, DataError
from strop.figures import new_figure, plain_axes
from strop.images import save_image
from strop.statistics import Interval

HEADER = {"study": "some", "model": "m", "data": "d", "images": 3, "options": {}}
SCENES = "scenes:?n=5&size=64"


def subject_of(tokenizer, **options):
    return Subject(tokenizer=tokenizer, dataset=open_dataset(SCENES), data=SCENES, **options)


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_has_options_with_defaults(name):
    analysis = find_analysis(name)
    assert analysis.options()
    assert analysis.options.__doc__


def test_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match=r"Did you mean 'erasure'\?"):
        find_analysis("erasures")


def test_data_without_masks_is_refused_before_the_work(tokenizer, tmp_path, images):
    for number, image in enumerate(images):
        save_image(tmp_path / "pictures" / f"{number}.png", image / 255)
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"needs semantic, which .* its records have image, name"):
        run_study(tokenizer, "readouts", f"folder:{tmp_path / 'pictures'}", out)
    assert not out.exists()


def test_one_of_several_needs_is_enough():
    pixels = torch.zeros(3, 4, 4, dtype=torch.uint8)
    record = Record(image=pixels, name="a", labels=torch.ones(2))
    check_needs(("scene or labels",), record, "x", "y")
    with pytest.raises(DataError):
        check_needs(("scene",), record, "x", "y")
    with pytest.raises(DataError, match="needs scene or depth"):
        check_needs(("scene or depth",), record, "x", "y")


def test_unknown_options_are_refused_before_the_work(tokenizer, tmp_path):
    with pytest.raises(ConfigError, match=r"Unknown key erasure.draw\. .*'draws'"):
        run_study(tokenizer, "erasure", "scenes:?n=2", tmp_path, {"draw": 3})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every kind."""

    draws: int = field(default=3, metadata={"min": 1})
    share: float = field(default=0.5, metadata={"above": 0, "below": 1})
    memory: float = field(default=1.0, metadata={"above": 0})
    seed: int = 0
    name: str = ""
    flag: bool = False


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("draws", 0, "at least 1"),
        ("seed", -1, "at least 0"),
        ("memory", 0.0, "above 0"),
        ("memory", math.nan, "above 0"),
        ("share", 0.0, "above 0 and below 1"),
        ("share", 1.0, "above 0 and below 1"),
    ],
)
def test_options_out_of_range_are_refused(option, value, remedy):
    check_ranges(Options(), "some", min=0)
    with pytest.raises(ConfigError, match=rf"some\.{option} is .*{remedy}"):
        check_ranges(Options(**{option: value}), "some", min=0)


def test_a_dataset_is_encoded_once_and_in_order(tokenizer):
    steps = []
    subject = subject_of(tokenizer, batch=2, progress=lambda *step: steps.append(step))
    images = torch.stack([open_dataset(SCENES)[number].image for number in range(5)])
    assert torch.equal(subject.records.images, images)
    assert subject.program.named(()) == tokenizer.encode(images)
    assert subject.program.names == subject.records.names
    assert len(subject.records.scenes) == len(subject) == 5
    assert torch.equal(subject.z, tokenizer.analyse(images).z)
    assert steps == [("encoding", done, 5) for done in (2, 4, 5)]


def test_fields_are_those_of_the_teacher_whenever_they_are_needed(tokenizer):
    images = torch.stack([open_dataset(SCENES)[number].image for number in range(5)])
    first, last = subject_of(tokenizer, batch=2), subject_of(tokenizer, batch=2)
    assert len(last.program) == 5
    assert torch.equal(first.fields, tokenizer.field(images))
    assert torch.equal(last.fields, first.fields)
    assert last.program == first.program


def test_fields_beyond_the_memory_budget_are_kept_in_a_file(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    small, large = subject_of(tokenizer, memory=1e-6), subject_of(tokenizer)
    assert torch.equal(small.fields, large.fields)
    assert not list(tmp_path.iterdir())


def test_fitting_needs_other_images(tokenizer):
    train = subject_of(tokenizer)
    with pytest.raises(DataError, match="--train"):
        train.fitted_on()
    with pytest.raises(DataError, match="also trained on"):
        subject_of(tokenizer, train=train).fitted_on()


def test_findings_are_written(tmp_path):
    figure = new_figure(2, 2)
    plain_axes(figure, "x", "y")
    findings = Findings(
        numbers={
            "values": {"r2": 0.5},
            "intervals": {"r2": [0.4, math.nan]},
            "a": math.nan,
            "b": [1.5, (math.inf,)],
            "c": {"d": 2},
        },
        tables=[Table("Some", ("x", "y"), [["a|b", math.nan], [1, 0.123456]])],
        figures={"one": figure},
        files={"page/index.html": "<p>", "page/a.bin": b"\x00"},
        notes=("A note.",),
    )
    written = write_findings(tmp_path, "some", "study", HEADER, findings)
    read = json.loads(
        (tmp_path / "some.json").read_text(), parse_constant=lambda name: pytest.fail(name)
    )
    assert read.pop("format") == "strop.study/1"
    assert read == written == read_findings(tmp_path, "some", "study")
    assert read["a"] is None
    assert read["b"] == [1.5, [None]]
    assert read["intervals"] == {"r2": [0.4, None]}
    assert read["tables"][0]["rows"] == [["a|b", None], [1, 0.123456]]
    page = (tmp_path / "some.md").read_text()
    assert "| a\\|b | – |\n| 1 | 0.1235 |" in page
    assert "![one](some-one.png)" in page
    assert "[page/index.html](page/index.html)" in page
    assert (tmp_path / "some-one.png").read_bytes()[1:4] == b"PNG"
    assert (tmp_path / "page" / "a.bin").read_bytes() == b"\x00"


def test_a_table_is_made_of_rows_or_of_named_rows_and_shown_if_it_has_any():
    rows = {"a": {"value": Interval(2, 1, 3), "n": 4}}
    pairs = [{"code": 1, "count": 5}]
    findings = Findings(
        numbers={"more": 6},
        tables=[
            Table("Named", ("", "value", "low", "high", "n"), rows),
            Table("Listed", ("code", "count"), pairs),
            Table("Nothing", ("",), {}),
        ],
    )
    content = findings.content()
    assert content["more"] == 6
    assert [table["title"] for table in content["tables"]] == ["Named", "Listed"]
    assert [table["rows"] for table in content["tables"]] == [[["a", 2, 1, 3, 4]], [[1, 5]]]


def test_numpy_numbers_are_numbers(tmp_path):
    findings = Findings(numbers={"a": np.float64(1), "b": np.int64(2)})
    write_findings(tmp_path, "some", "study", HEADER, findings)
    assert json.loads((tmp_path / "some.json").read_text())["b"] == 2


@pytest.fixture
def runs(monkeypatch):
    """How often a registered analysis ran; it finds the number of images."""
    count = []

    def run(subject, options):
        count.append(options)
        return Findings(numbers={"found": len(subject)})

    analysis = Analysis(run=run, options=Options)
    monkeypatch.setattr(frame, "find_analysis", lambda *_: analysis)
    return count


def test_a_finished_result_is_computed_again_only_if_something_changed(
    tokenizer, make_tokenizer, tmp_path, runs
):
    first = run_study(tokenizer, "some", SCENES, tmp_path)
    assert first["found"] == first["images"] == 5
    assert run_study(tokenizer, "some", SCENES, tmp_path) == first
    assert len(runs) == 1
    assert run_study(tokenizer, "some", SCENES, tmp_path, {"draws": 2})["options"]["draws"] == 2
    run_study(tokenizer, "some", f"{SCENES}&seed=4", tmp_path)
    run_study(make_tokenizer(seed=1), "some", f"{SCENES}&seed=4", tmp_path)
    assert len(runs) == 4
