"""The frame of every analysis: check, encode once, run, write; resume what is finished.

An analysis is a module named in `strop.analysis.registry`, with

    @dataclass(frozen=True, kw_only=True)
    class Options:                                  # what a user may choose, each with a default
        draws: int = field(default=200, metadata={"min": 1})
        share: float = field(default=0.2, metadata={"above": 0, "below": 1})
        seed: int = 0                               # numbers are at least 0 if nothing else is said
        pairs: str = field(default="", metadata={"dataset": True})       # a spec of further data

    def run(subject: Subject, options: Options) -> Findings: ...

    ANALYSIS = Analysis(run=run, options=Options, needs=("semantic",))

`subject` gives, on the CPU, `records` (a `Batch` of all images with their masks, labels and
scenes), `program`, `fields`, `z`, `classes` and `label_names`; further `tokenizer`, `data` (the
spec), `folder` (for files of its own), `progress(task, done, total)`, `len(subject)`, and
`fitted_on()` (a subject to fit on). `findings` hold numbers, tables, figures, files and notes: see
`strop.analysis.findings`. Figures are drawn with `strop.figures`. In tests,
`run(Subject(tokenizer=..., dataset=..., data="name", folder=tmp_path), Options())` is enough.

An analysis outside the package has a `name` and ends its module with `run_script(ANALYSIS)` of
`strop.cli.study`, as those in `research/structure` do.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from strop.analysis.findings import Findings, read_findings, write_findings
from strop.analysis.registry import ANALYSES, MOVED, STUDIES
from strop.analysis.subject import Subject
from strop.config import check_ranges, flatten, from_dict, to_dict
from strop.data.record import Record, first_readable
from strop.data.spec import open_dataset
from strop.errors import ConfigError, DataError, did_you_mean
from strop.files import PathLike, exclusive
from strop.identity import of_dataset
from strop.model.tokenizer import Tokenizer, check_tokenizer
from strop.progress import Progress, no_progress


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """An analysis: its function, its options, and what it cannot do without.

    name   of its files; in the registry, the name there
    needs  parts of a record: `semantic`, `instance`, `labels`, `depth`, `scene`, or alternatives
           such as `scene or labels`
    fits   whether it fits something, and so needs `subject.train`
    least  how many images it needs
    roles  the parts of the model's identity that can change its result
    check  further refusals before any work: raises a `StropError`
    """

    run: Callable[[Subject, Any], Findings]
    options: type[Any]
    name: str = ""
    needs: tuple[str, ...] = ()
    fits: bool = False
    least: int = 1
    roles: tuple[str, ...] = ("codes", "fields", "lengths")
    check: Callable[[Subject, Any], None] = lambda subject, options: None


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options of analyses that resample.

    draws  permutations for the p-values, and resamples for intervals
    seed   random seed
    """

    draws: int = field(default=1000, metadata={"min": 1})
    seed: int = 0

    @property
    def sampling(self) -> dict[str, int]:
        """Both options as `strop.statistics` takes them."""
        return {"draws": self.draws, "seed": self.seed}


def find_analysis(
    name: str, known: Mapping[str, Any] = ANALYSES, what: str = "analysis"
) -> Analysis:
    """The analysis of that name, one of `known`."""
    if name not in known:
        moved = f" It is a script now: research/structure/{name}.py." if name in MOVED else ""
        raise ConfigError(
            f"There is no {what} {name!r}.{moved}",
            f"{did_you_mean(name, known)}Choose one of {', '.join(known)}.",
        )
    return replace(importlib.import_module(ANALYSES[name].module).ANALYSIS, name=name)


def make_options(analysis: Analysis, values: Mapping[str, Any]) -> Any:
    """The analysis's options from `values`, with types, names and ranges checked."""
    options = from_dict(analysis.options, values, analysis.name)
    check_ranges(options, analysis.name, min=0)
    return options


def describe_options(kind: type[Any]) -> dict[str, str]:
    """The text of each option, from the docstrings of its class and the classes below it."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        lines = re.findall(r"^ {4}(\w+)  +(\S.*(?:\n {6,}\S.*)*)", base.__doc__ or "", re.MULTILINE)
        texts |= {name: re.sub(r"\s+", " ", text) for name, text in lines}
    return {each.name: texts.get(each.name, "") for each in fields(kind)}


def check_needs(needs: Sequence[str], record: Record, name: str, data: str) -> None:
    """Refuse data whose records lack a part that the analysis `name` needs."""
    for need in needs:
        if all(getattr(record, part) is None for part in need.split(" or ")):
            parts = [each.name for each in fields(record) if getattr(record, each.name) is not None]
            raise DataError(
                f"{name} needs {need}, which {data} does not have: its records have "
                f"{', '.join(parts)}.",
                "Use scenes:, which has everything, or a dataset with such annotations.",
            )


def check_subject(analysis: Analysis, subject: Subject, options: Any) -> None:
    """Refuse a model or data that the analysis cannot use, before anything is encoded."""
    name = analysis.name
    for each in (subject, subject.train if analysis.fits else None):
        if each is not None and analysis.needs:
            check_needs(analysis.needs, first_readable(each.dataset), name, each.data)
    if analysis.fits and subject.train is None:
        raise DataError(
            f"{name} is fitted on data, and there is none for {subject.data}.",
            "Give it with --train SPEC.",
        )
    if len(subject.dataset) < analysis.least:
        raise DataError(
            f"{name} needs at least {analysis.least} images; {subject.data} has "
            f"{len(subject.dataset)}.",
            "Give more.",
        )
    analysis.check(subject, options)


def run_study(
    tokenizer: Tokenizer,
    study: str | Analysis,
    data: str,
    out: PathLike,
    options: Mapping[str, Any] | None = None,
    *,
    batch: int = 32,
    workers: int = 0,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Run a study, given by its name, on the dataset `data`; return the content of OUT/NAME.json.

    `options` are values for the study's own options. `batch` images are encoded at a time, and
    `workers` processes read them. A result of the same model, data and options is not computed
    again; any other is replaced.
    """
    check_tokenizer(tokenizer)
    analysis = study if isinstance(study, Analysis) else find_analysis(study, STUDIES, "study")
    name, chosen = analysis.name, make_options(analysis, options or {})
    subject = Subject(
        tokenizer=tokenizer,
        dataset=open_dataset(data),
        data=data,
        folder=Path(out),
        batch=batch,
        workers=workers,
        progress=progress,
    )
    check_subject(analysis, subject, chosen)
    header = {
        "study": name,
        "model": tokenizer.identity.codes,
        "data": data,
        "options": to_dict(chosen),
        "identities": identities(subject, analysis, chosen),
    }
    with exclusive(out):
        found = read_findings(out, name, "study")
        if found is not None and not differences(found, header):
            return found
        findings = analysis.run(subject, chosen)
        return write_findings(out, name, "study", {**header, "images": len(subject)}, findings)


def identities(subject: Subject, analysis: Analysis, options: Any) -> dict[str, Any]:
    """The identities of everything that can change the result: the model's by role, the data's.

    An option with `dataset` in its field's metadata is the spec of further data.
    """
    model = subject.tokenizer.identity.as_dict()
    train = {} if subject.train is None else {"train": of_dataset(subject.train.dataset)}
    return {
        "model": {role: model[role] for role in analysis.roles},
        "data": of_dataset(subject.dataset),
        **train,
        **{
            each.name: of_dataset(open_dataset(spec))
            for each in fields(options)
            if each.metadata.get("dataset") and (spec := getattr(options, each.name))
        },
    }


IDENTIFYING = ("seed", "protocol", "options", "identities")
"""The keys of a result that decide whether it can be used again."""


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """In what a stored result is not the wanted one, as words: `model codes`: (found, wanted)."""
    old, new = (
        flatten({key: result[key] for key in IDENTIFYING if key in result})
        for result in (found, wanted)
    )
    changed = [key for key in (*new, *old) if old.get(key) != new.get(key)]
    words = {key: re.sub(r"^(options|identities)\.", "", key) for key in changed}
    return {re.sub("[._]", " ", words[key]): (old.get(key), new.get(key)) for key in changed}
