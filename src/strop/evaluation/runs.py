"""What lies in the folders of runs, as one list of parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strop.errors import DataError
from strop.evaluation.parts import FORMAT, KIND, Part
from strop.evaluation.suites import SUITES
from strop.files import PathLike, read_json


def read_runs(runs: Sequence[PathLike]) -> list[Part]:
    """All parts of all runs, by model and suite; each knows the paths of its `pictures`."""
    parts = [part for run in each_once(runs) for part in read_run(run)]
    models = list(dict.fromkeys(part["model"]["fingerprint"] for part in parts))
    suites = list(SUITES)
    names = {part["model"]["fingerprint"]: part["model"]["name"] for part in parts}
    for part in parts:
        model = part["model"]
        if list(names.values()).count(model["name"]) > 1:  # two folders may both be called `model`
            part["model"] = {**model, "name": f"{model['name']} {model['fingerprint'][:6]}"}
    return sorted(
        parts,
        key=lambda part: (models.index(part["model"]["fingerprint"]), suites.index(part["suite"])),
    )


def read_run(run: Path) -> list[Part]:
    """The parts of one run, by suite."""
    found = [path for name in SUITES for path in sorted(run.glob(f"*/{name}.json"))]
    if not found:
        raise DataError(
            f"{run} holds no finished part of an evaluation.",
            "Give folders that `strop eval` wrote.",
        )
    return [
        {
            **read_json(path, KIND, FORMAT),
            "pictures": sorted(path.parent.glob(f"{path.stem}*.png")),
        }
        for path in found
    ]


def each_once(runs: Sequence[PathLike]) -> list[Path]:
    """The folders in their order, one that is given twice but once."""
    return list({run.resolve(): run for run in map(Path, runs)}.values())
