"""Probe tables of a bundled model: what a set of codes, their order and rounding are worth.

    python benchmarks/probes.py photos --shared ../shared
    python benchmarks/probes.py scenes

For every dataset, protocol and seed, one probe is trained on each representation. Scores are means
over the seeds, with intervals over the images that are scored; the images of all representations
are drawn together. The result is `results/probes_MODEL.json`. On a GPU, each dataset and seed is a
process of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from common import device, save
from strop.analysis.probes.depth import DepthTask
from strop.analysis.probes.multilabel import MultilabelTask
from strop.analysis.probes.probe import Task, fit_on, measured, required
from strop.analysis.probes.protocol import find_protocol
from strop.analysis.probes.representations import DIFFERENCES, SEQUENCES, representations
from strop.analysis.probes.segmentation import SegmentationTask
from strop.analysis.subject import Subject
from strop.data.spec import open_dataset
from strop.model.checkpoint import load
from strop.statistics import Array, Statistic, bootstrap

SETS = {
    "voc": ("voc:{shared}/data/voc2012?split=val", "voc:{shared}/data/voc2012?split=trainaug"),
    "cityscapes": (
        "cityscapes:{shared}/data/cityscapes?split=val",
        "cityscapes:{shared}/data/cityscapes?split=train",
    ),
    "nyuv2": ("nyuv2:{shared}/data/nyuv2?split=test", "nyuv2:{shared}/data/nyuv2?split=train"),
    "scenes": ("scenes:?n=500&seed=2", "scenes:?n=1000&seed=1"),
}
"""Datasets to score and to train on."""
OF_MODEL = {"photos": ("voc", "cityscapes", "nyuv2"), "scenes": ("scenes",)}
SHARES = (("program-sequence", "latent"), ("latent", "teacher"))


@contextmanager
def each_in(processes: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """`map` in so many processes."""
    if processes == 1:
        yield map
        return
    # Processes that share the cores must not take all of them each.
    share = (torch.set_num_threads, (2,))
    with ProcessPoolExecutor(processes, get_context("spawn"), *share) as pool:
        yield pool.map


class Job(NamedTuple):
    """Probes of one dataset with one seed, in one process."""

    model: str
    data: str
    train: str
    suites: tuple[str, ...]
    protocols: tuple[str, ...]
    seed: int
    workers: int


def run(job: Job) -> dict[str, Any]:
    """Sums of the images to score, by suite, protocol and representation."""
    tokenizer = load(job.model, device=device())
    subject, train = (
        Subject(tokenizer=tokenizer, dataset=open_dataset(spec), data=spec, workers=job.workers)
        for spec in (job.data, job.train)
    )
    subject.train = train
    found: dict[str, Any] = {"images": len(subject), "train_images": len(subject.fitted_on())}
    fitted, scored = representations(train, job.seed), representations(subject, job.seed)
    sums: dict[tuple[str, str], dict[str, Array]] = {}
    for suite in job.suites:
        for protocol in job.protocols:
            task = make_task(suite, protocol, subject)
            sums[suite, protocol] = {
                name: measured(
                    task,
                    fit_on(
                        task,
                        fitted[name],
                        seed=job.seed,
                        device=tokenizer.device,
                        sequence=name in SEQUENCES,
                    ),
                    scored[name],
                )
                for name in fitted
            }
    return {**found, "sums": sums, "codes": tokenizer.identity.codes}


def make_task(suite: str, protocol: str, subject: Subject) -> Task:
    """The task of a suite under a protocol."""
    settings = find_protocol(protocol)
    part = {"segmentation": "semantic", "multilabel": "labels", "depth": "depth"}[suite]
    train, truth = (
        required(getattr(each.records, part)) for each in (subject.fitted_on(), subject)
    )
    locations = subject.fields.shape[1]
    if suite == "segmentation":
        return SegmentationTask(train, truth, len(subject.classes), locations, settings)
    if suite == "multilabel":
        return MultilabelTask(train, truth, settings)
    return DepthTask(train, truth, locations, settings)


def headline(suite: str) -> tuple[str, Statistic, float]:
    """The name, the function of sums and the unit's factor of a suite's first metric."""
    from strop.analysis.probes import scores

    statistics = {
        "segmentation": scores.SEGMENTATION,
        "multilabel": scores.MULTILABEL,
        "depth": scores.DEPTH,
    }[suite]
    name, (statistic, factor) = next(iter(statistics.items()))
    return name, statistic, factor


def summarised(
    statistic: Callable[..., float], seeds: list[tuple[Array, ...]], draws: int
) -> dict[str, Any]:
    """A statistic of sums as its mean over seeds, with an interval over images, and each seed's."""

    def mean(*columns: Array) -> float:
        count = len(columns) // len(seeds)
        parts = [columns[at : at + count] for at in range(0, len(columns), count)]
        return float(np.mean([statistic(*part) for part in parts]))

    found = bootstrap(mean, *(each for seed in seeds for each in seed), draws=draws)
    return {**found._asdict(), "seeds": [statistic(*seed) for seed in seeds]}


def table_of(what: tuple[dict[str, str], str, str, list[dict[str, Any]], int]) -> dict[str, Any]:
    """Scores, differences and shares of one dataset, suite and protocol, over all seeds."""
    specs, suite, protocol, found, draws = what
    name, statistic, factor = headline(suite)
    by_seed = [each["sums"][suite, protocol] for each in found]

    def over(function: Callable[..., float], names: tuple[str, ...]) -> dict[str, Any]:
        return summarised(function, [tuple(s[name] for name in names) for s in by_seed], draws)

    return {
        **specs,
        "suite": suite,
        "protocol": protocol,
        "metric": name,
        "images": found[0]["images"],
        "train_images": found[0]["train_images"],
        "representations": {
            each: over(lambda sums: factor * statistic(sums), (each,)) for each in by_seed[0]
        },
        "differences": {
            f"{a} minus {b}": over(lambda x, y: factor * (statistic(x) - statistic(y)), (a, b))
            for a, b in DIFFERENCES
        },
        "shares": {
            f"{a} of {b}": over(lambda x, y: statistic(x) / statistic(y), (a, b)) for a, b in SHARES
        },
    }


def show(row: dict[str, Any]) -> None:
    """Print one table."""
    title = f"{row['metric']} on {row['data']}, protocol {row['protocol']}"
    table = Table("", "mean", "95 %", "seeds", title=title, box=None)
    for kind in ("representations", "differences", "shares"):
        for name, each in row[kind].items():
            seeds = ", ".join(f"{value:.3g}" for value in each["seeds"])
            bounds = f"{each['low']:.3g} to {each['high']:.3g}"
            table.add_row(name, f"{each['value']:.3g}", bounds, seeds)
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--shared", default="../shared", help="folder with real datasets")
    parser.add_argument("--sets", nargs="+", choices=SETS, help="default: those of the model")
    parser.add_argument("--suites", nargs="+", default=["segmentation"])
    parser.add_argument("--protocols", nargs="+", default=["strong", "paper"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--limit", type=int, help="images of each split, for a trial")
    parser.add_argument("--draws", type=int, default=1000, help="of the intervals")
    parser.add_argument("--jobs", type=int, help="processes; default: all at once on a GPU, else 1")
    parser.add_argument("--workers", type=int, default=2, help="that read images, of each process")
    parser.add_argument("--name", help="of the model in the result; default: MODEL")
    arguments = parser.parse_args()
    began = time.perf_counter()
    suites, protocols = tuple(arguments.suites), tuple(arguments.protocols)
    sets, jobs = [], []
    for name in arguments.sets or OF_MODEL[arguments.model]:
        specs = [spec.format(shared=arguments.shared) for spec in SETS[name]]
        if arguments.limit:
            specs = [f"{spec}&limit={arguments.limit}" for spec in specs]
        for seed in arguments.seeds:
            jobs.append(Job(arguments.model, *specs, suites, protocols, seed, arguments.workers))
        public = (spec.replace(f"{arguments.shared}/data/", "") for spec in specs)
        sets.append(dict(zip(("data", "train"), public, strict=True)))
    processes = arguments.jobs or (len(jobs) if device().type == "cuda" else 1)
    with each_in(processes) as every:
        results = list(every(run, jobs))
        count = len(arguments.seeds)
        tables = [
            (sets[at // count], suite, protocol, results[at : at + count], arguments.draws)
            for at in range(0, len(jobs), count)
            for suite in suites
            for protocol in protocols
        ]
        rows = list(every(table_of, tables))
    for row in rows:
        show(row)
    name = arguments.name or arguments.model
    seconds = time.perf_counter() - began
    about = {"model": name, "codes": results[0]["codes"], "seconds": seconds, "rows": rows}
    save(f"probes_{name}", about)


if __name__ == "__main__":
    main()
