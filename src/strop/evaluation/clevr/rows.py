"""The rows of the study: one model each, with how it was trained and what was measured of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.analysis.evaluate import Result as Part
from strop.analysis.paper import variants
from strop.analysis.report import each_once, read_run
from strop.config import from_dict
from strop.curriculum import scaled
from strop.data.spec import parse_spec
from strop.errors import DataError
from strop.files import PathLike, read_json
from strop.training.callbacks import read_metrics
from strop.training.preset import Preset

FACTS = "row.json"
"""What makes a run of an evaluation a row of the study."""

HELD_OUT = "scenes"
DATA = {HELD_OUT: "held-out scenes", "clevr": "scenes of Blender's CLEVR"}
"""What is measured on, by the kind of its spec. Rows are judged by the first alone."""


@dataclass(frozen=True)
class Row:
    """A model of the study: how it was trained, and its parts by kind of data and suite.

    facts        what the recipe says of it: row, preset, changes, teacher, seed, complexity, ...
    plan         the settings it was trained with, from the run's own file
    validations  what was measured of it on the way, from the run's log
    """

    name: str
    facts: dict[str, Any]
    plan: Preset
    validations: list[dict[str, Any]]
    parts: dict[tuple[str, str], Part]

    @property
    def is_trial(self) -> bool:
        """Whether it goes past the paper."""
        return bool(self.facts["changes"])

    @property
    def setting(self) -> tuple[Any, ...]:
        """What a trial and the paper's row must share to be compared."""
        training = self.plan.training
        return self.changed_setting, self.facts["seed"], training.steps, training.batch

    @property
    def changed_setting(self) -> tuple[str, str]:
        """Preset and teacher: what a trial changes something in."""
        return self.facts["preset"], self.facts["teacher"]

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
        return self.follows(kind)["pearson"]["value"]

    def follows(self, kind: str) -> dict[str, Any]:
        """How the length follows the number of objects."""
        return self.facts["complexity"][kind]

    @property
    def since_handoff(self) -> float | None:
        """How R² at all K tokens has changed since the handoff began, as validated on the way.

        None for a run without a handoff, or one that was not validated then.
        """
        if not self.plan.curriculum.enabled:
            return None
        steps = self.plan.training.steps
        begins = scaled(self.plan.curriculum, steps).phase_ends[2]
        at_k = f"r2@{self.plan.model.max_length}"
        found = {line["step"]: line.get(at_k) for line in self.validations}
        first, last = found.get(begins), found.get(steps)
        return None if first is None or last is None else last - first

    def chooses(self, kind: str) -> bool:
        """Whether it picks lengths: a row of the paper's ablation has one for all."""
        return self.parts[kind, "alignment"]["model"]["config"]["length_head"]["fixed"] is None


def read_rows(runs: Sequence[PathLike]) -> list[Row]:
    """The rows among the folders: the paper's in the paper's order, then trials by name.

    What else `strop eval` wrote is passed over.
    """
    folders = [run for run in each_once(runs) if (run / FACTS).is_file()]
    names = [run.resolve().name for run in folders]
    rows = [
        Row(
            # two folders may both be called `64`
            name if names.count(name) == 1 else f"{run.resolve().parent.name}/{name}",
            read_json(run / FACTS, "clevr", 1),
            from_dict(Preset, read_json(run / "run.json", "run", 1), "run"),
            [x for x in read_metrics(run / "metrics.jsonl") if x["kind"] == "validation"],
            _parts(run),
        )
        for run, name in zip(folders, names, strict=True)
    ]
    presets = {name: number for number, name in enumerate(variants())}
    usual = most_used_teacher(rows)

    def place(row: Row) -> tuple[Any, ...]:
        if row.is_trial:
            return True, row.name
        preset, teacher = row.changed_setting
        return False, presets.get(preset, len(presets)), teacher != usual, row.facts["seed"]

    return sorted(rows, key=place)


def most_used_teacher(rows: Sequence[Row]) -> str | None:
    """The teacher of most rows; the others are the exceptions."""
    teachers = [row.facts["teacher"] for row in rows]
    return max(teachers, key=teachers.count, default=None)


def _parts(run: Path) -> dict[tuple[str, str], Part]:
    parts: dict[tuple[str, str], Part] = {}
    for part in read_run(run):
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
    some = [row for row in measured_on(rows, kind) if kind in row.facts["complexity"]]
    return [row for row in some if row.chooses(kind)]


def tried(rows: Iterable[Row], kind: str) -> list[Row]:
    """The trials, and the paper's rows they change, as far as each was measured at every length."""
    return beside_trials(measured_on(choosing(rows, kind), kind, "rate"))


def beside_trials(rows: Sequence[Row]) -> list[Row]:
    """All trials, after the paper's rows that they change something in."""
    changed = {row.changed_setting for row in rows if row.is_trial}
    return [row for row in rows if row.is_trial or row.changed_setting in changed]
