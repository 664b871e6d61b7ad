"""Several analyses of a model on several datasets, as `strop eval` runs them.

Each analysis of each dataset is one result, OUT/DATASET/NAME.json, with everything that is needed
to judge it or to run it again. A run that is started again continues with what is missing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from strop.analysis.findings import Findings, read_findings, write_findings
from strop.analysis.frame import (
    check_subject,
    differences,
    find_analysis,
    identities,
    make_options,
)
from strop.analysis.probes.protocol import find_protocol
from strop.analysis.registry import ANALYSES, EVALUATIONS
from strop.analysis.subject import Subject
from strop.config import to_dict
from strop.data.record import Dataset
from strop.data.spec import open_dataset, parse_spec
from strop.device import describe_machine
from strop.errors import ConfigError, DataError, StropError
from strop.files import PathLike, exclusive
from strop.model.tokenizer import Tokenizer, check_tokenizer
from strop.program import check_range
from strop.progress import Progress, no_progress

KIND = "evaluation"

Result = dict[str, Any]
"""The content of one result's JSON file."""


class Split(NamedTuple):
    """A dataset to measure on and one to fit on, with their specs."""

    data: str
    dataset: Dataset
    train: str | None = None
    train_dataset: Dataset | None = None

    @property
    def folder(self) -> str:
        """A name for the results: the kind of data, and a digest of both specs."""
        both = f"{self.data} {self.train or ''}".encode(errors="surrogateescape")
        return f"{parse_spec(self.data).kind}-{hashlib.sha256(both).hexdigest()[:6]}"


EvaluationJob = tuple[Path, Result, Callable[[], Findings]]
"""The folder of a result, the keys that identify it, and what computes the others."""


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
    progress: Progress = no_progress,
    note: Callable[[str], None] | None = None,
) -> list[Result]:
    """Run analyses on datasets; return all results, including those of an earlier run.

    data    specs of the datasets to measure on
    train   specs of the datasets that probes and baselines are fitted on, one for each of `data`,
            or none
    suites  names of analyses, or "all" for every evaluation that model and data allow
    probe_lengths  forced lengths at which segmentation and depth are probed as well
    lpips   the file of LPIPS weights, if there is one
    name    the model's name in reports
    note    called with the reason why an analysis of "all" is left out

    Whatever can be refused is refused before any work.
    """
    check_tokenizer(tokenizer)
    data, train, suites = ([it] if isinstance(it, str) else it for it in (data, train, suites))
    splits = open_splits(data, train)
    for length in probe_lengths:
        check_range(torch.tensor(length), 1, tokenizer.config.max_length, "length")
    analyses = [find_analysis(each) for each in choose_suites(suites)]
    find_protocol(protocol)
    settings = {
        "seed": seed,
        "protocol": protocol,
        "probe_lengths": list(probe_lengths),
        "lpips": "" if lpips is None else str(lpips),
    }
    about = {"config": to_dict(tokenizer.config), "about": tokenizer.about}
    model = {"name": name, "fingerprint": tokenizer.identity.codes, **about}
    subject_of = partial(
        Subject, tokenizer=tokenizer, batch=batch, workers=workers, progress=progress
    )
    jobs: list[EvaluationJob] = []
    for split in splits:
        folder = Path(out) / split.folder
        subject = subject_of(dataset=split.dataset, data=split.data, folder=folder)
        if split.train is not None and split.train_dataset is not None:
            subject.train = subject_of(dataset=split.train_dataset, data=split.train)
        for analysis in analyses:
            own = {key.name for key in fields(analysis.options)} & settings.keys()
            options = make_options(analysis, {key: settings[key] for key in own})
            try:
                check_subject(analysis, subject, options)
            except StropError as error:
                if analysis.name in suites:
                    raise
                if note is not None:
                    note(f"{analysis.name} is left out. {error}")
                continue
            header = {
                "suite": analysis.name,
                "model": model,
                "data": split.data,
                "train": split.train,
                "seed": seed,
                "protocol": protocol,
                "options": to_dict(options),
                "identities": identities(subject, analysis, options),
            }
            jobs.append((folder, header, partial(analysis.run, subject, options)))
    with exclusive(out):
        assert tokenizer.teacher  # it is loaded now, and said to be missing before any work
        return run_jobs(jobs, tokenizer.device)


def run_jobs(jobs: list[EvaluationJob], device: torch.device) -> list[Result]:
    """Compute and store the results that do not exist yet; return all. `jobs` is emptied.

    A result of another model, data or option is refused before any work.
    """
    known = []
    for folder, header, _ in jobs:
        found = read_findings(folder, header["suite"], KIND)
        for what, (old, new) in differences(found or header, header).items():
            raise ConfigError(
                f"{folder / header['suite']}.json is of another {what}: {old}, not {new}.",
                "Name another folder with --out, or remove this one.",
            )
        known.append(found)
    results = []
    for result in known:
        folder, header, run = jobs.pop(0)  # so that the data of finished jobs can be freed
        if result is None:
            began = time.perf_counter()
            findings = run()
            header |= {
                "seconds": time.perf_counter() - began,
                "finished": datetime.now(UTC).isoformat(timespec="seconds"),
                "machine": describe_machine(device),
            }
            result = write_findings(folder, header["suite"], KIND, header, findings)
        results.append(result)
    return results


def choose_suites(names: Sequence[str]) -> list[str]:
    """The analyses that `names` name, "all" being the evaluations; in the registry's order."""
    for name in names:
        if name != "all":
            find_analysis(name, ANALYSES, "suite")
    return [name for name in ANALYSES if name in names or ("all" in names and name in EVALUATIONS)]


def open_splits(data: Sequence[str], train: Sequence[str] = ()) -> list[Split]:
    """Open every dataset; `DataError` if those to fit on do not match those to measure on."""
    if not data:
        raise DataError("There is nothing to measure on.", "Give at least one --data SPEC.")
    if train and len(train) != len(data):
        raise DataError(
            f"There are {len(data)} --data and {len(train)} --train.",
            "Give one --train for each --data, in the same order, or none.",
        )
    if len(set(data)) < len(data):
        raise DataError("A --data SPEC is given twice.", "Give each once.")
    for spec, other in zip(data, train, strict=False):
        if parse_spec(other) == parse_spec(spec):
            raise DataError(
                f"{spec} would be fitted on and measured.", "Fit on images that are not measured."
            )
    others: Sequence[str | None] = train or [None] * len(data)
    return [
        Split(spec, open_dataset(spec), other, None if other is None else open_dataset(other))
        for spec, other in zip(data, others, strict=True)
    ]
