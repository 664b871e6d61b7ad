"""The tour on the bundled models: it leaves behind what it says, and what it says to try works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import strop
from strop import demo
from strop.cli import app, console


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder of a tour of few images, and what was printed."""
    folder = tmp_path_factory.mktemp("tour") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "COUNTS", (3, 10))
        patch.setattr(demo, "OTHERS", 2)
        patch.setattr(demo, "SQUARES", dict(list(demo.SQUARES.items())[:2]))
        patch.setattr(console.out, "width", 200)  # no program is wrapped
        done = CliRunner().invoke(app, ["demo", "--out", str(folder), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    return folder, done


@pytest.mark.parametrize("title", ["scenes", "photos"])
def test_it_leaves_programs_and_pictures(title: str, toured: tuple[Path, Result]) -> None:
    folder, done = toured
    program = strop.Program.load(folder / f"{title}.parquet")
    assert len(program) == 2
    assert strop.load(title, device="cpu").encode(list(program.names)) == program
    for name in (*program.names, folder / f"{title}-programs.png", folder / f"{title}-rate.png"):
        with Image.open(name) as image:
            image.verify()
    for row in program:
        assert " ".join(map(str, row.codes.tolist())) in done.stdout


def test_more_to_see_takes_more_codes(toured: tuple[Path, Result]) -> None:
    folder, _ = toured
    three, ten = strop.Program.load(folder / "scenes.parquet").lengths.tolist()
    assert three < ten
    pagoda, sky = strop.Program.load(folder / "photos.parquet").lengths.tolist()
    assert sky < pagoda


def test_the_page_needs_nothing_from_elsewhere(toured: tuple[Path, Result]) -> None:
    folder, _ = toured
    page = (folder / "index.html").read_text(encoding="utf-8")
    pictures = re.findall(r'src="([^"]+)"', page)
    assert len(pictures) == 4
    assert all((folder / picture).is_file() for picture in pictures)
    assert "http" not in page


def test_what_it_says_to_try_can_be_tried(toured: tuple[Path, Result]) -> None:
    _, done = toured
    tips = [
        shlex.split(line, comments=True)
        for line in re.findall(r"^  \S*strop (.*)", done.stdout, re.M)
    ]
    assert [tip[0] for tip in tips] == ["encode", "inspect", "study", "eval"]
    encoded = CliRunner().invoke(app, tips[0])
    assert encoded.exit_code == 0, encoded.output
    for command, *arguments in tips:
        assert CliRunner().invoke(app, [command, *arguments, "--help"]).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("tip", [2, 3])
def test_the_longer_tips_work_too(tip: int, toured: tuple[Path, Result]) -> None:
    _, done = toured
    line = re.findall(r"^  \S*strop (.*)", done.stdout, re.M)[tip]
    tried = CliRunner().invoke(app, shlex.split(line, comments=True))
    assert tried.exit_code == 0, tried.output


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    with pytest.raises(strop.StropError, match="is a file"):
        demo.tour(tmp_path / "demo")
