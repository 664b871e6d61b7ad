"""The objects of a scene: four attributes and a position each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from strop.scenes import vocabulary

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "shape": vocabulary.SHAPES,
    "color": vocabulary.COLORS,
    "size": vocabulary.SIZES,
    "material": vocabulary.MATERIALS,
}
"""Each attribute of an object, and its words."""


class SceneObject(NamedTuple):
    """An object: its attributes, and its position on the ground, in metres within [-3, 3]."""

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


Objects = tuple[SceneObject, ...]


def objects_of(scene: Mapping[str, Any]) -> Objects:
    """The objects of a scene in CLEVR's JSON, in its order."""
    return tuple(
        SceneObject(*(entry[name] for name in ATTRIBUTES), *entry["3d_coords"][:2])
        for entry in scene["objects"]
    )
