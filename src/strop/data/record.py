"""Records and batches: what every dataset yields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from strop.errors import DataError, StropError, expect

VOID = 255
"""The semantic id of unlabelled pixels. Metrics ignore them."""

PARTS = ("semantic", "instance", "labels", "depth", "valid")
"""The optional tensors of a record, which have the same names in a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One image and its annotations. Masks and depth have the height and width of the image.

    image     (3, H, W) uint8
    name      unique within the dataset
    semantic  (H, W) int64, class ids, `VOID` where unlabelled
    instance  (H, W) int64, 0 for background, then 1, 2, ... per object
    labels    (C,) bool, the classes in the image
    depth     (H, W) float32, metres, 0 where unknown
    valid     (H, W) bool, False in the padding of `fit="pad"`; None if there is no padding
    scene     the scene description in CLEVR's JSON
    """

    image: Tensor
    name: str
    semantic: Tensor | None = None
    instance: Tensor | None = None
    labels: Tensor | None = None
    depth: Tensor | None = None
    valid: Tensor | None = None
    scene: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        image = self.image
        remedy = "Give (3, H, W) uint8; `strop.images.to_tensor` makes it of arrays and floats."
        expect(image, Tensor, f"the image of the record {self.name}", DataError, remedy)
        given = f"{image.dtype} {tuple(image.shape)}"
        # No channels: a loader has put the pixels elsewhere.
        if image.dtype != torch.uint8 or image.shape[:-2] not in ((3,), (0,)):
            raise DataError(f"The image of the record {self.name} is {given}.", remedy)
        for name in PARTS:
            part = getattr(self, name)
            if name != "labels" and part is not None and part.shape != image.shape[1:]:
                raise DataError(
                    f"{name} of the record {self.name} is {tuple(part.shape)}, its image {given}.",
                    "Give both the same height and width.",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records of one square size, stacked. A part that any record lacks is None.

    images    (B, 3, S, S) uint8
    names     B names
    indices   (B,) int64, positions of the records in their dataset
    semantic  (B, S, S) int64
    instance  (B, S, S) int64
    labels    (B, C) bool
    depth     (B, S, S) float32, metres
    valid     (B, S, S) bool, False in padding; None if there is no padding
    scenes    B scene descriptions
    """

    images: Tensor
    names: tuple[str, ...]
    indices: Tensor
    semantic: Tensor | None = None
    instance: Tensor | None = None
    labels: Tensor | None = None
    depth: Tensor | None = None
    valid: Tensor | None = None
    scenes: tuple[Mapping[str, Any], ...] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def to(self, device: torch.device | str) -> Batch:
        """The batch on `device`; copies from pinned memory are asynchronous."""
        return self.map(lambda part: part.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The batch in page-locked memory (needs CUDA)."""
        return self.map(Tensor.pin_memory)

    def take(self, rows: Sequence[int]) -> Batch:
        """The records at `rows` of this batch, in that order."""
        index = torch.tensor(rows, dtype=torch.int64)
        return replace(
            self.map(lambda part: part[index.to(part.device)]),
            names=tuple(self.names[row] for row in rows),
            scenes=None if self.scenes is None else tuple(self.scenes[row] for row in rows),
        )

    def map(self, function: Callable[[Any], Any]) -> Batch:
        """The batch with `function` applied to each of its tensors."""
        parts = {name: getattr(self, name) for name in ("images", "indices", *PARTS)}
        mapped: dict[str, Any] = {n: function(p) for n, p in parts.items() if p is not None}
        return replace(self, **mapped)


Raw = tuple[str | bytes | Tensor, dict[str, Any]]
"""An image that is not decoded yet, as a path or bytes, or its pixels; and other values."""


@runtime_checkable
class Dataset(Protocol):
    """A finite, ordered, random-access collection of records.

    Some optional members are used if present. `sources()` yields the paths that records are read
    from, or the values that determine them: see `strop.identity.of_dataset`.
    `problems: tuple[str, ...]` names damage that did not prevent reading, such as a truncated
    shard. `records(indices) -> list[Record]` returns several records at once, for datasets that
    produce them faster together. `fit: str` is the fit of records that are stored square, `size`
    their size, and `batch(indices) -> Batch` returns them as a batch and does not fail because of a
    single record.

    To encode a dataset without its annotations: `names() -> Sequence[str]` gives the names without
    reading records, `raw(indices, columns) -> list[Raw]` the images as they are stored, with the
    values of other columns. `columns` maps the names of these to Arrow types. With
    `in_main_process = True`, `raw` is not called in worker processes.
    """

    name: str
    classes: tuple[str, ...]  # names of the semantic ids, empty without masks
    label_names: tuple[str, ...]  # names of the entries of `labels`, empty without labels

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record: ...


def check_dataset(value: object) -> Dataset:
    """`value` if it is a dataset; `DataError` otherwise."""
    members = ("name", "classes", "label_names", "__len__", "__getitem__")
    lacking = [member for member in members if not hasattr(value, member)]
    remedy = "Open one with `strop.data.open_dataset`: it takes specs such as folder:/photos. "
    remedy += f"For a dataset of your own, add {', '.join(lacking)}."
    expect(value, Dataset, "a dataset", DataError, remedy)
    return cast("Dataset", value)


def first_readable(dataset: Dataset) -> Record:
    """The first record that can be read. It shows which parts the records have."""
    for index in range(len(dataset)):
        with suppress(StropError, OSError):
            return dataset[index]
    raise DataError(
        f"No record of {dataset.name} could be read.", "Run `strop data check` to see why."
    )


def stack(records: Sequence[Record], indices: Sequence[int]) -> Batch:
    """Stack records of one size, which are at `indices` of their dataset, into a batch."""

    def part(name: str) -> Tensor | None:
        values = [getattr(record, name) for record in records]
        return None if any(value is None for value in values) else torch.stack(values)

    scenes = tuple(record.scene for record in records if record.scene is not None)
    return Batch(
        images=torch.stack([record.image for record in records]),
        names=tuple(record.name for record in records),
        indices=torch.tensor(indices, dtype=torch.int64),
        scenes=scenes if len(scenes) == len(records) else None,
        **{name: part(name) for name in PARTS},
    )


def _collate(records: Sequence[Record], *, collate_fn_map: object = None) -> Batch:
    return stack(records, [-1] * len(records))


# A `DataLoader` of records yields batches, whose indices are unknown: -1.
default_collate_fn_map[Record] = _collate


def concat(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches. A part that any batch lacks is None."""

    def part(name: str) -> Any:
        values = [getattr(batch, name) for batch in batches]
        if any(value is None for value in values):
            return None
        if isinstance(values[0], Tensor):
            return torch.cat(values)
        return tuple(item for value in values for item in value)

    return Batch(**{field.name: part(field.name) for field in fields(Batch)})
