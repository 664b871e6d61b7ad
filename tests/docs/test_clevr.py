"""The page of the CLEVR study, from rows made by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from strop.config import to_dict
from strop.data.scenes.sampling import object_counts
from strop.errors import DataError
from strop.evaluation.parts import FORMAT, KIND
from strop.files import write_json
from strop.training.preset import load_preset

DOCS = Path(__file__).parents[2] / "docs"
LONGEST = 32


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
    monkeypatch.setattr(module, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(module, "FOLLOWED", tmp_path / "followed.json")
    return module


def write_row(
    folder: Path,
    name: str,
    *,
    preset: str = "clevr-64",
    changes: dict[str, Any] | None = None,
    seed: int = 0,
    r2: float = 0.9,
    r2_whole: float = 0.9,
    correlation: float = 0.9,
    ssim: float | None = None,
) -> None:
    plan = load_preset(preset, {"training.batch": 512})
    curve = [r2_whole] * LONGEST
    suites: dict[str, dict[str, Any]] = {
        "alignment": {
            "values": {
                "cosine": 0.95,
                "r2": r2,
                "r2_mean_field": 0.8,
                "codebook_effective": 80.0,
                "length_mean": 12.5,
                "length_least": 4.0,
                "length_most": 30.0,
            }
        },
        "rate": {
            "values": {
                "r2": r2,
                "length_mean": 12.5,
                "regret_r2": 0.0012,
                "regret_r2_fixed": 0.0034,
            },
            "curve": {"length": list(range(1, LONGEST + 1)), "r2": curve},
            # one finds as many tokens as there are objects, the other so many fewer
            "lengths": {
                "searched": object_counts(0, range(40)).tolist(),
                "chosen": (20 - object_counts(0, range(40))).tolist(),
            },
        },
    }
    if ssim is not None:
        suites["pixels"] = {"values": {"ssim": ssim}}
    model = {"name": name, "fingerprint": name, "config": to_dict(plan.model)}
    for suite, found in suites.items():
        for spec in ("scenes:?n=40", "clevr:/data/clevr"):
            part = {"suite": suite, "model": model, "data": spec, "images": 40, **found}
            path = folder / name / spec.partition(":")[0] / f"{suite}.json"
            write_json(path, KIND, FORMAT, part)
    follows = {"value": correlation, "low": correlation - 0.01, "high": correlation + 0.01}
    complexity = {
        "pearson": follows,
        "spearman": follows,
        "mean_length": {"3": 8.0, "10": 20.0},
        "percentiles": {"ratio": 2.5},
    }
    facts = {
        "row": name.partition("-seed")[0],
        "preset": preset,
        "changes": changes or {},
        "teacher": "vits14-focus",
        "seed": seed,
        "machine": "GPU",
        "minutes": 3.0,
        "images_per_second": 9000.0,
        "images_seen": 1_536_000,
        "complexity": {"scenes": complexity, "clevr": complexity},
    }
    write_json(folder / name / "row.json", "clevr", 1, facts)
    write_json(folder / name / "run.json", "run", 1, to_dict(plan))


def line_of(page: str, start: str) -> list[str]:
    """The cells of the first table row that begins so."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_without_rows_the_page_says_so(clevr: ModuleType) -> None:
    blocks = (clevr.lengths, clevr.follow, clevr.changes, clevr.trials)
    for make in (clevr.settings, clevr.tables, *blocks):
        assert clevr.block(make) == "Not measured yet."
    clevr.draw_figures()
    assert not clevr.IMAGES.exists()


def test_tables_have_the_papers_figures_below_ours(clevr: ModuleType) -> None:
    write_row(clevr.RESULTS, "64", r2=0.912, ssim=0.8)
    write_row(clevr.RESULTS, "64-seed1", seed=1, r2=0.917)
    write_row(clevr.RESULTS, "64-fixed", preset="clevr-64-fixed", r2=0.932)
    page = clevr.block(clevr.tables)
    pixels, codes = ("SSIM ↑", "LPIPS ↓"), ("CB (%) ↑", "Eff. CB (%) ↑")
    assert line_of(page, "") == ["", "cosine ↑", "R² ↑", *pixels, *codes, "length (tokens)"]
    assert line_of(page, "`64`") == ["`64`", "0.950", "0.912", "0.800", "–", "–", "80.0", "12.50"]
    assert line_of(page, "`64-seed1`")[3] == "–"  # no decoder
    paper = ["the paper's", "0.965", "0.931", "0.756", "0.187", "94.7", "–", "–"]
    assert line_of(page, "the paper's") == paper
    assert "The mean field, one for all images, has R² 0.800 of `vits14-focus`; the mean" in page
    assert (
        "`64` and `64-seed1` differ in their seed alone and lie apart by cosine 0.000, R² 0.005"
        in page
    )
    assert "+0.020 for `64` (the paper's: +0.030)" in page
    assert "| `64` | 3.0 | 9,000 | 1.5 M | 64.0 M | 27.3 |" in page
    assert "| `training.batch` | 128 | 512 |" in clevr.block(clevr.settings)


def test_two_parts_of_one_suite_are_not_chosen_between(clevr: ModuleType) -> None:
    write_row(clevr.RESULTS, "64")
    folder = clevr.RESULTS / "64"
    (folder / "clevr").rename(folder / "clevr-1")
    write_row(clevr.RESULTS, "64")
    with pytest.raises(DataError, match="two parts"):
        clevr.read_rows(clevr.RESULTS)


def test_lengths_are_of_rows_that_choose(clevr: ModuleType) -> None:
    write_row(clevr.RESULTS, "64", correlation=0.74)
    write_row(clevr.RESULTS, "64-fixed", preset="clevr-64-fixed")
    page = clevr.block(clevr.lengths)
    interval = "0.740 [0.730, 0.750]"
    assert line_of(page, "`64`")[1:] == [interval, interval, "4 to 30", "8.0", "20.0", "2.50"]
    assert "64-fixed" not in page


def test_what_lengths_follow_is_of_the_rows_that_are_there(clevr: ModuleType) -> None:
    write_row(clevr.RESULTS, "64")
    assert clevr.block(clevr.follow) == ""

    def told(value: float) -> dict[str, Any]:
        figure = {"value": value, "low": value - 0.1, "high": value + 0.1}
        return dict.fromkeys(("objects", "covered", "outlines"), figure)

    found = {
        "images": 2000,
        "objects": told(0.7),
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


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({"r2": 0.92, "r2_whole": 0.93, "correlation": 0.85}, "**yes**"),
        ({"r2": 0.92, "r2_whole": 0.93, "correlation": 0.849}, "not in Pearson r"),
        ({"r2": 0.91, "r2_whole": 0.93}, "not in R² at its own lengths"),
        ({"r2": 0.90, "r2_whole": 0.90}, "not in R² at its own lengths, R² at K"),
    ],
)
def test_a_trial_is_better_in_all_three_respects_or_not(
    clevr: ModuleType, found: dict[str, float], verdict: str
) -> None:
    write_row(clevr.RESULTS, "64", r2=0.91, r2_whole=0.90)
    write_row(clevr.RESULTS, "price", changes={"curriculum.oracle": "price"}, **found)
    on_scenes, on_clevr = clevr.block(clevr.trials).split("Blender's")
    assert line_of(on_scenes, "`price`")[-1] == verdict
    assert line_of(on_scenes, "`64`")[-1] == "–"
    searched = line_of(on_scenes, "").index("here, and of a search")
    assert line_of(on_scenes, "`price`")[searched] == "-1.000 / 1.000"
    assert "of a search" not in " ".join(line_of(on_clevr, ""))  # its scenes are not known here
    assert line_of(on_clevr, "`price`")[-1] == "0.0034"  # nothing is judged there
    assert "- `price`: `curriculum.oracle = price`" in clevr.block(clevr.changes)


def test_figures_are_drawn_and_shown(clevr: ModuleType) -> None:
    write_row(clevr.RESULTS, "price", changes={"curriculum.oracle": "price"})
    assert "![" not in clevr.block(clevr.trials)
    clevr.draw_figures()  # also without the paper's row
    write_row(clevr.RESULTS, "64")
    clevr.draw_figures()
    assert {path.name for path in clevr.IMAGES.iterdir()} == {"lengths.png", "rate.png"}
    assert "images/lengths.png)" in clevr.block(clevr.lengths)
    assert "images/rate.png)" in clevr.block(clevr.trials)
