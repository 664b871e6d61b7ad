"""The objects of a scene as this package's readers see them: four words and a place each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from strop.data.scenes import vocabulary
from strop.errors import DataError

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "shape": vocabulary.SHAPES,
    "color": vocabulary.COLORS,
    "size": vocabulary.SIZES,
    "material": vocabulary.MATERIALS,
}
"""Each attribute of an object, and its words."""


class Thing(NamedTuple):
    """An object: its words, and where it stands on the ground, in metres within [-3, 3]."""

    shape: str
    color: str
    size: str
    material: str
    x: float
    y: float

    @property
    def words(self) -> tuple[str, ...]:
        """Shape, color, size and material, in the order of `ATTRIBUTES`."""
        return self[:4]


Things = tuple[Thing, ...]


def things_of(scene: Mapping[str, Any]) -> Things:
    """The objects of a scene in CLEVR's JSON, in its order."""
    return tuple(
        Thing(*(entry[name] for name in ATTRIBUTES), *entry["3d_coords"][:2])
        for entry in scene["objects"]
    )


def things_of_all(scenes: Sequence[Mapping[str, Any]] | None) -> list[Things]:
    """The objects of every scene; `DataError` for data that comes without scenes."""
    if scenes is None:
        raise DataError(
            "This data has no scene descriptions.", "Use scenes:?n=... or clevr:PATH, which have."
        )
    return [things_of(scene) for scene in scenes]
