"""`strop data`: scenes, check and pack, as typed in a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from strop.cli import data
from strop.cli.console import WORKERS
from strop.images import save_image
from strop.progress import Progress

Run = Callable[..., tuple[int, str, str]]


def test_scenes_are_written(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "scenes[b]"
    options = ("--out", folder, "--n", 3, "--size", 16, "--device", "cpu")
    status, out, err = run("data", "scenes", *options)
    assert (status, out) == (0, "")
    assert f"Wrote 3 scenes; their descriptions are in {folder}" in err
    status, out, _ = run("data", "scenes", *options, "--json")
    report = json.loads(out)
    assert (report["scenes"], report["output"]) == (3, str(folder))
    assert len(json.loads(Path(report["descriptions"]).read_text())["scenes"]) == 3


def test_scenes_are_rendered_where_and_by_whom_was_asked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {}

    def write(*_: object, progress: Progress, **options: object) -> Path:
        given.update(options)
        progress("rendering", 1, 2)
        return tmp_path

    monkeypatch.setattr(data, "write_scenes", write)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert run("data", "scenes", "--out", tmp_path, "--workers", 3)[0] == 0
    assert (given["device"], given["workers"]) == ("cuda", 3)
    assert run("data", "scenes", "--out", tmp_path, "--device", "cpu")[0] == 0
    assert (given["device"], given["workers"]) == ("cpu", WORKERS)


def test_check_and_pack_name_what_is_broken(run: Run, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out[b]"
    save_image(source / "a.png", torch.rand(3, 20, 20))
    (source / "x[").mkdir()
    broken = source / "x[/b].png"
    broken.write_bytes(b"no image")
    status, out, err = run("data", "check", source, "--workers", 0)
    assert status == 1
    assert "1 of 2 records" in out
    assert "x[/b].png" in err
    options = ("--size", 16, "--workers", 0)
    status, out, err = run("data", "pack", source, "--out", target, *options, "--json")
    report = json.loads(out)
    assert status == 1
    assert (report["records"], report["size"], report["output"]) == (1, 16, str(target))
    assert "x[/b].png" in report["skipped"][0]["reason"]
    assert "x[/b].png" in err
    status, _, err = run("data", "pack", source, "--out", f"{target}2", *options)
    assert f"to {target}2:" in err
