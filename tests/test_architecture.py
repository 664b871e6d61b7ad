"""The examples of ARCHITECTURE.md run, and do what the page says."""

from __future__ import annotations

import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from strop.analysis import registry
from strop.analysis.frame import run_study
from strop.data import spec
from strop.training.loop import train
from strop.training.preset import load_preset

PAGE = Path(__file__).parents[1] / "ARCHITECTURE.md"


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page's code defines, in a new module."""
    monkeypatch.setattr(spec, "KINDS", dict(spec.KINDS))
    module = types.ModuleType("architecture_examples")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S))
    torch.manual_seed(0)
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    return vars(module)


def test_the_length_rule_decides_lengths(examples: dict[str, Any]) -> None:
    program, lengths = examples["program"], examples["lengths"]
    assert program.lengths.tolist() == lengths.tolist()
    assert 4 <= int(lengths) <= 12


def test_the_quantizer_and_the_teacher_train_on_the_dataset(examples: dict[str, Any]) -> None:
    changes = {"training.steps": 4, "training.batch": 4, "training.held_out": 2}
    preset = load_preset("strop-nano", {**changes, "training.compile": "off"})
    result = train(preset, examples["gradients"], tokenizer=examples["tokenizer"], device="cpu")
    assert result.finished
    assert isinstance(result.tokenizer.quantizer, examples["NoisyQuantizer"])


def test_the_analysis_runs_by_name(
    examples: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = registry.Entry("architecture_examples", "the most common codes")
    monkeypatch.setitem(registry.ANALYSES, "common", entry)
    monkeypatch.setitem(registry.STUDIES, "common", entry)
    findings = run_study(examples["tokenizer"], "common", "gradients:", tmp_path, {"top": 2})
    gradients = examples["gradients"]
    codes = examples["tokenizer"].encode([gradients[row].image for row in range(len(gradients))])
    counts = torch.bincount(codes.codes[codes.active], minlength=128)
    assert findings["common"][0] == int(counts.argmax())
    assert len(findings["common"]) == 2
    assert (tmp_path / "common.md").is_file()


def test_the_drawing_has_every_component_in_its_layer() -> None:
    layers = runpy.run_path(str(Path(__file__).with_name("test_layers.py")))["LAYERS"]
    drawing = PAGE.read_text().split("```")[1].splitlines()
    drawn: list[set[str]] = [set()]
    for line in drawing:
        names = set(re.findall(r"\w+", line[:32]))
        drawn[-1] |= names
        if line.strip() == "|":
            drawn.append(set())
    assert drawn[::-1] == [layer for layer in layers if "__init__" not in layer]


def test_every_file_that_the_page_names_exists() -> None:
    source = PAGE.parent / "src" / "strop"
    named = re.findall(r"`([\w/]+\.py)`", PAGE.read_text())
    assert len(named) > 10
    for path in named:
        assert (source / path).is_file() or (PAGE.parent / path).is_file(), path
