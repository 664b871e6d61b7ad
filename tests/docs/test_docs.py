"""The docs are code: their Python runs, their numbers are generated, their links lead somewhere."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from strop.data import ScenesDataset
from strop.images import save_image

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def python_of(page: Path) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    return "\n".join(blocks)


@pytest.fixture(scope="session")
def after_the_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make demo` leaves behind, as far as the README uses it."""
    folder = tmp_path_factory.mktemp("after-the-demo")
    for number, image in enumerate(ScenesDataset(2, size=128).images(range(2))):
        save_image(folder / "demo" / f"scenes-{number}.png", image)
    return folder


@pytest.mark.parametrize("page", [p for p in PAGES if python_of(p)], ids=lambda page: page.name)
def test_python_in_the_docs_runs(
    page: Path, after_the_demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = after_the_demo / f"{page.stem}.py"
    script.write_text(python_of(page), encoding="utf-8")
    monkeypatch.chdir(after_the_demo)
    runpy.run_path(str(script), run_name="__main__")


def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "make.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_every_command_in_the_docs_exists() -> None:
    from strop.cli import COMMANDS

    used = {
        word
        for page in PAGES
        for word in re.findall(r"^strop ([a-z][a-z-]+)", page.read_text(encoding="utf-8"), re.M)
    }
    assert used <= set(COMMANDS)
