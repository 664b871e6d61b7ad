"""What every dataset yields: one record type with optional parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

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


@runtime_checkable
class Dataset(Protocol):
    """A finite, ordered, random-access collection of records."""

    name: str
    classes: tuple[str, ...]  # names of the semantic ids, empty without masks
    label_names: tuple[str, ...]  # names of the entries of `labels`, empty without labels

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record: ...
