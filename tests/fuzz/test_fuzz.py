"""Damaged inputs give an error of strop or a right answer, within 10 s and 2 GB.

`FUZZ_SECONDS` is the time for all targets together, and `FUZZ_SEED` the first seed of each. With
`FUZZ_RESULTS`, the counts are added to that file. A finding names its seed: run it again with
`FUZZ_SEED=seed FUZZ_INPUTS=1`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from strop.files import read_json, write_json

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "inspector")]

from harness import fuzz  # noqa: E402
from targets import all_targets  # noqa: E402

SECONDS = float(os.environ.get("FUZZ_SECONDS", "20"))
FIRST = int(os.environ.get("FUZZ_SEED", "0"))
MOST = int(os.environ.get("FUZZ_INPUTS", str(2**62)))
NAMES = list(all_targets(Path(), None, print))
MAY_DIE = {"stores"}  # Lance aborts on some damaged files; SECURITY.md says so
MISSING = {"stores": "lance", "requests": "fastapi"}

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX")


@pytest.mark.parametrize("name", NAMES)
def test_damaged_inputs_are_refused_or_read_right(name, tokenizer, tmp_path):
    if name in MISSING and importlib.util.find_spec(MISSING[name]) is None:
        pytest.skip(f"needs {MISSING[name]}")
    malformed = print
    if name == "requests":
        from test_malformed import malformed
    tokenizer.save_pretrained(tmp_path / "model")
    target = all_targets(tmp_path / "model", tokenizer, malformed)[name]
    tally = fuzz(target, FIRST, SECONDS / len(NAMES), MOST, may_die=name in MAY_DIE)
    if "FUZZ_RESULTS" in os.environ:
        note(Path(os.environ["FUZZ_RESULTS"]), name, tally.as_dict())
    assert not tally.findings, "\n".join(map(str, tally.findings[:5]))
    assert tally.inputs


def note(path: Path, name: str, tally: dict) -> None:
    """Add the counts of a target to those in a file of results."""
    results = read_json(path, "benchmark", 1) if path.is_file() else {"targets": {}}
    kept = results["targets"].setdefault(name, {})
    for key in ("inputs", "accepted", "refused", "deaths"):
        kept[key] = kept.get(key, 0) + tally[key]
    for key in ("slowest", "most_bytes"):
        kept[key] = max(kept.get(key, 0), tally[key])
    kept["findings"] = kept.get("findings", 0) + len(tally["findings"])
    results["inputs"] = sum(each["inputs"] for each in results["targets"].values())
    results["findings"] = sum(each["findings"] for each in results["targets"].values())
    write_json(path, "benchmark", 1, json.loads(json.dumps(results)))
