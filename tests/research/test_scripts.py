"""The scripts under research/: imports, early errors, valid shell."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path

import pytest

RESEARCH = Path(__file__).parents[2] / "research"


@pytest.mark.parametrize("name", sorted(path.stem for path in RESEARCH.rglob("*.py")))
def test_modules_can_be_imported(name: str) -> None:
    importlib.import_module(name)


@pytest.mark.parametrize(
    "script", sorted(RESEARCH.rglob("*.sh")), ids=lambda path: path.relative_to(RESEARCH).as_posix()
)
def test_scripts_are_valid_shell(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("script", "variable"),
    [("bundle/tiny", "GROUPING"), ("bundle/photos", "PHOTOS")],
)
def test_scripts_name_missing_variables(script: str, variable: str) -> None:
    done = subprocess.run(
        ["bash", str(RESEARCH / f"{script}.sh")],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode != 0
    assert variable in done.stderr
