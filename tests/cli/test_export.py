"""`strop export`, and `--engine` of the commands that compute."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from strop import Program

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.slow  # an export of the bundled teacher takes 15 s
def test_an_export_and_engines_in_commands(
    run: Run, model: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    status, out, _ = run("export", model, "-o", tmp_path / "export", "--json")
    assert status == 0
    assert {"encoder.onnx", "interpreter.onnx", "README.md"} <= json.loads(out)["files"].keys()
    programs = []
    for engine in ("torch", "onnx", "openvino"):
        target = tmp_path / f"{engine}.jsonl"
        assert run("encode", pictures, "-m", model, "-o", target, "--engine", engine)[0] == 0
        programs.append(Program.load(target))
        fields = tmp_path / f"{engine}.safetensors"
        assert run("interpret", target, "-m", model, "-o", fields, "--engine", engine)[0] == 0
    assert programs[0].codes.equal(programs[1].codes)
    assert programs[0].codes.equal(programs[2].codes)
    store = tmp_path / "s.lance"
    assert run("encode", pictures, "-m", model, "-o", store, "--engine", "onnx")[0] == 0


def test_unknown_engines_are_refused(run: Run, model: Path, pictures: Path) -> None:
    status, _, err = run("encode", pictures, "-m", model, "--engine", "tflite")
    assert status == 1
    assert "Choose one of torch, onnx, openvino" in err
