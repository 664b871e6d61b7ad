"""Probes of cached features: one is trained and scored for each frozen representation.

A task holds the truth, and gives the training loss of a probe's output and its scores. Training is
on the grid of the field, where the truth of a location is the mean over its pixels: for classes
this equals the loss of logits repeated over the pixels. Scores are at the resolution of the truth,
with outputs upsampled bilinearly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from strop.analysis.findings import Findings
from strop.analysis.frame import Analysis
from strop.analysis.metric_info import METRICS
from strop.analysis.panels import Panel, lines, picture_grid, show_ids
from strop.analysis.probes.fitting import LEAST_IMAGES, fit_probe
from strop.analysis.probes.heads import Probe, Representation, make_probe
from strop.analysis.probes.protocol import Protocol as ProbeProtocol
from strop.analysis.probes.protocol import find_protocol
from strop.analysis.probes.representations import (
    DIFFERENCES,
    SEQUENCES,
    code_vectors,
    interpreted,
    representations,
)
from strop.analysis.probes.scores import Scores, Statistics, difference
from strop.analysis.regions import NOBODY
from strop.analysis.subject import Subject
from strop.data.record import VOID, Dataset
from strop.device import fits_on
from strop.errors import DataError
from strop.figures import HEAT, Axes, Figure, new_figure, show_image
from strop.statistics import Array, Interval

_SCALARS, _IMAGES = 1 << 25, 256  # the most that are upsampled, and scored, at a time
_SHOWN = ("teacher", "latent", "program")  # predictions in the figure
_ROWS = 5


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of probes.

    protocol  `paper` or `strong`: see `strop.analysis.probes.protocol`
    seed      of probes, intervals and the order of shuffled programs
    """

    protocol: str = "paper"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class LengthOptions(Options):
    """Options of probes that also read programs of forced lengths.

    probe_lengths  forced lengths at which interpreted fields and programs are probed as well
    """

    probe_lengths: tuple[int, ...] = ()


class Task(Protocol):
    """A task on cached features. `rows` are images of the training set, or of the scored one."""

    outputs: int
    locations: int  # 1 if the probe is pooled
    protocol: ProbeProtocol
    truth: Tensor  # (n, ...) of the images to score
    statistics: Statistics  # the headline metric first
    scores: Scores

    def loss(self, output: Tensor, rows: Tensor) -> Tensor:
        """Mean loss of a probe's output (b, S, outputs) for training images."""

    def measure(self, output: Tensor, rows: slice) -> Array:
        """Sums of images to score, one row each, as `statistics` take them."""


class MapTask(Task, Protocol):
    """A task whose truth is a map of every image."""

    def predict(self, output: Tensor) -> Tensor:
        """A probe's output (b, S, outputs) to maps (b, H, H)."""


def probe_analysis(
    part: str,
    make: Callable[[Tensor, Tensor, Subject, ProbeProtocol], Any],
    *,
    names: str = "",
    maps: bool = False,
) -> Analysis:
    """The analysis that probes every representation for a part of the records.

    make   a `Task` from that part of both sets, the subject and the protocol
    names  the attribute of datasets with the names of the classes, if there are any
    maps   whether tasks are a `MapTask`: their probes are drawn, and trained at forced lengths too
    """

    def check(subject: Subject, options: Options) -> None:
        find_protocol(options.protocol)
        train = subject if subject.train is None else subject.train
        check_classes(train.dataset, subject.dataset, names)

    def run(subject: Subject, options: Options) -> Findings:
        protocol = find_protocol(options.protocol)
        train, truth = (
            required(getattr(each.records, part)) for each in (subject.fitted_on(), subject)
        )
        task = make(train, truth, subject, protocol)
        numbers, probes = probe_representations(subject, task, options.seed)
        numbers["hyperparameters"] = asdict(protocol)
        if names:
            numbers["class_names"] = list(getattr(subject, names))
        figures: dict[str, Figure] = {}
        if isinstance(options, LengthOptions):
            numbers["lengths"], figures = probe_lengths(subject, task, options)
            figures["predictions"] = show_predictions(subject, task, probes, options.seed)
        return Findings(numbers=numbers, figures=figures)

    kind = LengthOptions if maps else Options
    return Analysis(run=run, options=kind, needs=(part,), fits=True, check=check)


def run_probe(
    task: Task,
    train: Representation,
    scored: Representation,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    sequence: bool = False,
) -> tuple[dict[str, Any], Probe]:
    """Train a probe on one set's representation and score it on the other's."""
    probe = fit_on(task, train, seed=seed, device=device, sequence=sequence)
    scores = task.scores(measured(task, probe, scored), seed=seed)
    return {**scores, "weight_decay": probe.weight_decay}, probe


def fit_on(
    task: Task,
    train: Representation,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    sequence: bool = False,
) -> Probe:
    """Train a probe on a representation of the training set."""
    device = torch.device(device)
    train = train.to(device) if fits_on(device, train.nbytes) else train

    def loss(probe: Probe, rows: Tensor) -> Tensor:
        return task.loss(probe(train[rows].to(device)), rows)

    make = partial(
        make_probe,
        train,
        task.outputs,
        locations=task.locations,
        sequence=sequence,
        pooling=task.protocol.pooling,
    )
    return fit_probe(make, loss, len(train), task.protocol, seed=seed, device=device)


@torch.no_grad()
def measured(task: Task, probe: Probe, scored: Representation) -> Array:
    """The sums of a trained probe on the images to score."""
    device = next(probe.parameters()).device
    chunk = max(1, min(_IMAGES, _SCALARS // (task.outputs * task.truth[0].numel())))
    chunks = [slice(start, start + chunk) for start in range(0, len(scored), chunk)]
    return np.concatenate([task.measure(probe(scored[rows].to(device)), rows) for rows in chunks])


def probe_representations(
    subject: Subject, task: Task, seed: int
) -> tuple[dict[str, Any], dict[str, Probe]]:
    """Probe every representation: scores and their differences, and the trained probes by name."""
    train = representations(subject.fitted_on(), seed)
    scored = representations(subject, seed)
    scores: dict[str, Any] = {}
    probes: dict[str, Probe] = {}
    sums: dict[str, Array] = {}
    for done, name in enumerate(train):
        subject.progress("probes", done, len(train))
        probes[name] = probe = fit_on(
            task,
            train[name],
            seed=seed,
            device=subject.tokenizer.device,
            sequence=name in SEQUENCES,
        )
        sums[name] = measured(task, probe, scored[name])
        scores[name] = {**task.scores(sums[name], seed=seed), "weight_decay": probe.weight_decay}
    subject.progress("probes", len(train), len(train))
    headline = dict(list(task.statistics.items())[:1])
    numbers = {
        "train_images": len(subject.fitted_on()),
        "images": len(subject),
        "representations": scores,
        "differences": {
            f"{first} minus {second}": difference(headline, sums[first], sums[second], seed=seed)
            for first, second in DIFFERENCES
        },
    }
    return numbers, probes


def probe_lengths(
    subject: Subject, task: Task, options: LengthOptions
) -> tuple[list[dict[str, Any]], dict[str, Figure]]:
    """Probe `latent` and `program` at each forced length, with probes trained at that length."""
    tokenizer, rows = subject.tokenizer, []
    readers: dict[str, Callable[..., Representation]] = {
        "latent": interpreted,
        "program": code_vectors,
    }
    for done, length in enumerate(options.probe_lengths):
        subject.progress("probes at forced lengths", done, len(options.probe_lengths))
        pair = (subject.fitted_on(), subject)
        programs = [each.program.with_lengths(length) for each in pair]
        row: dict[str, Any] = {"length": length}
        for name, read in readers.items():
            train, scored = (read(tokenizer, program) for program in programs)
            row[name], _ = run_probe(
                task, train, scored, seed=options.seed, device=tokenizer.device
            )
        rows.append(row)
    if not rows:
        return rows, {}

    def interval(found: dict[str, Any]) -> Interval:
        return Interval(found["values"][metric], *found["intervals"][metric])

    metric, figure = next(iter(task.statistics)), new_figure(5, 3.5)
    series = {name: [interval(row[name]) for row in rows] for name in readers}
    lines(figure, "length", METRICS[metric].heading, options.probe_lengths, series)
    return rows, {"lengths": figure}


@torch.no_grad()
def show_predictions(
    subject: Subject, task: MapTask, probes: dict[str, Probe], seed: int
) -> Figure:
    """Draw predictions for the first images with more than one class or depth, or the first."""
    truth = task.truth
    varied = (row for row, mask in enumerate(truth) if len(mask[mask != VOID].unique()) > 1)
    rows = torch.tensor(list(islice(varied, _ROWS)) or range(min(_ROWS, len(truth))))
    known, device = representations(subject, seed), subject.tokenizer.device
    predicted = {
        name: task.predict(probes[name](known[name][rows].to(device))).cpu() for name in _SHOWN
    }
    columns = {"truth": truth[rows], **predicted}
    table: list[list[Panel]] = []
    for number, row in enumerate(rows):
        deepest = float(truth[row].max())
        maps = [
            partial(show_map, values=each[number], title=name, deepest=deepest)
            for name, each in columns.items()
        ]
        table.append([partial(show_image, image=subject.records.images[row]), *maps])
    return picture_grid(table)


def show_map(axes: Axes, values: Tensor, title: str, deepest: float) -> None:
    """A map (H, H) of class ids, or of depths up to `deepest` if they are floats."""
    if values.is_floating_point():
        axes.imshow(values.cpu().numpy(), cmap=HEAT, vmin=0, vmax=deepest)
        axes.set_axis_off()
        axes.set_title(title, size=9)
    else:
        show_ids(axes, torch.where(values == VOID, NOBODY, values.long()), title)


def check_classes(train: Dataset, measured: Dataset, names: str) -> None:
    """Refuse two datasets with different classes (`names` is their attribute), and few images."""
    if names and getattr(train, names) != getattr(measured, names):
        raise DataError(
            f"{train.name} and {measured.name} have different {names.replace('_', ' ')}.",
            "Train and score a probe on two splits of one dataset.",
        )
    if len(train) < LEAST_IMAGES:
        raise DataError(
            f"{train.name} has {len(train)} images.",
            f"A probe is trained on at least {LEAST_IMAGES}.",
        )


def required(part: Tensor | None) -> Tensor:
    """A part of the records, which `check_needs` found in the first record only."""
    if part is None:
        raise DataError(
            "Some records lack the annotations of this analysis.",
            "Run `strop data check` on the data.",
        )
    return part


def upsample(output: Tensor, size: Sequence[int]) -> Tensor:
    """Output (b, S, C) on a square grid to (b, C, H, W), bilinearly."""
    maps = output.float().transpose(1, 2).unflatten(-1, (math.isqrt(output.shape[1]), -1))
    return F.interpolate(maps, tuple(size), mode="bilinear", align_corners=False)
