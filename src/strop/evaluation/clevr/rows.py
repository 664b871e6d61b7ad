"""The rows of the study: one model each, with how it was trained and what was measured of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.data.spec import parse_spec
from strop.errors import DataError
from strop.evaluation.paper import variants
from strop.evaluation.parts import Part
from strop.evaluation.runs import each_once, read_runs
from strop.files import PathLike, read_json

FACTS = "row.json"
"""What makes a run of an evaluation a row of the study."""

HELD_OUT = "scenes"
DATA = {HELD_OUT: "held-out scenes", "clevr": "scenes of Blender's CLEVR"}
"""What is measured on, by the kind of its spec. Rows are judged by the first alone."""


@dataclass(frozen=True)
class Row:
    """A model of the study: how it was trained, and its parts by kind of data and suite.

    facts  what the recipe says of it: row, preset, changes, teacher, seed, minutes, complexity, ...
    plan   the settings it was trained with, as the run's own file has them
    """

    name: str
    facts: dict[str, Any]
    plan: dict[str, Any]
    parts: dict[tuple[str, str], Part]

    @property
    def is_trial(self) -> bool:
        """Whether it goes past the paper."""
        return bool(self.facts["changes"])

    @property
    def setting(self) -> tuple[str, str, int]:
        """What a trial and the paper's row must share to be compared."""
        return self.facts["preset"], self.facts["teacher"], self.facts["seed"]

    def values(self, kind: str) -> dict[str, float | None]:
        """The figures of alignment and of pixels, as far as they were measured."""
        suites = ("alignment", "pixels")
        found = [self.parts.get((kind, suite), {}).get("values", {}) for suite in suites]
        return found[0] | found[1]

    def images(self, kind: str, suite: str = "alignment") -> int:
        """How many were measured on."""
        return self.parts[kind, suite]["images"]

    def correlation(self, kind: str) -> float | None:
        """Pearson's r of length and number of objects; None where all lengths are the same."""
        return self.facts["complexity"][kind]["pearson"]["value"]

    def chooses(self, kind: str) -> bool:
        """Whether it picks lengths: a row of the paper's ablation has one for all."""
        return self.parts[kind, "alignment"]["model"]["config"]["length_head"]["fixed"] is None


def read_rows(runs: Sequence[PathLike]) -> list[Row]:
    """The rows among the folders: the paper's in the paper's order, then trials as they are given.

    What else `strop eval` wrote is passed over.
    """
    rows = [
        Row(
            run.resolve().name,
            read_json(run / FACTS, "clevr", 1),
            read_json(run / "run.json", "run", 1),
            _parts(run),
        )
        for run in each_once(runs)
        if (run / FACTS).is_file()
    ]
    presets = {name: number for number, name in enumerate(variants())}
    usual = most_used_teacher(rows)

    def place(row: Row) -> tuple[Any, ...]:
        preset, teacher, seed = row.setting
        if row.is_trial:
            return (True,)
        return False, presets.get(preset, len(presets)), teacher != usual, seed

    return sorted(rows, key=place)


def most_used_teacher(rows: Sequence[Row]) -> str | None:
    """The teacher of most rows; the others are the exceptions."""
    teachers = [row.facts["teacher"] for row in rows]
    return max(teachers, key=teachers.count, default=None)


def _parts(run: Path) -> dict[tuple[str, str], Part]:
    parts: dict[tuple[str, str], Part] = {}
    for part in read_runs([run]):
        key = parse_spec(part["data"]).kind, part["suite"]
        if key in parts:
            raise DataError(f"{run} has two parts of {key}.", "Delete the one that is stale.")
        parts[key] = part
    return parts


def measured_on(rows: Iterable[Row], kind: str, suite: str = "alignment") -> list[Row]:
    """The rows that have this part."""
    return [row for row in rows if (kind, suite) in row.parts]


def choosing(rows: Iterable[Row], kind: str) -> list[Row]:
    """The rows whose lengths can be set beside objects."""
    return [row for row in measured_on(rows, kind) if row.chooses(kind)]


def tried(rows: Iterable[Row], kind: str) -> list[Row]:
    """All trials, after the paper's rows that they change something in."""
    some = measured_on(rows, kind, "rate")
    changed = {row.setting[:2] for row in some if row.is_trial}
    return [row for row in some if row.is_trial or row.setting[:2] in changed]
