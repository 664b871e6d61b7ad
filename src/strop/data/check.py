"""Read all records of a dataset once, and report its contents and what is broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from strop.data.record import VOID, Dataset
from strop.data.spec import open_dataset
from strop.errors import StropError
from strop.pool import Pool
from strop.progress import Progress, no_progress

_CHUNK = 32
_PARTS = ("semantic", "instance", "labels", "depth", "scene")

_COUNTED = ("sizes", "parts", "labels", "ids")

_Found = tuple[dict[str, Counter[Any]], list[float], dict[int, str]]


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
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        sizes = {f"{w}x{h}": number for (w, h), number in self.sizes.most_common()}
        return {**values, "sizes": sizes}


def check_dataset(
    spec: str | Dataset, workers: int = 0, progress: Progress = no_progress
) -> CheckReport:
    """Read every record of a dataset, which is given by its spec or as an object."""
    dataset = open_dataset(spec)
    report = CheckReport(
        dataset.name, len(dataset), problems=tuple(getattr(dataset, "problems", ()))
    )
    totals: dict[str, Counter[Any]] = {kind: Counter() for kind in _COUNTED}
    depths: list[float] = []
    ranges = [range(i, min(i + _CHUNK, len(dataset))) for i in range(0, len(dataset), _CHUNK)]
    pool: Pool[range, _Found] = Pool(partial(_read, dataset=dataset), workers)
    with pool:
        results = pool.map(ranges, 4 * max(1, workers))
        for indices, (counts, found, broken) in zip(ranges, results, strict=True):
            for kind, counter in counts.items():
                totals[kind].update(counter)
            depths += found
            report.broken |= broken
            progress("checking", indices.stop, len(dataset))
    report.sizes, report.parts, labels, ids = totals.values()
    report.good = report.count - len(report.broken)
    if depths:
        report.depth = min(depths), max(depths)
    if report.parts["labels"]:
        report.labels = {name: labels[i] for i, name in enumerate(dataset.label_names)}
    if report.parts["semantic"]:
        report.void = ids[VOID] / ids.total()
        del ids[VOID]
        # Shards do not name their classes; the ids serve as names.
        names = dict(enumerate(dataset.classes)) or {i: str(i) for i in sorted(ids)}
        report.pixels = {name: ids[i] / max(1, ids.total()) for i, name in names.items()}
    return report


def _read(indices: range, *, dataset: Dataset) -> _Found:
    """The job of a worker: counts over some records, known depths, and errors of broken ones."""
    counts: dict[str, Counter[Any]] = {kind: Counter() for kind in _COUNTED}
    depths: list[float] = []
    broken: dict[int, str] = {}
    for index in indices:
        try:
            record = dataset[index]
        except (StropError, OSError) as error:
            broken[index] = str(error)
            continue
        height, width = record.image.shape[1:]
        counts["sizes"][width, height] += 1
        counts["parts"].update(part for part in _PARTS if getattr(record, part) is not None)
        if record.labels is not None:
            counts["labels"].update(record.labels.nonzero().flatten().tolist())
        if record.semantic is not None:
            values, numbers = record.semantic.unique(return_counts=True)
            counts["ids"].update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
        if record.depth is not None and (known := record.depth[record.depth > 0]).numel():
            depths += [float(known.min()), float(known.max())]
    return counts, depths, broken
