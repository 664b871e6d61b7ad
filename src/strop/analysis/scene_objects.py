"""The objects of a scene as this package's readers see them: four words and a place each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from strop.data.scenes import vocabulary

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
