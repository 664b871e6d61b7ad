"""Callbacks of a run: metrics files, progress bar, TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

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

    def on_fields(self, done: int, total: int) -> None:
        """While fields are computed before the first step: images done and their total number."""

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

    def close(self) -> None:
        """At the end, even if the run failed before its start."""


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


class JsonLines(Callback):
    """Writes the `metrics.jsonl` of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_start(self, run: TrainingRun) -> None:
        """Open the file."""
        self.file = MetricsFile(self.path, run.step)

    def on_log(self, run: TrainingRun, metrics: Metrics) -> None:
        """Add a line."""
        self.file.add("training", run.step, metrics)

    def on_validation(self, run: TrainingRun, metrics: Metrics) -> None:
        """Add a line."""
        self.file.add("validation", run.step, metrics)


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


class ProgressBar(Callback):
    """A progress bar with phase, loss, R², mean length, rate and time left."""

    def __init__(self, console: Console) -> None:
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,}/{task.total:,}"),
            TimeRemainingColumn(),
            console=console,
        )
        self.held_out = ""
        self.fields: TaskID | None = None

    def on_fields(self, done: int, total: int) -> None:
        """Show the progress of the fields."""
        self.bar.start()
        if self.fields is None:
            self.fields = self.bar.add_task("computing fields", total=total)
        self.bar.update(self.fields, completed=done)

    def on_start(self, run: TrainingRun) -> None:
        """Show the bar."""
        self.bar.start()
        if self.fields is not None:
            self.bar.remove_task(self.fields)
        self.task = self.bar.add_task(
            "compiling" if run.stepper.compiled else "training",
            total=run.preset.training.steps,
            completed=run.step,
        )

    def on_log(self, run: TrainingRun, metrics: Metrics) -> None:
        """Advance the bar."""
        text = (
            f"phase {metrics['phase']:.0f}  loss {metrics['loss']:.3f}{self.held_out}  "
            f"{metrics['images_per_second']:,.0f} img/s"
        )
        self.bar.update(self.task, completed=run.step, description=text)

    def on_validation(self, run: TrainingRun, metrics: Metrics) -> None:
        """Show R² and length from now on."""
        r2, length = metrics["r2_centred"], metrics["length_mean"]
        self.held_out = f"  R² {r2:.3f}  length {length:.1f}"

    def close(self) -> None:
        """Stop the bar."""
        if self.bar.live.is_started:
            self.bar.stop()


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


class Callbacks(list[Callback]):
    """The callbacks of a run, called in order."""

    def call(self, hook: Callable[..., None], *arguments: Any) -> None:
        """Call a hook of all: `call(Callback.on_log, run, metrics)`."""
        for callback in self:
            getattr(callback, hook.__name__)(*arguments)

    def close(self) -> None:
        """Close all."""
        self.call(Callback.close)
