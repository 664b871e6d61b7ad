"""What the page of the CLEVR study shows beside the tables of `strop report`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from clevr_rows import line_of, write_row

from strop.errors import DataError
from strop.evaluation.clevr import tables
from strop.files import write_json

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def clevr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/clevr.py, on an empty folder of results."""
    spec = importlib.util.spec_from_file_location("docs_clevr", DOCS / "clevr.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look there
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "SMALL", tmp_path / "small")
    monkeypatch.setattr(module, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(module, "FOLLOWED", tmp_path / "followed.json")
    return module


def test_without_rows_the_page_says_so(clevr: ModuleType) -> None:
    for make in (tables.settings, tables.beside_the_paper, clevr.follow, clevr.mean_image):
        assert clevr.block(make) == "Not measured yet."
    clevr.draw_figures()
    assert not clevr.IMAGES.exists()


def test_what_lengths_follow_is_of_the_rows_that_are_there(clevr: ModuleType) -> None:
    write_row(clevr.RESULTS, "64")
    assert clevr.block(clevr.follow) == ""

    def told(value: float) -> dict[str, Any]:
        figure = {"value": value, "low": value - 0.1, "high": value + 0.1}
        return dict.fromkeys(("objects", "covered", "outlines"), figure)

    found = {
        "images": 2000,
        "objects": told(0.7),
        "isoperimetric": told(0.6),
        "rows": {"64": {"images": 40, **told(-1.0)}, "gone": {"images": 40, **told(0.5)}},
        "fields": {"tiny": {"volume": told(0.8)}},
    }
    write_json(clevr.FOLLOWED, "benchmark", 1, found)
    page = clevr.block(clevr.follow)
    assert line_of(page, "`64`")[1] == "-1.000 [-1.100, -0.900]"
    assert line_of(page, "`tiny`: log volume of locations")[2] == "0.800 [0.700, 0.900]"
    assert "gone" not in page
    # The lengths of the row, so many fewer as there are objects, are not those told of here.
    found["rows"]["64"] = {"images": 40, **told(0.9)}
    write_json(clevr.FOLLOWED, "benchmark", 1, found)
    with pytest.raises(DataError, match=r"followed.json is of another run of 64\."):
        clevr.block(clevr.follow)


def test_small_rows_are_a_study_of_their_own(clevr: ModuleType) -> None:
    write_row(clevr.SMALL, "64")
    write_row(clevr.SMALL, "64-seed1", seed=1)
    write_row(clevr.SMALL, "price", changes={"curriculum.oracle": "price"})
    assert clevr.block(tables.over_seeds) == "Not measured yet."
    assert line_of(clevr.block(tables.over_seeds, small=True), "`64`")[1] == "2"


def test_figures_are_drawn_and_shown(clevr: ModuleType) -> None:
    write_row(clevr.RESULTS, "64")
    write_row(clevr.RESULTS, "price", changes={"curriculum.oracle": "price"})
    assert "![" not in clevr.block(tables.trials, "rate")
    clevr.draw_figures()
    assert {path.name for path in clevr.IMAGES.iterdir()} == {"lengths.png", "rate.png"}
    assert "images/rate.png)" in clevr.block(tables.trials, "rate")
    assert "mean image, one for all, has SSIM 0." in clevr.block(clevr.mean_image)
