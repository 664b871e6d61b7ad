"""Callbacks of a run: its metrics file, logging, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.config import to_dict
from strop.errors import ConfigError
from strop.files import check_format, format_tag, write_text
from strop.identity import digest
from strop.optional import require

if TYPE_CHECKING:
    from strop.training.loop import TrainingRun

Metrics = dict[str, float]

METRICS_FORMAT = 1
LOGGER = logging.getLogger("strop.training")


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


class MetricsFile(Callback):
    """Writes `metrics.jsonl`: one object per line, with its step and kind.

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

    def on_log(self, run: TrainingRun, metrics: Metrics) -> None:
        """Add the means."""
        self.add("training", run.step, metrics)

    def on_validation(self, run: TrainingRun, metrics: Metrics) -> None:
        """Add the held-out metrics."""
        self.add("validation", run.step, metrics)

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


class Scalars(Callback):
    """Writes metrics as scalars such as `validation/r2_centred`, with `write` of a subclass."""

    def on_log(self, run: TrainingRun, metrics: Metrics) -> None:
        """Write the means."""
        self.write({f"training/{name}": value for name, value in metrics.items()}, run.step)

    def on_validation(self, run: TrainingRun, metrics: Metrics) -> None:
        """Write the held-out metrics."""
        self.write({f"validation/{name}": value for name, value in metrics.items()}, run.step)

    @abstractmethod
    def write(self, scalars: Metrics, step: int) -> None:
        """Write scalars of a step."""


class TensorBoard(Scalars):
    """Writes event files for TensorBoard into `folder`."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", ConfigError)
        self.folder = folder
        self.writer: Any = None

    def on_start(self, run: TrainingRun) -> None:
        """Open a file."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.folder))

    def write(self, scalars: Metrics, step: int) -> None:
        """See `Scalars`."""
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, step)

    def on_end(self, run: TrainingRun, finished: bool) -> None:
        """Close the file."""
        self.writer.close()


class WeightsAndBiases(Scalars):
    """Logs to a run of Weights & Biases in the project `strop`. A resumed run continues there."""

    def __init__(self, folder: Path) -> None:
        self.wandb = require("wandb", ConfigError)
        self.folder = folder
        self.run: Any = None

    def on_start(self, run: TrainingRun) -> None:
        """Open the run."""
        folder = self.folder.resolve()
        self.run = self.wandb.init(
            project="strop",
            name=folder.name,
            id=digest(str(folder)),
            resume="allow",
            dir=str(folder),
            config=to_dict(run.preset),
        )

    def write(self, scalars: Metrics, step: int) -> None:
        """See `Scalars`."""
        self.run.log(scalars, step=step)

    def on_end(self, run: TrainingRun, finished: bool) -> None:
        """Close the run."""
        self.run.finish(exit_code=0 if finished else 1)


LOGS: dict[str, Callable[[Path], Callback]] = {
    "tensorboard": lambda folder: TensorBoard(folder / "tensorboard"),
    "wandb": WeightsAndBiases,
}
"""Callbacks by the name that `strop train --log` takes, for the folder of a run."""
