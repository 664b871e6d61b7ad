"""The rows of the CLEVR study: how each model was trained, and what was measured of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.analysis.evaluate import Result as Part
from strop.analysis.evaluation_report import each_once, read_run
from strop.analysis.paper import variants
from strop.config import from_dict
from strop.curriculum import scaled
from strop.data.spec import parse_spec
from strop.errors import DataError
from strop.files import PathLike, read_json
from strop.training.callbacks import read_metrics
from strop.training.preset import Preset

FACTS = "row.json"
"""The file that makes the results of an evaluation a row of the study."""

HELD_OUT = "scenes"
DATA = {HELD_OUT: "held-out scenes", "clevr": "scenes of Blender's CLEVR"}
"""The datasets by the kind of their spec. Trials are judged on the first one only."""


@dataclass(frozen=True)
class Row:
    """A model of the study: its training and its evaluation results by dataset and suite.

    facts        written by `study.py`: row, preset, changes, teacher, seed, complexity, ...
    plan         the settings it was trained with, from `run.json`
    validations  the validation lines of the training log
    """

    name: str
    facts: dict[str, Any]
    plan: Preset
    validations: list[dict[str, Any]]
    parts: dict[tuple[str, str], Part]

    @property
    def is_trial(self) -> bool:
        """Whether it changes something in a row of the paper."""
        return bool(self.facts["changes"])

    @property
    def setting(self) -> tuple[Any, ...]:
        """What a trial must share with a row of the paper to be compared with it."""
        training = self.plan.training
        return self.changed_setting, self.facts["seed"], training.steps, training.batch

    @property
    def changed_setting(self) -> tuple[str, str]:
        """The preset and the teacher that a trial starts from."""
        return self.facts["preset"], self.facts["teacher"]

    def values(self, kind: str) -> dict[str, float | None]:
        """The metrics of alignment and of pixels, where they were measured."""
        suites = ("alignment", "pixels")
        found = [self.parts.get((kind, suite), {}).get("values", {}) for suite in suites]
        return found[0] | found[1]

    def images(self, kind: str, suite: str = "alignment") -> int:
        """The number of images measured."""
        return self.parts[kind, suite]["images"]

    def complexity(self, kind: str) -> dict[str, Any]:
        """How the length follows the number of objects."""
        return self.facts["complexity"][kind]

    def correlation(self, kind: str) -> float | None:
        """Pearson's r of length and number of objects; None where all lengths are equal."""
        return self.complexity(kind)["pearson"]["value"]

    @property
    def since_handoff(self) -> float | None:
        """The change of R² at all K tokens since the handoff began, from the training log.

        None for a run without a handoff, and for a run without a validation at that step.
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
        """Whether the model predicts lengths, instead of one fixed length for all images."""
        return self.parts[kind, "alignment"]["model"]["config"]["length_head"]["fixed"] is None


def read_rows(runs: Sequence[PathLike]) -> list[Row]:
    """The rows among the folders: the paper's in the paper's order, then trials by name.

    Folders without `row.json` are skipped.
    """
    folders = [run for run in each_once(runs) if (run / FACTS).is_file()]
    names = [run.resolve().name for run in folders]
    rows = [
        Row(
            # Two folders may have the same name.
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
    """The teacher of most rows."""
    teachers = [row.facts["teacher"] for row in rows]
    return max(teachers, key=teachers.count, default=None)


def _parts(run: Path) -> dict[tuple[str, str], Part]:
    parts: dict[tuple[str, str], Part] = {}
    for part in read_run(run):
        key = parse_spec(part["data"]).kind, part["suite"]
        if key in parts:
            raise DataError(f"{run} has two parts of {key}.", "Delete the stale one.")
        parts[key] = part
    return parts


def measured_on(rows: Iterable[Row], kind: str, suite: str = "alignment") -> list[Row]:
    """The rows that have this part."""
    return [row for row in rows if (kind, suite) in row.parts]


def choosing(rows: Iterable[Row], kind: str) -> list[Row]:
    """The rows that predict lengths, for data with a known number of objects."""
    some = [row for row in measured_on(rows, kind) if kind in row.facts["complexity"]]
    return [row for row in some if row.chooses(kind)]


def rated(rows: Iterable[Row], kind: str) -> list[Row]:
    """The trials, and the paper's rows they change, that were measured at every length."""
    return beside_trials(measured_on(choosing(rows, kind), kind, "rate"))


def beside_trials(rows: Sequence[Row]) -> list[Row]:
    """All trials, and the paper's rows that they change."""
    changed = {row.changed_setting for row in rows if row.is_trial}
    return [row for row in rows if row.is_trial or row.changed_setting in changed]
