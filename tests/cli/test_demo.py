"""The demo writes what it promises, and the commands it suggests work."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import strop
from strop import demo
from strop.cli import app, console
from strop.errors import StoreError


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder of a demo on few images, and its output."""
    folder = tmp_path_factory.mktemp("run") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "OBJECT_COUNTS", (3, 10))
        patch.setattr(demo, "OTHER_SCENES", 2)
        patch.setattr(demo, "PHOTOS", dict(list(demo.PHOTOS.items())[:2]))
        patch.setattr(console.out, "width", 200)  # no program is wrapped
        done = CliRunner().invoke(app, ["demo", "--out", str(folder), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    return folder, done


@pytest.mark.parametrize("title", ["scenes", "photos"])
def test_it_writes_programs_and_pictures(title: str, demo_run: tuple[Path, Result]) -> None:
    folder, done = demo_run
    program = strop.Program.load(folder / f"{title}.parquet")
    assert len(program) == 2
    assert strop.load(title, device="cpu").encode(list(program.names)) == program
    for name in (*program.names, folder / f"{title}-programs.png", folder / f"{title}-rate.png"):
        with Image.open(name) as image:
            image.verify()
    for row in program:
        assert " ".join(map(str, row.codes.tolist())) in done.stdout


def test_complex_images_get_longer_programs(demo_run: tuple[Path, Result]) -> None:
    folder, _ = demo_run
    three, ten = strop.Program.load(folder / "scenes.parquet").lengths.tolist()
    assert three < ten
    pagoda, sky = strop.Program.load(folder / "photos.parquet").lengths.tolist()
    assert sky < pagoda


def test_the_page_has_no_external_resources(demo_run: tuple[Path, Result]) -> None:
    folder, _ = demo_run
    page = (folder / "index.html").read_text(encoding="utf-8")
    pictures = re.findall(r'src="([^"]+)"', page)
    assert len(pictures) == 5
    assert all(picture.startswith("data:image/png;base64,") for picture in pictures)
    assert "http" not in re.sub(r'src="[^"]+"', "", page)


def test_the_store_holds_photographs_and_a_search_finds_leaves(
    demo_run: tuple[Path, Result],
) -> None:
    folder, _ = demo_run
    store = strop.open_store(folder / "photos.lance")
    assert len(store) == len(list((folder / "squares").iterdir())) > 10
    assert 'href="search.html"' in (folder / "index.html").read_text(encoding="utf-8")
    query = max(folder.glob("photos-?.png"))
    near = store.search(query, k=1).hits[0]
    assert near.score > 0.5
    assert near.key in (folder / "search.html").read_text(encoding="utf-8")


def test_without_the_extra_the_demo_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(StoreError, match=r"pip install 'strop\[store\]'"):
        demo.search_store(strop.load("photos", device="cpu"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_suggested_commands_work(demo_run: tuple[Path, Result]) -> None:
    _, done = demo_run
    tips = [
        shlex.split(line, comments=True)
        for line in re.findall(r"^  \S*strop (.*)", done.stdout, re.M)
    ]
    assert [tip[0] for tip in tips] == ["encode", "search", "inspect", "study", "eval"]
    for tip in tips[:2]:
        tried = CliRunner().invoke(app, tip)
        assert tried.exit_code == 0, tried.output
    for command, *arguments in tips:
        assert CliRunner().invoke(app, [command, *arguments, "--help"]).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("tip", [3, 4])
def test_suggested_long_commands_work(tip: int, demo_run: tuple[Path, Result]) -> None:
    _, done = demo_run
    line = re.findall(r"^  \S*strop (.*)", done.stdout, re.M)[tip]
    tried = CliRunner().invoke(app, shlex.split(line, comments=True))
    assert tried.exit_code == 0, tried.output


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    with pytest.raises(strop.StropError, match="is a file"):
        demo.run_demo(tmp_path / "demo")
