"""CLEVR's scene format: what a description must hold to be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.errors import DataError

WORDS = ("shape", "size", "material", "color")


def check_scene(scene: object, where: str) -> None:
    """Refuse what is not a scene in CLEVR's format, naming the field; `where` names the file.

    Which words are known (shapes, colours) is not checked: that is for those who look them up.
    """
    for slot, entry in enumerate(field(scene, "objects", list, where)):
        here = f"{where}, object {slot}"
        for name in WORDS:
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
