"""Fuzz every target: python tests/fuzz/run.py MODEL, with a folder of a small model.

FUZZ_SECONDS  the time for all targets together
FUZZ_SEED     the first seed of each
FUZZ_INPUTS   how many inputs each target gets at most
FUZZ_RESULTS  a file of results to add the counts to

One line of JSON for each target. A process of its own, because libraries whose threads run in the
process of a test, such as Lance, do not survive a fork.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # threads of OpenMP do not survive a fork

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "inspector")]

from harness import fuzz  # noqa: E402
from targets import all_targets  # noqa: E402

import strop  # noqa: E402
from strop.files import read_json, write_json  # noqa: E402

NEEDS = {"stores": "lance", "requests": "fastapi"}
MAY_DIE = {"stores"}  # Lance aborts on some damaged files; SECURITY.md says so


def main() -> None:
    seconds = float(os.environ.get("FUZZ_SECONDS", "20"))
    first = int(os.environ.get("FUZZ_SEED", "0"))
    most = int(os.environ.get("FUZZ_INPUTS", str(2**62)))
    malformed, model = print, Path(sys.argv[1])
    if importlib.util.find_spec("fastapi") is not None:
        from test_malformed import malformed
    targets = all_targets(model, strop.load(model, device="cpu"), malformed)
    for name, target in targets.items():
        if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            continue
        tally = fuzz(target, first, seconds / len(targets), most, may_die=name in MAY_DIE)
        if "FUZZ_RESULTS" in os.environ:
            note(Path(os.environ["FUZZ_RESULTS"]), name, tally.as_dict())
        sys.stdout.write(json.dumps({"target": name, **tally.as_dict()}) + "\n")
        sys.stdout.flush()


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
    write_json(path, "benchmark", 1, results)


if __name__ == "__main__":
    main()
