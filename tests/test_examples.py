"""The scripts in `examples` run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(script: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_language_model_learns_programs():
    said = run("language_model.py", "--count", "16", "--steps", "60")
    losses = [float(line.split()[2]) for line in said.splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0] / 2
