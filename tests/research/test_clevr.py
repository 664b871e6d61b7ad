"""The CLEVR study: tables, figures and report of handwritten rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from clevr_rows import line_of, write_row

import tables
from report import draw_figures, main, write_report, write_summary
from rows import Row, read_rows
from strop.analysis.page import Block, to_markdown
from strop.errors import DataError
from strop.files import read_json

CEILING = {"curriculum.handoff_ceiling": 0.7}


def page(make: Callable[[Sequence[Row]], Iterator[Block]], folder: Path) -> str:
    """Some of the tables of all rows in a folder."""
    return to_markdown(list(make(read_rows(sorted(folder.iterdir())))), folder)


def test_the_papers_rows_come_first_in_the_papers_order(tmp_path: Path) -> None:
    trials = [write_row(tmp_path, name, changes=CEILING) for name in ("price", "ceiling")]
    others = [
        write_row(tmp_path, "128-fixed", preset="clevr-128-fixed"),
        write_row(tmp_path, "128", preset="clevr-128"),
        write_row(tmp_path, "64-tiny", teacher="tiny"),
        write_row(tmp_path, "64-seed1", seed=1),
        write_row(tmp_path, "64"),
        write_row(tmp_path, "32", preset="clevr-32"),
    ]
    (tmp_path / "evaluated").mkdir()  # without row.json
    found = [row.name for row in read_rows([*trials, tmp_path / "evaluated", *others, others[0]])]
    papers = ["32", "64", "64-seed1", "64-tiny", "128", "128-fixed"]
    assert found == [*papers, "ceiling", "price"]


def test_folders_of_one_name_are_distinguished(tmp_path: Path) -> None:
    runs = [
        write_row(tmp_path / parent, "64", correlation=r) for parent, r in (("a", 0.5), ("b", 0.9))
    ]
    found = to_markdown(list(tables.lengths(read_rows(runs))), tmp_path)
    assert line_of(found, "`a/64`")[1].startswith("0.500")
    assert line_of(found, "`b/64`")[1].startswith("0.900")


def test_two_parts_of_one_suite_are_refused(tmp_path: Path) -> None:
    folder = write_row(tmp_path, "64")
    (folder / "clevr").rename(folder / "clevr-1")
    write_row(tmp_path, "64")
    with pytest.raises(DataError, match="two parts"):
        read_rows([folder])


def test_tables_have_the_papers_figures_below_ours(tmp_path: Path) -> None:
    write_row(tmp_path, "64", r2=0.912, ssim=0.8)
    write_row(tmp_path, "64-seed1", seed=1, r2=0.917)
    write_row(tmp_path, "64-fixed", preset="clevr-64-fixed", r2=0.932)
    found = page(tables.beside_the_paper, tmp_path)
    fields, pixels = ("cosine ↑", "R² ↑", "R² centred ↑"), ("SSIM ↑", "LPIPS ↓")
    codes = ("CB (%) ↑", "Eff. CB (%) ↑")
    assert line_of(found, "") == ["", *fields, *pixels, *codes, "length (tokens)"]
    ours = ["`64`", "0.950", "0.912", "0.812", "0.800", "–", "–", "80.0", "12.50"]
    assert line_of(found, "`64`") == ours
    assert line_of(found, "`64-seed1`")[4] == "–"  # no decoder
    paper = ["the paper's", "0.965", "0.931", "–", "0.756", "0.187", "94.7", "–", "–"]
    assert line_of(found, "the paper's") == paper
    assert "The mean field, one for all images, has R² 0.800 for `vits14-focus`." in found
    assert "`64` and `64-seed1` differ only in their seed, by cosine 0.000, R² 0.005" in found
    assert "+0.020 for `64` (the paper's: +0.030)." in found
    write_row(tmp_path, "64-fixed-seed1", preset="clevr-64-fixed", seed=1, r2=0.9)
    again = page(tables.beside_the_paper, tmp_path)
    assert "-0.017 for `64-seed1` (the paper's: +0.030)" in again
    assert "| `64` | 3.0 | 9,000 | 1.5 M | 64.0 M | 27.3 |" in page(tables.cost, tmp_path)
    assert "| `training.batch` | 128 | 512 |" in page(tables.settings, tmp_path)


def test_lengths_are_shown_for_rows_that_choose(tmp_path: Path) -> None:
    write_row(tmp_path, "64", correlation=0.72)
    write_row(tmp_path, "64-fixed", preset="clevr-64-fixed")
    assert "the paper's" not in page(
        tables.lengths, tmp_path
    )  # the paper reports it for 32 codes only
    write_row(tmp_path, "32", preset="clevr-32")
    found = page(tables.lengths, tmp_path)
    interval = "0.720 [0.710, 0.730]"
    assert line_of(found, "`64`")[1:] == [interval, interval, "4 to 30", "8.0", "20.0", "2.50"]
    assert "64-fixed" not in found
    assert line_of(found, "the paper's")[1:4] == ["≈ 0.74", "–", "8 to 32"]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({"r2": 0.92, "r2_whole": 0.93, "correlation": 0.85}, "yes"),
        ({"r2": 0.92, "r2_whole": 0.93, "correlation": 0.849}, "not in Pearson r"),
        ({"r2": 0.91, "r2_whole": 0.93}, "not in R² at its own lengths"),
        ({"r2": 0.90, "r2_whole": 0.90}, "not in R² at its own lengths, R² at K"),
        ({"r2": 0.92, "r2_whole": 0.93, "since_handoff": -0.01}, "not in K since the handoff"),
    ],
)
def test_a_trial_is_better_in_every_respect_or_not(
    tmp_path: Path, found: dict[str, float], verdict: str
) -> None:
    write_row(tmp_path, "64", r2=0.91, r2_whole=0.90)
    write_row(tmp_path, "price", changes=CEILING, **found)
    on_scenes, on_clevr = page(tables.trials, tmp_path).split("Blender's")
    assert line_of(on_scenes, "`price`")[-1] == verdict
    assert line_of(on_scenes, "`64`")[-1] == "–"
    searched = line_of(on_scenes, "").index("r here, chosen / searched")
    assert line_of(on_scenes, "`price`")[searched] == "-1.000 / 1.000"
    assert "of a search" not in " ".join(
        line_of(on_clevr, "")
    )  # its object counts are not known here
    handoff = line_of(on_scenes, "").index("K since the handoff")
    expected = found.get("since_handoff", 0.1)
    assert line_of(on_scenes, "`price`")[handoff] == f"{expected:+.4f}"
    assert (
        line_of(on_clevr, "`price`")[-1] == "+0.0022"
    )  # the gain of choosing; there is no verdict
    assert "- `price`: `curriculum.handoff_ceiling = 0.7`" in page(tables.changes, tmp_path)


def test_settings_equal_to_the_preset_are_not_listed(tmp_path: Path) -> None:
    changes = {**CEILING, "curriculum.oracle_minimum": 2, "lengths.mean": 18}
    write_row(tmp_path, "price", changes=changes)
    listed = page(tables.changes, tmp_path).strip()
    assert listed == "- `price`: `curriculum.handoff_ceiling = 0.7`, `lengths.mean = 18`"


def test_rows_of_several_seeds_are_summarised(tmp_path: Path) -> None:
    write_row(tmp_path, "64", r2=0.90, r2_whole=0.91, correlation=0.7)
    write_row(tmp_path, "64-seed1", seed=1, r2=0.92, r2_whole=0.93, correlation=0.6)
    write_row(tmp_path, "ceiling", changes=CEILING)  # one seed only
    write_row(tmp_path, "price", changes=CEILING, r2=0.94, r2_whole=0.95, correlation=0.9)
    write_row(tmp_path, "price-seed1", changes=CEILING, seed=1, r2=0.92, r2_whole=0.98)
    write_row(tmp_path, "price-seed2", changes=CEILING, seed=2, r2=0.99, r2_whole=0.98)
    found = page(tables.over_seeds, tmp_path)
    ours, trial = (
        dict(zip(line_of(found, ""), line_of(found, name), strict=True))
        for name in ("`64`", "`price`")
    )
    assert ours["runs"] == "2"
    assert ours["R² at its own lengths"] == "0.910 (0.900 to 0.920)"
    assert ours["at 32"] == "0.920 (0.910 to 0.930)"
    assert ours["Pearson r"] == "0.650 (0.600 to 0.700)"
    assert ours["K since the handoff"] == "+0.1000 (+0.1000 to +0.1000)"
    assert ours["gain of choosing"] == "+0.0022 (+0.0022 to +0.0022)"
    assert ours["regret to a search"] == "–"  # not measured
    assert ours["better than the paper's"] == "–"
    assert trial["R² at its own lengths"] == "0.950 (0.920 to 0.990)"
    # The first beats the row of its seed, the second does not; the third has no counterpart.
    assert trial["better than the paper's"] == "1 of 2"
    assert "ceiling" not in found
    assert found.startswith("Mean over seeds, with minimum and maximum, on 40 held-out")


def test_other_budgets_and_teachers_are_not_seeds(tmp_path: Path) -> None:
    for seed, suffix in ((0, ""), (1, "-seed1")):
        write_row(tmp_path, f"64{suffix}", seed=seed, r2=0.8)
        write_row(tmp_path, f"64-tiny{suffix}", seed=seed, r2=0.9, teacher="tiny")
        write_row(tmp_path, f"price{suffix}", changes=CEILING, seed=seed)
        write_row(tmp_path, f"price-tiny{suffix}", changes=CEILING, seed=seed, teacher="tiny")
    longer = write_row(tmp_path / "longer", "64-seed2", seed=2, r2=0.5)
    plan = json.loads((longer / "run.json").read_text(encoding="utf-8"))
    plan["training"]["steps"] = 2000
    (longer / "run.json").write_text(json.dumps(plan), encoding="utf-8")
    rows = read_rows([*(path for path in tmp_path.iterdir() if path.name != "longer"), longer])
    found = to_markdown(list(tables.over_seeds(rows)), tmp_path)
    assert line_of(found, "`64`")[1:3] == ["2", "0.800 (0.800 to 0.800)"]
    assert line_of(found, "`64-tiny`")[1:3] == ["2", "0.900 (0.900 to 0.900)"]


def test_one_seed_has_no_summary(tmp_path: Path) -> None:
    write_row(tmp_path, "64")
    write_row(tmp_path, "price", changes=CEILING)
    assert page(tables.over_seeds, tmp_path).strip() == ""


def test_without_a_handoff_there_is_no_change_since(tmp_path: Path) -> None:
    fixed = write_row(tmp_path, "64-fixed", preset="clevr-64-fixed")
    unseen = write_row(tmp_path, "64")
    log = (unseen / "metrics.jsonl").read_text(encoding="utf-8").replace('"step": 400', '"step": 3')
    (unseen / "metrics.jsonl").write_text(log, encoding="utf-8")
    assert [row.since_handoff for row in read_rows([fixed, unseen])] == [None, None]
    write_row(tmp_path, "price", changes=CEILING, r2=0.95, r2_whole=0.95)
    trial = tmp_path / "price" / "metrics.jsonl"
    trial.write_text(log, encoding="utf-8")
    assert line_of(page(tables.trials, tmp_path), "`price`")[-1] == "not in K since the handoff"


def test_a_trial_is_not_compared_with_a_run_of_other_length(tmp_path: Path) -> None:
    write_row(tmp_path, "64")
    trial = write_row(tmp_path, "price", changes=CEILING, r2=0.95, r2_whole=0.95)
    plan = json.loads((trial / "run.json").read_text(encoding="utf-8"))
    plan["training"]["steps"] = 2000
    (trial / "run.json").write_text(json.dumps(plan), encoding="utf-8")
    assert line_of(page(tables.trials, tmp_path), "`price`")[-1] == "–"


def test_missing_measurements_are_left_out(tmp_path: Path) -> None:
    paper = write_row(tmp_path, "64")
    trial = write_row(tmp_path, "price", changes=CEILING)
    (trial / "scenes" / "rate.json").unlink()
    (trial / "clevr" / "alignment.json").unlink()
    facts = json.loads((paper / "row.json").read_text(encoding="utf-8"))
    del facts["complexity"]["clevr"]
    (paper / "row.json").write_text(json.dumps(facts), encoding="utf-8")
    rows = read_rows([paper, trial])
    assert draw_figures(rows).keys() == {"lengths"}
    assert draw_figures(read_rows([trial])).keys() == {"lengths"}
    assert list(tables.trials(rows)) == []
    assert "Blender" not in page(tables.lengths, tmp_path)


def test_searches_and_intervals_are_shown_if_measured(tmp_path: Path) -> None:
    trial = write_row(tmp_path, "price", changes=CEILING)
    path = trial / "scenes" / "rate.json"
    rate = json.loads(path.read_text(encoding="utf-8"))
    rate["values"]["regret_r2_search"] = -0.0005
    rate["intervals"] = {"choice_gain_r2": [0.001, 0.003]}
    path.write_text(json.dumps(rate), encoding="utf-8")
    found = page(tables.trials, tmp_path)
    cells = dict(zip(line_of(found, ""), line_of(found, "`price`"), strict=True))
    assert cells["gain of choosing"] == "+0.0022 [+0.0010, +0.0030]"
    assert cells["regret to a search"] == "-0.0005"


def test_figures_show_the_rows_there_are(tmp_path: Path) -> None:
    assert draw_figures([]) == {}
    trial = write_row(tmp_path, "price", changes=CEILING)
    assert draw_figures(read_rows([trial])).keys() == {"lengths", "rate"}
    paper = write_row(tmp_path, "64")
    assert draw_figures(read_rows([paper])).keys() == {"lengths"}
    seed = write_row(tmp_path, "price-seed1", changes=CEILING, seed=1)
    drawn = draw_figures(read_rows([paper, trial, seed]))["rate"]
    lines = {line.get_label(): line for line in drawn.axes[0].get_lines()}
    assert lines["64"].get_color() == "#000000"
    assert lines["price"].get_color() == lines["price-seed1"].get_color() != "#000000"
    assert (lines["price"].get_linestyle(), lines["price-seed1"].get_linestyle()) == ("-", "--")


def test_the_report_and_its_summary(tmp_path: Path) -> None:
    rows = read_rows([write_row(tmp_path, "64"), write_row(tmp_path, "price", changes=CEILING)])
    out, summary = tmp_path / "page", tmp_path / "clevr.json"
    write_report(rows, out)
    found = (out / "report.md").read_text(encoding="utf-8")
    for heading in ("The CLEVR study", "Length against complexity", "Past the paper"):
        assert f"# {heading}\n" in found
    for name in ("lengths", "rate"):
        assert f"({name}.png)" in found
        assert (out / f"{name}.png").is_file()
    for study in ("full", "small"):
        write_summary(rows, summary, study)
    content = read_json(summary, "benchmark", 1)
    assert {*content} == {"full", "small"}
    assert content["full"]["changes"] == [
        {"points": ["`price`: `curriculum.handoff_ceiling = 0.7`"]}
    ]
    header = content["small"]["cost"][1]["header"]
    assert header[:3] == ["", "minutes", "img/s"]


def test_other_folders_are_not_rows(tmp_path: Path) -> None:
    run = write_row(tmp_path, "64")
    (run / "row.json").unlink()
    assert read_rows([run]) == []
    with pytest.raises(SystemExit, match="2"):
        main([str(run), "--out", str(tmp_path / "page")])
