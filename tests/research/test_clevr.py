"""The CLEVR study: tiny rows."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import report
import study
from strop.data import write_scenes
from strop.files import read_json
from strop.model.quantizer import Quantizer, QuantizerConfig

TINY = Path(__file__).parents[2] / "src" / "strop" / "weights" / "tiny"
OPTIONS = ["--seeds", "0", "--steps", "4", "--batch", "4", "--scenes", "16", "--held-out", "12"]
SMALL = [
    f"model.{part}.{name}={value}"
    for part in ("generator", "interpreter")
    for name, value in (("width", 16), ("depth", 1), ("heads", 2), ("feedforward", 16))
]


def run(out: Path, *options: str, settings: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """The rows that a call of the study leaves."""
    command = ["study.py", "--out", str(out), "--fields", str(out.parent / "fields"), *OPTIONS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*command, *options, "--settings", *SMALL, *settings])
        study.main()
    return {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}


def test_rows_are_measured_twice_by_every_rule_of_length(tmp_path: Path) -> None:
    write_scenes(tmp_path / "made", 6, 128, split="val")
    options = ("--teacher", str(TINY), "--clevr", f"clevr:{tmp_path / 'made'}")
    rows = run(tmp_path / "out", "--rows", "64", "64-fixed", "64-rate", *options)
    rules = {
        "64-seed0": ["own", "mean"],
        "64-fixed-seed0": ["own"],
        "64-rate-seed0": ["own", "quality"],
    }
    assert sorted(rows) == sorted(rules)
    for name, row in rows.items():
        assert str(tmp_path) not in json.dumps(row)
        assert row["settings"]["clevr"] == "clevr:made"
        for weights in ("averaged", "plain"):
            measured = row["weights"][weights]
            assert [each["images"] for each in measured.values()] == [12, 6]
            for data in measured.values():
                assert list(data) == ["images", "mean_field", *rules[name], "8", "16", "32"]
                assert [data[each]["length_mean"] for each in ("8", "16", "32")] == [8, 16, 32]
    assert rows["64-fixed-seed0"]["weights"]["plain"]["scenes"]["own"]["length_mean"] == 32
    assert rows["64-rate-seed0"]["weights"]["plain"]["scenes"]["own"]["length_mean"] == 16
    assert rows["64-seed0"]["weights"]["plain"]["scenes"]["mean"]["length_mean"] == 16


def test_plain_weights_are_those_of_a_run_without_an_average(tmp_path: Path) -> None:
    both = run(tmp_path / "out", "--rows", "64")["64-seed0"]["weights"]
    alone = run(tmp_path / "alone", "--rows", "64", settings=("training.weight_average=0.0",))[
        "64-seed0"
    ]["weights"]
    assert alone["averaged"] == alone["plain"] == both["plain"] != both["averaged"]


def test_measured_rows_are_skipped_and_other_settings_refused(tmp_path: Path) -> None:
    run(tmp_path / "out", "--rows", "64")
    path = tmp_path / "out" / "64-seed0.json"
    before = path.stat().st_mtime_ns
    run(tmp_path / "out", "--rows", "64")
    assert path.stat().st_mtime_ns == before
    with pytest.raises(SystemExit, match="other settings"):
        run(tmp_path / "out", "--rows", "32", "64", "--batch", "2")
    assert not (tmp_path / "out" / "32-seed0.json").exists()


def test_other_data_than_clevr_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path, "--clevr", "scenes:?n=4")


def test_the_row_without_reseeding_changes_nothing_else() -> None:
    options = {"steps": 10, "batch": 4, "scenes": 8, "held_out": 8, "clevr": None, "settings": []}
    arguments = argparse.Namespace(teacher="tiny", **options)
    base, other = (study.plan_of(row, 0, arguments)[0] for row in ("64", "64-no-reseed"))
    assert other != base
    assert replace(other, training=replace(other.training, reseed_below=0.1)) == base


def test_nothing_is_reseeded_below_zero() -> None:
    quantizer = Quantizer(QuantizerConfig(codes=8, code_width=4), width=4, length=2)
    quantizer.counts.zero_()
    before = quantizer.codebook.clone()
    z = torch.nn.functional.normalize(torch.randn(5, 2, 4), dim=-1)
    active, uniform = torch.ones(5, 2, dtype=torch.bool), torch.rand(8)
    quantizer.reseed(z, active, uniform, below=study.NO_RESEED["training.reseed_below"])
    assert torch.equal(quantizer.codebook, before)
    quantizer.reseed(z, active, uniform, below=0.1)
    assert not torch.equal(quantizer.codebook, before)


def test_lengths_at_one_quality_have_the_mean_and_share_a_threshold() -> None:
    steps = torch.rand(64, 32, generator=torch.Generator().manual_seed(0))
    log_error = steps.flip(1).cumsum(1).flip(1)  # falling
    lengths = study.at_quality(log_error, 16)
    assert abs(lengths.double().mean() - 16) < 0.1
    rows = torch.arange(64)
    reached, before = log_error[rows, lengths - 1], log_error[rows, (lengths - 2).clamp(min=0)]
    assert reached[lengths < 32].max() <= before[lengths > 1].min()


def test_the_report_has_rows_differences_and_the_papers_figures(tmp_path: Path) -> None:
    run(tmp_path / "out", "--rows", "64", "64-fixed", "--seeds", "0", "1")
    run(tmp_path / "out", "--rows", "32", "64-rate", "64-no-reseed", "128")
    found = reported(tmp_path)
    assert found["setting"]["teacher"] == "tiny"
    tables = {name: [each["rows"] for each in made] for name, made in found["blocks"].items()}
    line = tables["difference"][0][0]
    assert line[:3] == ["64", "held-out scenes", "averaged weights"]
    rows = {
        name: [
            json.loads((tmp_path / "out" / f"{name}-seed{seed}.json").read_text())["weights"][
                "averaged"
            ]["scenes"]["own"]["r2"]
            for seed in (0, 1)
        ]
        for name in ("64", "64-fixed")
    }
    both = [ours - fixed for ours, fixed in zip(rows["64"], rows["64-fixed"], strict=True)]
    assert line[3].startswith(f"{sum(both) / 2:+.3f} (")
    assert line[-2:] == ["0, 1", "-0.030"]
    names = [row[0] for row in tables["alignment"][0]]
    papers = "the paper's"
    assert names == [
        *("`32`", papers, "`64`", papers, "`128`", papers),
        *("`64-fixed`", papers, "`64-no-reseed`", "`64-rate`"),
    ]
    assert tables["alignment"][0][1][2:7] == ["0.971", "0.943", "–", "73.5", "–"]
    assert [row[-1] for row in tables["codes"][0]] == ["73.5", "94.7", "77.8"]
    assert tables["codes"][0][0][2] == "–"  # not measured
    assert ["the paper's", "", "≈ 0.74", "–", "–", "8 to 32"] in tables["lengths"][0]
    assert any(row[0] == "`64-rate`, one quality" for row in tables["lengths"][0])


def test_runs_of_other_settings_are_not_put_together(tmp_path: Path) -> None:
    run(tmp_path / "out", "--rows", "64")
    run(tmp_path / "out", "--rows", "32", "--batch", "2")
    with pytest.raises(SystemExit, match="other settings"):
        reported(tmp_path)


def reported(folder: Path) -> dict[str, Any]:
    """What `report.py` makes of the rows in `folder / "out"`."""
    command = ["report.py", str(folder / "out"), "--out", str(folder / "clevr.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command)
        report.main()
    return read_json(folder / "clevr.json", "benchmark", 1)
