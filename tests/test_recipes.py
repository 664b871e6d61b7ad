"""The launch scripts of the paper's runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[1] / "recipes"
SCRIPTS = sorted(RECIPES.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_valid_shell(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_script_without_a_dataset_prints_its_usage() -> None:
    script = RECIPES / "coco-s-s.sh"
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "DATASET_FOLDER" in done.stderr
