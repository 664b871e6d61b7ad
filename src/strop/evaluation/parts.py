"""A run is a folder of parts: each suite on each dataset is `DATASET/SUITE.json`.

A part is written when it is finished, with all that is needed to judge it or to run it again. A run
that is started once more goes on with the parts that are not there.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from strop.data.record import Dataset
from strop.data.spec import open_dataset, parse_spec
from strop.errors import ConfigError, DataError
from strop.files import read_json, write_json

KIND, FORMAT = "evaluation", 1

Part = dict[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """One dataset to measure on, and what is fitted for it."""

    spec: str
    data: Dataset
    train_spec: str | None = None
    train: Dataset | None = None

    @property
    def name(self) -> str:
        """A folder's name: the kind of data, and what tells two of a kind apart."""
        both = f"{self.spec} {self.train_spec or ''}".encode(errors="surrogateescape")
        return f"{parse_spec(self.spec).kind}-{hashlib.sha256(both).hexdigest()[:6]}"


def open_sources(data: Sequence[str], train: Sequence[str] = ()) -> list[Source]:
    """Open every dataset; `DataError` if what is fitted on does not match what is measured."""
    if not data:
        raise DataError("There is nothing to measure on.", "Give at least one --data SPEC.")
    if train and len(train) != len(data):
        raise DataError(
            f"There are {len(data)} --data and {len(train)} --train.",
            "Give one --train for each --data, in the same order, or none.",
        )
    if len(set(data)) < len(data):
        raise DataError("A --data SPEC is given twice.", "Give each once.")
    sources = []
    for number, spec in enumerate(data):
        other = train[number] if train else None
        if other is not None and parse_spec(other) == parse_spec(spec):
            raise DataError(
                f"{spec} would be fitted on and measured.", "Fit on images that are not measured."
            )
        fitted = None if other is None else open_dataset(other)
        sources.append(Source(spec=spec, data=open_dataset(spec), train_spec=other, train=fitted))
    return sources


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """The folder of a model's parts.

    model     name, fingerprint, config and about
    settings  by suite, what besides model and data makes another part: the seed, say
    """

    folder: Path
    model: dict[str, Any]
    settings: dict[str, dict[str, Any]]

    def finished(self, source: Source, suite: str) -> Part | None:
        """The part if it is there; `ConfigError` if it is of another model or setting."""
        path = self._path(source, suite)
        if not path.is_file():
            return None
        part = read_json(path, KIND, FORMAT)
        pairs = {
            "model": (part["model"]["fingerprint"], self.model["fingerprint"]),
            "teacher": (_teacher(part["model"]), _teacher(self.model)),
            **{name: (part.get(name), value) for name, value in self.settings[suite].items()},
        }
        for what, (found, wanted) in pairs.items():
            if found != wanted:
                raise ConfigError(
                    f"{path} is of another {what.replace('_', ' ')}: {found}, not {wanted}.",
                    "Name another folder with --out, or remove this one.",
                )
        return part

    def finish(
        self, source: Source, suite: str, result: Part, seconds: float, device: torch.device
    ) -> Part:
        """Write what a suite found."""
        part = {
            "suite": suite,
            "model": self.model,
            "data": source.spec,
            "train": source.train_spec,
            **self.settings[suite],
            **_plain(result),
            "seconds": seconds,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(device),
        }
        write_json(self._path(source, suite), KIND, FORMAT, part)
        return part

    def _path(self, source: Source, suite: str) -> Path:
        return self.folder / source.name / f"{suite}.json"


def machine(device: torch.device) -> dict[str, Any]:
    """What a reader needs to know to judge a figure or run it again."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: _version(package) for package in ("strop", "torch", "transformers", "numpy")},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from its source
        return "not installed"


def _teacher(model: dict[str, Any]) -> object:
    return model["config"].get("teacher", {}).get("name")


def _plain(value: Any) -> Any:
    """`value` with null for what is not a number, which JSON cannot say otherwise."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
