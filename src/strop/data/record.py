"""What every dataset yields: one record type with optional parts, and batches of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from strop.errors import DataError, StropError

VOID = 255
"""The semantic id of pixels that carry no label; they count in no metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One image and what is known about it. All parts are of the image's own height and width.

    image     (3, H, W) uint8
    name      where it came from: unique within its dataset
    semantic  (H, W) int64, class ids, `VOID` where unlabelled
    instance  (H, W) int64, 0 for background, then 1, 2, ... per object
    labels    (C,) bool, which classes the image holds
    depth     (H, W) float32, metres, 0 where unknown
    scene     the scene description in CLEVR's JSON
    """

    image: Tensor
    name: str
    semantic: Tensor | None = None
    instance: Tensor | None = None
    labels: Tensor | None = None
    depth: Tensor | None = None
    scene: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records of one square size, stacked. A part is there if every record of the batch has it.

    images    (B, 3, S, S) uint8
    names     B names
    indices   (B,) int64, where each record stands in its dataset
    semantic  (B, S, S) int64
    instance  (B, S, S) int64
    labels    (B, C) bool
    depth     (B, S, S) float32, metres
    scenes    B scene descriptions
    """

    images: Tensor
    names: tuple[str, ...]
    indices: Tensor
    semantic: Tensor | None = None
    instance: Tensor | None = None
    labels: Tensor | None = None
    depth: Tensor | None = None
    scenes: tuple[Mapping[str, Any], ...] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device`; copies from pinned memory do not wait."""
        return self._each(lambda part: part.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory (needs CUDA)."""
        return self._each(Tensor.pin_memory)

    def _each(self, function: Any) -> Batch:
        names = ("images", "indices", "semantic", "instance", "labels", "depth")
        parts = {name: getattr(self, name) for name in names}
        return replace(self, **{n: function(p) for n, p in parts.items() if p is not None})


@runtime_checkable
class Dataset(Protocol):
    """A finite, ordered, random-access collection of records.

    Four more are used where they are there. `sources()` yields the paths that records are read
    from, or the values that fix them: see `strop.identity.of_dataset`.
    `problems: tuple[str, ...]` names damage that could be read around (a shard cut in the middle).
    `records(indices) -> list[Record]` gives several records at once, for datasets that make them
    faster together. `fit: str | None` is how records were made square, where that has been done for
    good.
    """

    name: str
    classes: tuple[str, ...]  # names of the semantic ids, empty without masks
    label_names: tuple[str, ...]  # names of the entries of `labels`, empty without labels

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record: ...


@runtime_checkable
class BatchDataset(Dataset, Protocol):
    """A dataset that makes whole batches faster than one record at a time.

    Its records are all `size` by `size`, and `batch` must not fail on a single record: there is
    no file behind it that could be broken.
    """

    size: int

    def batch(self, indices: Sequence[int]) -> Batch: ...


def first_readable(dataset: Dataset) -> Record:
    """The first record that is not broken, to see what records have."""
    for index in range(len(dataset)):
        with suppress(StropError, OSError):
            return dataset[index]
    raise DataError(
        f"Not one record of {dataset.name} could be read.", "See `strop data check` for why."
    )


def stack(records: Sequence[Record], indices: Sequence[int]) -> Batch:
    """Stack records of one size, standing at `indices` of their dataset, into a batch."""

    def part(name: str) -> Tensor | None:
        values = [getattr(record, name) for record in records]
        return None if any(value is None for value in values) else torch.stack(values)

    scenes = tuple(record.scene for record in records if record.scene is not None)
    return Batch(
        images=torch.stack([record.image for record in records]),
        names=tuple(record.name for record in records),
        indices=torch.tensor(indices, dtype=torch.int64),
        semantic=part("semantic"),
        instance=part("instance"),
        labels=part("labels"),
        depth=part("depth"),
        scenes=scenes if len(scenes) == len(records) else None,
    )
