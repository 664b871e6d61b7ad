"""Scenes from CLEVR's JSON. A camera that it does not give is fitted to the objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.errors import DataError
from strop.files import PathLike
from strop.scenes import Scenes
from strop.scenes import camera as cameras
from strop.scenes import vocabulary as words
from strop.scenes.describe import FIELDS, check_scene, field, numbers


def read_scenes(
    path: PathLike, size: int | tuple[int, int] = words.REFERENCE_SIZE
) -> tuple[Scenes, list[dict[str, Any]]]:
    """Read a CLEVR scenes file: the scenes as tensors, and as parsed JSON.

    `size` is the size of the images. If the file has no camera, it is fitted to the coordinates of
    the objects. If it has no lights, they are placed without jitter.
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
    """Convert scene descriptions to tensors; errors name `source`."""
    height, width = (size, size) if isinstance(size, int) else size
    count, slots = len(described), words.MAX_OBJECTS
    columns = {name: torch.zeros(count, slots, dtype=torch.int64) for name in FIELDS}
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
            for name, table in FIELDS.items():
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
            camera[row] = fit_camera(
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


def fit_camera(points: Tensor, pixels: Tensor, height: int, width: int) -> Tensor:
    """Fit the position (3,) of the camera to `points` (M, 3) and their `pixels` (M, 3), in float64.

    CLEVR's JSON has no camera. Its depths are exact and its pixels are rounded, so three objects
    determine the three unknowns. `pixels` are (column, row, depth).
    """
    points, pixels = points.to(torch.float64), pixels.to(torch.float64)
    # Standard errors: a third of a pixel by rounding, and the float32 precision of the depth.
    weight = torch.tensor([3.0, 3.0, 3000.0], dtype=torch.float64)
    camera = torch.tensor(words.CAMERA, dtype=torch.float64)

    def residual(position: Tensor) -> Tensor:
        seen = cameras.project(position[None], points[None], height, width)[0]
        return ((seen - pixels) * weight).reshape(-1)

    damping = 1e-3
    error = residual(camera)
    for _ in range(30):
        columns = [
            (residual(camera + 1e-6 * unit) - error) / 1e-6
            for unit in torch.eye(3, dtype=torch.float64)
        ]
        slope = torch.stack(columns, dim=-1)
        square = slope.T @ slope
        step = torch.linalg.solve(square + damping * torch.diag(square.diagonal()), slope.T @ error)
        trial = residual(camera - step)
        if trial.square().sum() < error.square().sum():
            camera, error, damping = camera - step, trial, damping / 10
            if step.abs().max() < 1e-9:
                break
        else:
            damping *= 10
    return camera
