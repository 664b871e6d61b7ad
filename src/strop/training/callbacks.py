"""Callbacks of a run, its metrics file, and TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.files import check_format, format_tag, write_text
from strop.training.preset import Preset
from strop.training.step import Stepper

Metrics = dict[str, float]

METRICS_FORMAT = 1


@dataclass
class TrainingRun:
    """The state of a run that callbacks are given.

    step    optimizer steps taken so far
    folder  where the run's files go, None if it writes none
    """

    preset: Preset
    stepper: Stepper
    step: int
    folder: Path | None


class Callback:
    """Hooks called by the first process of a run; by default they do nothing."""

    def on_start(self, run: TrainingRun) -> None:
        """Before the first step, or the first after a resumption."""

    def on_log(self, run: TrainingRun, metrics: Metrics) -> None:
        """Every `training.log_every` steps, with means over these steps."""

    def on_validation(self, run: TrainingRun, metrics: Metrics) -> None:
        """After each validation."""

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        """After a checkpoint is written."""

    def on_end(self, run: TrainingRun, finished: bool) -> None:
        """After the last step, a stop by a signal, or an error."""


class MetricsFile:
    """`metrics.jsonl`: one object per line, with its step and kind.

    Lines after `step` are dropped: a killed run wrote them after its last checkpoint.
    """

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        kept = [line for line in read_metrics(path) if step and line["step"] <= step]
        write_text(path, "".join(map(self._line, kept)))

    def add(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Add a line."""
        tag = format_tag("metrics", METRICS_FORMAT)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(self._line({"format": tag, "kind": kind, "step": step, **metrics}))

    @staticmethod
    def _line(values: Mapping[str, Any]) -> str:
        return json.dumps(values, ensure_ascii=False) + "\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` without a last line that is incomplete."""
    if not path.is_file():
        return []
    lines: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            break
        check_format(line.get("format"), "metrics", METRICS_FORMAT, path)
        lines.append(line)
    return lines


class TensorBoard(Callback):
    """Writes scalars for TensorBoard if it is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: Any = None

    def on_start(self, run: TrainingRun) -> None:
        """Open a file."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self.writer = SummaryWriter(str(self.folder))

    def on_log(self, run: TrainingRun, metrics: Metrics) -> None:
        """Write the means."""
        self._write("training", run.step, metrics)

    def on_validation(self, run: TrainingRun, metrics: Metrics) -> None:
        """Write the held-out metrics."""
        self._write("validation", run.step, metrics)

    def on_end(self, run: TrainingRun, finished: bool) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()

    def _write(self, kind: str, step: int, metrics: Metrics) -> None:
        if self.writer is not None:
            for name, value in metrics.items():
                self.writer.add_scalar(f"{kind}/{name}", value, step)
