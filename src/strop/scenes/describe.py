"""Scenes as CLEVR's JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from strop.errors import DataError
from strop.files import PathLike
from strop.scenes import camera as cameras
from strop.scenes import vocabulary as words
from strop.scenes.scene import Scenes

_WORDS = {
    "shape": words.SHAPES,
    "size": words.SIZES,
    "material": words.MATERIALS,
    "color": words.COLORS,
}


def describe(
    scenes: Scenes, size: int | tuple[int, int] = 128, split: str = "new", first: int = 0
) -> list[dict[str, Any]]:
    """Each scene in CLEVR's JSON, its pixel coordinates for images of `size`.

    `first` is the image index of the first scene. Beyond CLEVR's fields, `camera` and `lights`
    hold positions, so that the description says all there is to say.
    """
    height, width = (size, size) if isinstance(size, int) else size
    scenes = scenes.to("cpu", torch.float64)
    pixels = cameras.project(scenes.camera, scenes.centre, height, width)
    directions = cameras.ground_directions()
    described = []
    for row in range(len(scenes)):
        objects = []
        for slot in torch.nonzero(scenes.present[row]).squeeze(-1).tolist():
            column, line, depth = pixels[row, slot].tolist()
            entry: dict[str, Any] = {
                name: table[int(getattr(scenes, name)[row, slot])] for name, table in _WORDS.items()
            }
            entry["3d_coords"] = scenes.centre[row, slot].tolist()
            entry["rotation"] = float(scenes.rotation[row, slot])
            entry["pixel_coords"] = [round(column), round(line), depth]
            objects.append(entry)
        described.append(
            {
                "split": split,
                "image_index": first + row,
                "image_filename": image_name(split, first + row),
                "objects": objects,
                "directions": {name: list(way) for name, way in directions.items()},
                "relationships": relationships([o["3d_coords"] for o in objects], directions),
                "camera": scenes.camera[row].tolist(),
                "lights": dict(zip(words.LIGHTS, scenes.lights[row].tolist(), strict=True)),
            }
        )
    return described


def image_name(split: str, index: int) -> str:
    """CLEVR's file name for an image."""
    return f"CLEVR_{split}_{index:06d}.png"


def relationships(
    coordinates: Sequence[Sequence[float]], directions: Mapping[str, Sequence[float]]
) -> dict[str, list[list[int]]]:
    """CLEVR's `relationships`: entry [name][i] lists the objects that lie `name` of object i."""
    related = {}
    for name in ("behind", "front", "left", "right"):
        way = directions[name]
        along = [sum(a * b for a, b in zip(c, way, strict=True)) for c in coordinates]
        related[name] = [
            [j for j, there in enumerate(along) if there - here > words.RELATION_MARGIN]
            for here in along
        ]
    return related


def read_scenes(
    path: PathLike, size: int | tuple[int, int] = words.REFERENCE_SIZE
) -> tuple[Scenes, list[dict[str, Any]]]:
    """Read a CLEVR scenes file: the scenes as tensors, and as they stand in the file.

    `size` is that of the images. CLEVR leaves out camera and lights: the camera is fitted to
    the objects' coordinates, the lights are put where they are without jitter.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}).",
            "Expected CLEVR's scenes file, such as scenes/CLEVR_val_scenes.json.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is not JSON ({error}).", "The file is damaged; fetch or write it again."
        ) from error
    described = content.get("scenes") if isinstance(content, dict) else None
    if not isinstance(described, list):
        raise DataError(
            f"{path} has no field 'scenes'.", "Expected CLEVR's scenes file: an info and a list."
        )
    return parse(described, size, path), described


def parse(
    described: Sequence[Mapping[str, Any]],
    size: int | tuple[int, int] = words.REFERENCE_SIZE,
    source: object = "the scene description",
) -> Scenes:
    """Scene descriptions as tensors; `source` is named when something is missing."""
    height, width = (size, size) if isinstance(size, int) else size
    count, slots = len(described), words.MAX_OBJECTS
    columns = {name: torch.zeros(count, slots, dtype=torch.int64) for name in _WORDS}
    position = torch.zeros(count, slots, 2, dtype=torch.float64)
    rotation = torch.zeros(count, slots, dtype=torch.float64)
    present = torch.zeros(count, slots, dtype=torch.bool)
    camera = torch.tensor([words.CAMERA] * count, dtype=torch.float64).reshape(-1, 3)
    lights = torch.tensor([words.LIGHT_POSITIONS] * count, dtype=torch.float64).reshape(-1, 3, 3)
    for row, scene in enumerate(described):
        where = f"{source}, scene {row}"
        check_scene(scene, where)
        objects = scene["objects"]
        if len(objects) > slots:
            raise DataError(
                f"{where}: holds {len(objects)} objects.", f"At most {slots} are supported."
            )
        points, pixels = [], []
        for slot, entry in enumerate(objects):
            here = f"{where}, object {slot}"
            for name, table in _WORDS.items():
                word = entry[name]
                if word not in table:
                    raise DataError(
                        f"{here}: field {name!r} is {word!r}.", f"Expected one of {table}."
                    )
                columns[name][row, slot] = table.index(word)
            point = entry["3d_coords"]
            position[row, slot] = torch.tensor(point[:2], dtype=torch.float64)
            rotation[row, slot] = entry["rotation"]
            present[row, slot] = True
            points.append(point)
            pixels.append(entry["pixel_coords"])
        if "camera" in scene:
            camera[row] = torch.tensor(numbers(scene, "camera", 3, where), dtype=torch.float64)
        elif points:
            camera[row] = cameras.fit(
                torch.tensor(points, dtype=torch.float64),
                torch.tensor(pixels, dtype=torch.float64),
                height,
                width,
            )
        if "lights" in scene:
            given = field(scene, "lights", dict, where)
            for index, name in enumerate(words.LIGHTS):
                place = numbers(given, name, 3, f"{where}, lights")
                lights[row, index] = torch.tensor(place, dtype=torch.float64)
    return Scenes(
        **columns,
        position=position,
        rotation=rotation,
        present=present,
        camera=camera,
        lights=lights,
    )


def check_scene(scene: object, where: str) -> None:
    """Refuse what is not a scene in CLEVR's format, naming the field; `where` names the file.

    Which words are known (shapes, colours) is not checked: that is for those who look them up.
    """
    for slot, entry in enumerate(field(scene, "objects", list, where)):
        here = f"{where}, object {slot}"
        for name in _WORDS:
            field(entry, name, str, here)
        numbers(entry, "3d_coords", 3, here)
        numbers(entry, "rotation", None, here)
        numbers(entry, "pixel_coords", 3, here)
    for name in ("directions", "relationships"):
        field(scene, name, Mapping, where)


def field(entry: object, name: str, kind: type, where: str) -> Any:
    """`entry[name]`, which must be of type `kind`."""
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
    """The field's `count` numbers, or its single one where `count` is None."""
    value = field(entry, name, object, where)
    values = [value] if count is None else value
    right = isinstance(values, list | tuple) and len(values) == (count or 1)
    if not right or not all(isinstance(v, int | float) for v in values):
        raise DataError(
            f"{where}: field {name!r} is {value!r:.60}.",
            f"Expected {count or 'a single'} number(s).",
        )
    return [float(v) for v in values]
