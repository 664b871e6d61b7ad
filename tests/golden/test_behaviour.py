"""What was pinned still holds; `behaviour.py` says what is pinned and how to record it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("behaviour.py")


@pytest.mark.parametrize(
    "part",
    [
        "training",
        *(
            pytest.param(part, marks=pytest.mark.slow)
            for part in ("photos", "scenes", "tiny", "json")
        ),
    ],
)
def test_behaviour_is_as_pinned(part: str) -> None:
    """In a separate process: one thread, and no changes by other tests."""
    command = [sys.executable, str(SCRIPT), part]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
