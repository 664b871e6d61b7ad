"""Dry runs and sweeps."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_training import tiny_fields, tiny_preset, tiny_tokenizer

from strop.errors import ConfigError, TrainingError
from strop.training import sweep as sweeps
from strop.training.plan import describe, measure
from strop.training.preset import load_preset
from strop.training.step import Stepper
from strop.training.sweep import sweep


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("strop-s-dinov3-s", 13.5),
        ("strop-m-dinov3-s", 64.3),
        ("strop-s-dinov3-b", 14.2),
        ("strop-m-dinov3-b", 65.1),
        ("strop-m-dinov3-l", 65.6),
    ],
)
def test_each_variant_has_as_many_parameters_as_the_papers(name, millions):
    plan = describe(load_preset(name))
    assert plan["trainable parameters"] / 1e6 == pytest.approx(millions, abs=0.1)


def test_phase_boundaries_scale_with_the_steps():
    plan = describe(load_preset("strop-s-dinov3-s", {"training.steps": 5_000}))
    assert list(plan["phases"].values()) == [
        (0, 1_000),
        (1_000, 1_500),
        (1_500, 2_000),
        (2_000, 2_500),
        (2_500, 5_000),
    ]
    fixed = describe(load_preset("clevr-64-fixed"))
    assert fixed["phases"] == {"fixed length": (0, 500_000)}


def test_a_few_steps_are_timed():
    report = measure(tiny_preset(), torch.device("cpu"), steps=2)
    assert report["images per second, phase 1"] > 0
    assert report["images per second, phases 2 to 4"] > 0
    assert report["projected hours"] >= 0


def test_a_sweep_trains_every_combination_once_and_draws_the_frontier(tmp_path, monkeypatch):
    axes = {"model.quantizer.codes": [16, 32], "training.seed": [0, 1]}
    shown: list[tuple[str, int, int]] = []
    preset, fields = tiny_preset(steps=10), tiny_fields(60)
    results = sweep(
        preset, fields, axes, out=tmp_path, progress=lambda *report: shown.append(report)
    )
    assert [run["name"] for run in results] == [
        f"codes={codes},seed={seed}" for codes in (16, 32) for seed in (0, 1)
    ]
    runs = [report for report in shown if report[0].startswith("runs: ")]
    assert runs == [(f"runs: {run['name']}", n, 4) for n, run in enumerate(results)]
    first = results[0]
    assert first["bits"] == pytest.approx(first["length_mean"] * 4)
    assert (tmp_path / "frontier.png").stat().st_size > 1000
    assert len(json.loads((tmp_path / "sweep.json").read_text())["runs"]) == 4

    def refuse(*_, **__):
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(Stepper, "__call__", refuse)
    assert sweep(preset, fields, axes, out=tmp_path) == results
    with pytest.raises(ConfigError, match="has no axis"):
        sweep(preset, fields, {}, out=tmp_path)


def test_a_sweep_without_images_to_measure_on_is_refused_before_it_trains(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(sweeps, "train", lambda preset, *_, **__: trained.append(preset))
    with pytest.raises(TrainingError, match=r"training\.held_out = 0 holds out none of 60"):
        sweep(tiny_preset(), tiny_fields(60), {"training.held_out": [6, 0]}, out=tmp_path)
    with pytest.raises(TrainingError, match=r"No validation images: .* none of 9"):
        sweep(tiny_preset(), tiny_fields(9), {"training.seed": [0, 1]}, out=tmp_path)
    assert not trained


def test_a_sweep_measures_on_other_images_if_there_are_some(tmp_path):
    axes = {"training.held_out": [0]}
    preset, fields = tiny_preset(steps=2), tiny_fields(60)
    (run,) = sweep(preset, fields, axes, out=tmp_path, validation=tiny_fields(5, seed=1))
    assert run["bits"] > 0
    (again,) = sweep(preset, fields, axes, out=tmp_path, validation=tiny_fields(4, seed=2))
    assert again["r2"] != run["r2"]


def test_finished_runs_of_other_settings_or_data_are_refused_by_name(tmp_path):
    axes, fields = {"training.seed": [0]}, tiny_fields(60)
    results = sweep(tiny_preset(steps=2), fields, axes, out=tmp_path)
    assert sweep(tiny_preset(steps=2, log_every=1), fields, axes, out=tmp_path) == results
    with pytest.raises(TrainingError, match=r"training\.learning_rate was 0\.003, now 0\.1"):
        sweep(tiny_preset(steps=2, learning_rate=0.1), fields, axes, out=tmp_path)
    with pytest.raises(TrainingError, match="images was 54, now 64"):
        sweep(tiny_preset(steps=2), tiny_fields(70), axes, out=tmp_path)
    with pytest.raises(TrainingError, match=r"init was none, now \w{12}"):
        sweep(tiny_preset(steps=2), fields, axes, out=tmp_path, init=tiny_tokenizer())
