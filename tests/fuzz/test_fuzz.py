"""Damaged inputs give an error of strop or a right answer, within 10 s and 2 GB; see `run.py`.

A finding names its target and its seed: run it again with `FUZZ_SEED=seed FUZZ_INPUTS=1`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX")


def test_damaged_inputs_are_refused_or_read_right(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "model")
    run = subprocess.run(
        [sys.executable, str(HERE / "run.py"), str(tmp_path / "model")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    tallies = [json.loads(line) for line in run.stdout.splitlines()]
    findings = [(tally["target"], each) for tally in tallies for each in tally["findings"]]
    assert not findings, "\n".join(map(str, findings[:10]))
    assert len(tallies) >= 11
    assert all(tally["inputs"] for tally in tallies)
    assert sum(tally["refused"] for tally in tallies) > 100


def test_the_harness_finds_faults():
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / "check_harness.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert "...." in run.stdout, "four checks"
