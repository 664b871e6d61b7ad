"""Checks of the harness itself. `test_fuzz.py` runs them without threads."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from strop.errors import DataError

sys.path.insert(0, str(Path(__file__).parent))

from harness import fuzz


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
