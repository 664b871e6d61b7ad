"""Scenes to CLEVR's JSON, and checks of such JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from strop.errors import DataError
from strop.scenes import camera as cameras
from strop.scenes import vocabulary as words
from strop.scenes.scene import Scenes

FIELDS = {
    "shape": words.SHAPES,
    "size": words.SIZES,
    "material": words.MATERIALS,
    "color": words.COLORS,
}


def describe(
    scenes: Scenes,
    size: int | tuple[int, int] = 128,
    split: str = "new",
    numbers: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Each scene in CLEVR's JSON, with pixel coordinates for images of `size`.

    `numbers` are the indices of the images, by default 0, 1, ... In addition to CLEVR's fields,
    `camera` and `lights` hold positions, so that the description is complete.
    """
    height, width = (size, size) if isinstance(size, int) else size
    scenes = scenes.to("cpu", torch.float64)
    pixels = cameras.project(scenes.camera, scenes.centre, height, width)
    directions = cameras.ground_directions()
    described = []
    for row, number in enumerate(range(len(scenes)) if numbers is None else numbers):
        objects = []
        for slot in torch.nonzero(scenes.present[row]).squeeze(-1).tolist():
            column, line, depth = pixels[row, slot].tolist()
            entry: dict[str, Any] = {
                name: table[int(getattr(scenes, name)[row, slot])] for name, table in FIELDS.items()
            }
            entry["3d_coords"] = scenes.centre[row, slot].tolist()
            entry["rotation"] = float(scenes.rotation[row, slot])
            entry["pixel_coords"] = [round(column), round(line), depth]
            objects.append(entry)
        described.append(
            {
                "split": split,
                "image_index": number,
                "image_filename": image_name(split, number),
                "objects": objects,
                "directions": {name: list(way) for name, way in directions.items()},
                "relationships": relationships([o["3d_coords"] for o in objects], directions),
                "camera": scenes.camera[row].tolist(),
                "lights": dict(zip(words.LIGHTS, scenes.lights[row].tolist(), strict=True)),
            }
        )
    return described


def image_name(split: str, index: int) -> str:
    """The file name of an image in CLEVR."""
    return f"CLEVR_{split}_{index:06d}.png"


def relationships(
    coordinates: Sequence[Sequence[float]], directions: Mapping[str, Sequence[float]]
) -> dict[str, list[list[int]]]:
    """CLEVR's `relationships`: entry [name][i] lists the objects that are `name` of object i."""
    related = {}
    for name in ("behind", "front", "left", "right"):
        way = directions[name]
        along = [sum(a * b for a, b in zip(c, way, strict=True)) for c in coordinates]
        related[name] = [
            [j for j, there in enumerate(along) if there - here > words.RELATION_MARGIN]
            for here in along
        ]
    return related


def check_scene(scene: object, where: str) -> None:
    """Raise `DataError` if `scene` is not in CLEVR's format; `where` names the file.

    The values of shapes, sizes, materials and colours are not checked here.
    """
    for slot, entry in enumerate(field(scene, "objects", list, where)):
        here = f"{where}, object {slot}"
        for name in FIELDS:
            field(entry, name, str, here)
        numbers(entry, "3d_coords", 3, here)
        numbers(entry, "rotation", None, here)
        numbers(entry, "pixel_coords", 3, here)
    for name in ("directions", "relationships"):
        field(scene, name, Mapping, where)


def field(entry: object, name: str, kind: type, where: str) -> Any:
    """`entry[name]`, which must have the type `kind`."""
    if not isinstance(entry, Mapping):
        raise DataError(
            f"{where}: a {type(entry).__name__}, not an object with a field {name!r}.",
            "Expected CLEVR's scene format.",
        )
    if name not in entry:
        raise DataError(f"{where}: field {name!r} is missing.", "Expected CLEVR's scene format.")
    if not isinstance(entry[name], kind):
        raise DataError(
            f"{where}: field {name!r} is a {type(entry[name]).__name__}.",
            f"Expected a {kind.__name__}, as in CLEVR's scene format.",
        )
    return entry[name]


def numbers(entry: object, name: str, count: int | None, where: str) -> list[float]:
    """The `count` numbers of a field, or its single number if `count` is None."""
    value = field(entry, name, object, where)
    values = [value] if count is None else value
    right = isinstance(values, list | tuple) and len(values) == (count or 1)
    if not right or not all(isinstance(v, int | float) for v in values):
        raise DataError(
            f"{where}: field {name!r} is {value!r:.60}.",
            f"Expected {count or 'a single'} number(s).",
        )
    return [float(v) for v in values]
