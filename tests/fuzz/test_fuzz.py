"""Damaged inputs give an error of strop or a right answer, within 10 s and 2 GB; see `run.py`.

A finding names its target and its seed: run it again with `FUZZ_SEED=seed FUZZ_INPUTS=1`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from harness import fuzz  # noqa: E402

from strop.errors import DataError  # noqa: E402

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


def faulty(folder: Path):
    """A target with one fault of each kind, which the harness has to find."""
    numbers = iter(range(6))

    def feed(draw: random.Random) -> bool:
        match next(numbers):
            case 1:
                raise KeyError("not an error of strop")
            case 2:
                raise AssertionError("a wrong answer")
            case 3:
                raise DataError("A problem.", "")
            case 4:
                assert len(b"x" * 300_000_000)
        return True

    return feed


def test_the_harness_finds_what_is_wrong(monkeypatch):
    monkeypatch.setattr("harness.BYTES", 50_000_000)
    tally = fuzz(faulty, 0, 30, 6)
    said = [each["finding"] for each in tally.findings]
    assert tally.inputs == 6
    for fault in ("KeyError", "AssertionError", "without a remedy", "GiB"):
        assert any(fault in each for each in said), (fault, said)


@pytest.mark.parametrize("may_die", [False, True])
def test_the_harness_survives_a_death(may_die):
    def dying(folder: Path):
        return lambda draw: os.abort() if draw.random() < 0.5 else True

    tally = fuzz(dying, 0, 30, 8, may_die=may_die)
    killed = [each for each in tally.findings if each["finding"] == "killed by signal 6"]
    assert len(killed) + tally.deaths > 1
    assert bool(tally.deaths) is may_die


def test_the_harness_ends_what_hangs(monkeypatch):
    def hanging(folder: Path):
        return lambda draw: time.sleep(60)

    monkeypatch.setattr("harness.SECONDS", 0.05)
    tally = fuzz(hanging, 3, 0.1, 1)
    assert [each["seed"] for each in tally.findings] == [3]
    assert "still running" in tally.findings[0]["finding"]
