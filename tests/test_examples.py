"""The scripts in `examples` run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strop.files import read_json

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


@pytest.mark.slow
def test_a_head_from_a_store_equals_one_from_programs(tmp_path):
    """On scenes: the same head from the store and from programs, and a useful one from both."""
    out = tmp_path / "scores.json"
    said = run("probe_from_store.py", "--count", "60", "--epochs", "10", "--json", str(out))
    rows = {row["features"]: row for row in read_json(out, "probe", 1)["rows"]}
    assert set(rows) == {"store", "programs", "teacher"}
    assert rows["store"]["miou"] == pytest.approx(rows["programs"]["miou"], abs=0.01)
    assert rows["teacher"]["miou"] > 15
    assert rows["store"]["miou"] > 0.6 * rows["teacher"]["miou"]
    assert rows["store"]["bytes"] < rows["teacher"]["bytes"] / 100
    assert "on disk" in said
