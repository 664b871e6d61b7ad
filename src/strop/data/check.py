"""Read all records of a dataset once, and report its contents and what is broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
    dataset = open_dataset(spec) if isinstance(spec, str) else spec
    report = CheckReport(
        dataset.name, len(dataset), problems=tuple(getattr(dataset, "problems", ()))
    )
    labels = np.zeros(len(dataset.label_names), dtype=np.int64)
    ids = np.zeros(VOID + 1, dtype=np.int64)
    ranges = [range(i, min(i + _CHUNK, len(dataset))) for i in range(0, len(dataset), _CHUNK)]
    pool: Pool[range, _Tally] = Pool(_Reader(dataset), workers)
    try:
        for indices, tally in zip(ranges, pool.map(ranges, 4 * max(1, workers)), strict=True):
            report.good += tally.good
            report.sizes.update(tally.sizes)
            report.parts.update(tally.parts)
            report.broken.update(tally.broken)
            labels += tally.labels
            ids += tally.ids
            if tally.depth is not None:
                low, high = report.depth or tally.depth
                report.depth = min(low, tally.depth[0]), max(high, tally.depth[1])
            progress("checking", indices.stop, len(dataset))
    finally:
        pool.close()
    if report.parts["labels"]:
        report.labels = dict(zip(dataset.label_names, labels.tolist(), strict=True))
    if report.parts["semantic"]:
        # Shards do not name their classes; the ids serve as names.
        names = dataset.classes or [str(i) for i in range(VOID) if ids[i]]
        values = ids[: len(names)] if dataset.classes else ids[:VOID][ids[:VOID] > 0]
        shares = values / max(1, ids[:VOID].sum())
        report.pixels = dict(zip(names, shares.tolist(), strict=True))
        report.void = float(ids[VOID] / ids.sum())
    return report


@dataclass(slots=True)
class _Tally:
    labels: np.ndarray
    ids: np.ndarray
    good: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    parts: Counter[str] = field(default_factory=Counter)
    depth: tuple[float, float] | None = None
    broken: dict[int, str] = field(default_factory=dict)


class _Reader:
    """The job of a worker: read a range of records and count."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __call__(self, indices: range) -> _Tally:
        tally = _Tally(
            np.zeros(len(self._dataset.label_names), dtype=np.int64),
            np.zeros(VOID + 1, dtype=np.int64),
        )
        for index in indices:
            try:
                record = self._dataset[index]
            except (StropError, OSError) as error:
                tally.broken[index] = str(error)
                continue
            tally.good += 1
            height, width = record.image.shape[1:]
            tally.sizes[width, height] += 1
            for part in ("semantic", "instance", "labels", "depth", "scene"):
                tally.parts[part] += getattr(record, part) is not None
            if record.labels is not None:
                tally.labels += record.labels.numpy()
            if record.semantic is not None:
                tally.ids += np.bincount(record.semantic.numpy().ravel(), minlength=VOID + 1)
            if record.depth is not None:
                known = record.depth[record.depth > 0]
                if known.numel():
                    least, most = float(known.min()), float(known.max())
                    low, high = tally.depth or (least, most)
                    tally.depth = min(low, least), max(high, most)
        return tally
