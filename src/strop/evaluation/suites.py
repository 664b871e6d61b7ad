"""The suites by name, what each needs, and the run that works through them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from strop.config import to_dict
from strop.errors import ConfigError, DataError, StropError, did_you_mean
from strop.evaluation import alignment, pixels, rate
from strop.evaluation.baselines.fit import check_enough
from strop.evaluation.context import Context, Report
from strop.evaluation.parts import Part, Run, Source, open_sources
from strop.evaluation.probes import suites as probes
from strop.evaluation.probes.checks import check_datasets
from strop.evaluation.probes.protocol import find_protocol
from strop.files import PathLike
from strop.model.tokenizer import Tokenizer
from strop.program import check_range


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
) -> list[Part]:
    """Run suites on datasets and return all parts, those of an earlier run included.

    data    specs of what is measured
    train   specs of what probes and baselines are fitted on, one for each of `data`, or none
    suites  names, or "all" for those that model and data allow
    probe_lengths  forced lengths at which segmentation and depth are probed as well
    lpips   the file of LPIPS weights, if there is one
    name    what the model is called in reports
    note    told why a suite of "all" was left out

    Whatever can be refused is refused before any work.
    """
    sources = open_sources(data, train)
    for length in probe_lengths:
        check_range(torch.tensor(length), 1, tokenizer.config.max_length, "length")
    plan = list(_plan(tokenizer, sources, suites, protocol, note))
    model = {
        "name": name,
        "fingerprint": tokenizer.identity.codes,
        "config": to_dict(tokenizer.config),
        "about": tokenizer.about,
    }
    settings: dict[str, dict[str, Any]] = {
        suite: {"seed": seed, "protocol": protocol} for suite in SUITES
    }
    settings["pixels"]["lpips_weights"] = lpips is not None
    for suite in ("segmentation", "depth"):
        settings[suite]["probe_lengths"] = list(probe_lengths)
    run = Run(folder=Path(out), model=model, settings=settings)
    for source, suite in plan:
        run.finished(source, suite)  # one of another model is told now
    _ = tokenizer.teacher  # so is one that cannot be loaded
    parts = []
    for source in sources:
        context = Context(
            tokenizer=tokenizer,
            data=source.data,
            train_data=source.train,
            folder=run.folder / source.name,
            protocol=protocol,
            probe_lengths=tuple(probe_lengths),
            lpips=None if lpips is None else Path(lpips),
            seed=seed,
            batch=batch,
            workers=workers,
            report=report,
        )
        for suite in (suite for each, suite in plan if each is source):
            part = run.finished(source, suite)
            if part is None:
                began = time.perf_counter()
                result = SUITES[suite].run(context)
                taken = time.perf_counter() - began
                part = run.finish(source, suite, result, taken, tokenizer.device)
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


def check_data(suite: str, source: Source) -> None:
    """Refuse data that a suite cannot be asked on."""
    part = SUITES[suite].part
    if suite == "alignment" and source.train is not None:
        check_enough(len(source.train))
    if part is None:
        return
    if source.train is None:
        raise DataError(
            f"The suite {suite} trains probes, and there is nothing to train them on for "
            f"{source.spec}.",
            "Give it with --train SPEC.",
        )
    check_datasets(source.train, source.data, part)


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
                check_data(name, source)
            except StropError as error:
                if name in names:
                    raise
                if note is not None:
                    note(f"{name} is left out. {error}")
                continue
            yield source, name
