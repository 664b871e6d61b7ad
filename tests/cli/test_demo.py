"""The tour, shortened: it runs, and leaves behind what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import strop
from strop import demo
from strop.cli import app


def test_the_demo_leaves_a_model_programs_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "TRAINED_ON", 40)
    folder = tmp_path / "demo"
    done = CliRunner().invoke(app, ["demo", "--out", str(folder), "--steps", "6"])
    assert done.exit_code == 0, done.output
    assert "not how well" in done.stdout
    program = strop.Program.load(folder / "scenes.parquet")
    assert len(program) == demo.SHOWN
    assert strop.load(folder / "model").encode(list(program.names)) == program
    for picture in ("scenes-programs.png", "scenes-rate.png", "scenes-0.png"):
        with Image.open(folder / picture) as image:
            image.verify()
    page = (folder / "index.html").read_text(encoding="utf-8")
    shown = re.findall(r'src="([^"]+)"', page)
    assert shown
    assert all((folder / picture).is_file() for picture in shown)
    assert "http" not in page


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    with pytest.raises(strop.StropError, match="is a file"):
        demo.tour(tmp_path / "demo")
