"""Read all records of a dataset once, and report its contents and what is broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from strop.data.record import VOID, Dataset
from strop.data.spec import open_dataset
from strop.errors import StropError
from strop.pool import Pool
from strop.progress import Progress, no_progress

_CHUNK = 32


@dataclass(slots=True)
class CheckReport:
    """What `check_dataset` found.

    sizes     number of images of each (width, height)
    parts     number of records with each part
    labels    number of images with each label, by name
    pixels    share of each class in the labelled pixels, by name
    void      share of unlabelled pixels in all masks
    depth     smallest and largest known depth, in metres
    broken    reason why a record cannot be read, by index
    problems  damage that does not belong to a single record
    """

    name: str
    count: int
    good: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    parts: Counter[str] = field(default_factory=Counter)
    labels: dict[str, int] = field(default_factory=dict)
    pixels: dict[str, float] = field(default_factory=dict)
    void: float | None = None
    depth: tuple[float, float] | None = None
    broken: dict[int, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every record can be read and there are no other problems."""
        return not self.broken and not self.problems

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "name": self.name,
            "count": self.count,
            "good": self.good,
            "sizes": {f"{w}x{h}": number for (w, h), number in self.sizes.most_common()},
            "parts": dict(self.parts),
            "labels": self.labels,
            "pixels": self.pixels,
            "void": self.void,
            "depth": None if self.depth is None else list(self.depth),
            "broken": {str(index): reason for index, reason in self.broken.items()},
            "problems": list(self.problems),
        }


def check_dataset(
    spec: str | Dataset, workers: int = 0, progress: Progress = no_progress
) -> CheckReport:
    """Read every record of a dataset, which is given by its spec or as an object."""
    dataset = open_dataset(spec)
    report = CheckReport(
        dataset.name, len(dataset), problems=tuple(getattr(dataset, "problems", ()))
    )
    labels = torch.zeros(len(dataset.label_names), dtype=torch.int64)
    ids = torch.zeros(VOID + 1, dtype=torch.int64)
    depths: list[float] = []
    ranges = [range(i, min(i + _CHUNK, len(dataset))) for i in range(0, len(dataset), _CHUNK)]
    pool: Pool[range, list[_Summary | str]] = Pool(_Reader(dataset), workers)
    try:
        for indices, found in zip(ranges, pool.map(ranges, 4 * max(1, workers)), strict=True):
            for index, record in zip(indices, found, strict=True):
                if isinstance(record, str):
                    report.broken[index] = record
                    continue
                report.good += 1
                report.sizes[record.size] += 1
                report.parts.update(record.parts)
                labels[record.labels] += 1
                for value, count in record.ids.items():
                    ids[value] += count
                depths += record.depth
            depths = [min(depths), max(depths)] if depths else []
            progress("checking", indices.stop, len(dataset))
    finally:
        pool.close()
    if depths:
        report.depth = depths[0], depths[1]
    if report.parts["labels"]:
        report.labels = dict(zip(dataset.label_names, labels.tolist(), strict=True))
    if report.parts["semantic"]:
        total = max(1, int(ids[:VOID].sum()))
        # Shards do not name their classes; the ids serve as names.
        names = dataset.classes or [str(i) for i in range(VOID) if ids[i]]
        counts = ids[: len(names)] if dataset.classes else ids[:VOID][ids[:VOID] > 0]
        report.pixels = {n: c / total for n, c in zip(names, counts.tolist(), strict=True)}
        report.void = float(ids[VOID] / ids.sum())
    return report


class _Summary(NamedTuple):
    """What the report needs of a record: numbers of labels and pixel counts of class ids."""

    size: tuple[int, int]
    parts: list[str]
    labels: list[int]
    ids: dict[int, int]
    depth: list[float]


class _Reader:
    """The job of a worker: read a range of records. A broken one gives its error."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __call__(self, indices: range) -> list[_Summary | str]:
        return [self._read(index) for index in indices]

    def _read(self, index: int) -> _Summary | str:
        try:
            record = self._dataset[index]
        except (StropError, OSError) as error:
            return str(error)
        height, width = record.image.shape[1:]
        parts = ("semantic", "instance", "labels", "depth", "scene")
        labels = [] if record.labels is None else record.labels.nonzero().flatten().tolist()
        ids: dict[int, int] = {}
        if record.semantic is not None:
            values, counts = record.semantic.unique(return_counts=True)
            ids = dict(zip(values.tolist(), counts.tolist(), strict=True))
        depth: list[float] = []
        if record.depth is not None and (known := record.depth[record.depth > 0]).numel():
            depth = [float(known.min()), float(known.max())]
        return _Summary(
            (width, height),
            [part for part in parts if getattr(record, part) is not None],
            labels,
            ids,
            depth,
        )
