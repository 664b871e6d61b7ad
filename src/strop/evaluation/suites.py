"""The suites by name, what each needs, and the run that works through them.

A run is a folder. Each suite on each dataset is one part, `DATASET/SUITE.json`, written when it is
finished; a run that is started again goes on with the parts that are not there.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from strop.config import to_dict
from strop.data.record import Dataset
from strop.data.spec import open_dataset, parse_spec
from strop.errors import ConfigError, DataError, StropError, did_you_mean
from strop.evaluation import alignment, pixels, rate
from strop.evaluation.context import Context, Report
from strop.evaluation.probes import suites as probes
from strop.evaluation.probes.checks import check_datasets
from strop.evaluation.probes.protocol import find_protocol
from strop.files import PathLike, read_json, write_json
from strop.model.tokenizer import Tokenizer
from strop.program import check_range

KIND, FORMAT = "evaluation", 1


@dataclass(frozen=True, kw_only=True)
class Suite:
    """How a suite runs, and what must be there before it does.

    part   the part of the records that it asks about, and so needs data to fit on
    check  refuses a model or a protocol
    """

    run: Callable[[Context], dict[str, Any]]
    part: str | None = None
    check: Callable[[Tokenizer, str], None] = lambda tokenizer, protocol: None


def _check_multilabel(tokenizer: Tokenizer, protocol: str) -> None:
    if find_protocol(protocol).multilabel is None:
        raise ConfigError(
            f"The protocol {protocol} has no multi-label probe.", "Use --protocol paper."
        )


SUITES: dict[str, Suite] = {
    "alignment": Suite(run=alignment.run),
    "pixels": Suite(run=pixels.run, check=pixels.check),
    "rate": Suite(run=rate.run),
    "segmentation": Suite(run=probes.segmentation, part="semantic"),
    "multilabel": Suite(run=probes.multilabel, part="labels", check=_check_multilabel),
    "depth": Suite(run=probes.depth, part="depth"),
}


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


def evaluate(
    tokenizer: Tokenizer,
    data: Sequence[str],
    out: PathLike,
    *,
    suites: Sequence[str] = ("all",),
    train: Sequence[str] = (),
    protocol: str = "paper",
    probe_lengths: Sequence[int] = (),
    lpips: PathLike | None = None,
    name: str = "",
    seed: int = 0,
    batch: int = 32,
    workers: int = 0,
    report: Report | None = None,
    note: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Run suites on datasets and return all parts, those of an earlier run included.

    data    specs of what is measured
    train   specs of what probes and baselines are fitted on, one for each of `data`, or none
    suites  names, or "all" for those that model and data allow
    probe_lengths  forced lengths at which segmentation and depth are probed as well
    name    what the model is called in reports
    note    told why a suite of "all" was left out

    Whatever can be refused is refused before any work.
    """
    sources = open_sources(data, train)
    for length in probe_lengths:
        check_range(torch.tensor(length), 1, tokenizer.config.max_length, "length")
    plan = list(_plan(tokenizer, sources, suites, protocol, note))
    out = Path(out)
    for source, suite in plan:
        _finished(out, source, suite, tokenizer, seed, protocol)
    _ = tokenizer.teacher  # one that cannot be loaded is told now
    parts = []
    for source in sources:
        context = Context(
            tokenizer=tokenizer,
            data=source.data,
            train_data=source.train,
            folder=out / source.name,
            protocol=protocol,
            probe_lengths=tuple(probe_lengths),
            lpips=None if lpips is None else Path(lpips),
            seed=seed,
            batch=batch,
            workers=workers,
            report=report,
        )
        for suite in (suite for each, suite in plan if each is source):
            part = _finished(out, source, suite, tokenizer, seed, protocol)
            if part is None:
                part = _run(suite, source, context, name)
                write_json(_path(out, source, suite), KIND, FORMAT, part)
            parts.append(part)
    return parts


def check_suites(names: Sequence[str]) -> list[str]:
    """Names of suites, "all" being all of them; each once, in the table's order."""
    for name in names:
        if name != "all" and name not in SUITES:
            raise ConfigError(
                f"There is no suite {name!r}.",
                f"{did_you_mean(name, SUITES)}Choose from {', '.join(SUITES)}, or all.",
            )
    return [name for name in SUITES if name in names or "all" in names]


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


def _plan(
    tokenizer: Tokenizer,
    sources: list[Source],
    names: Sequence[str],
    protocol: str,
    note: Callable[[str], None] | None,
) -> Iterator[tuple[Source, str]]:
    """What is to be done. A suite asked for by name must be possible; "all" leaves out the rest."""
    find_protocol(protocol)
    for source in sources:
        for name in check_suites(names):
            try:
                SUITES[name].check(tokenizer, protocol)
                _check_data(SUITES[name], name, source)
            except StropError as error:
                if name in names:
                    raise
                if note is not None:
                    note(f"{name} is left out. {error}")
                continue
            yield source, name


def _check_data(suite: Suite, name: str, source: Source) -> None:
    if suite.part is None:
        return
    if source.train is None:
        raise DataError(
            f"The suite {name} trains probes, and there is nothing to train them on for "
            f"{source.spec}.",
            "Give it with --train SPEC.",
        )
    check_datasets(source.train, source.data, suite.part)


def _run(suite: str, source: Source, context: Context, name: str) -> dict[str, Any]:
    began = time.perf_counter()
    result = SUITES[suite].run(context)
    tokenizer = context.tokenizer
    return {
        "suite": suite,
        "model": {
            "name": name,
            "fingerprint": tokenizer.fingerprint,
            "config": to_dict(tokenizer.config),
            "about": tokenizer.about,
        },
        "data": source.spec,
        "train": source.train_spec,
        "protocol": context.protocol,
        "seed": context.seed,
        **_plain(result),
        "seconds": time.perf_counter() - began,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(tokenizer.device),
    }


def _plain(value: Any) -> Any:
    """`value` with null for what is not a number, which JSON cannot say otherwise."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


def _path(out: Path, source: Source, suite: str) -> Path:
    return out / source.name / f"{suite}.json"


def _finished(
    out: Path, source: Source, suite: str, tokenizer: Tokenizer, seed: int, protocol: str
) -> dict[str, Any] | None:
    """The part if it is there; `ConfigError` if it is of another model or setting."""
    path = _path(out, source, suite)
    if not path.is_file():
        return None
    part = read_json(path, KIND, FORMAT)
    for what, found, wanted in (
        ("model", part["model"]["fingerprint"], tokenizer.fingerprint),
        ("teacher", part["model"]["config"]["teacher"]["name"], tokenizer.config.teacher.name),
        ("seed", part["seed"], seed),
        ("protocol", part["protocol"], protocol),
    ):
        if found != wanted:
            raise ConfigError(
                f"{path} is of another {what}: {found}, not {wanted}.",
                "Name another folder with --out, or remove this one.",
            )
    return part
