"""Packed datasets: memory-mapped rows of bytes that load without decoding.

A packed folder holds `meta.json`, one raw file per part with a row for each record,
`records.jsonl` with the name (and scene) of each record, and `records.i64` with the offsets of its
lines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strop.data.layout import found
from strop.data.record import PARTS, Batch, Record
from strop.errors import DataError, parsing
from strop.files import PathLike, read_json
from strop.listing import expand

KIND, VERSION = "packed", 1
META = "meta.json"
RECORDS = "records.jsonl"
OFFSETS = "records.i64"

TYPES = {
    "image": ("u1", "u1"),
    "semantic": ("u1", "i8"),
    "instance": ("<u2", "i8"),
    "labels": ("u1", "?"),
    "depth": ("<f4", "f4"),
    "valid": ("u1", "?"),
}
"""The type of each part in its file and in a record."""


class PackedDataset:
    """Records of a packed folder, all `size` by `size`. `batch` gathers rows."""

    def __init__(self, path: PathLike) -> None:
        root = expand(path)
        if not (root / META).is_file():
            partial = root.with_name(root.name + ".partial")
            unfinished = f" {partial} is unfinished." if partial.is_dir() else ""
            raise DataError(
                f"{root} is not a packed dataset: it has no {META} ({found(root)}).{unfinished}",
                "Make one with `strop data pack SPEC --out DIR`.",
            )
        meta = read_json(root / META, KIND, VERSION)
        self._root = root
        with parsing(DataError, f"{root / META} is damaged", "Pack the dataset again."):
            self.name = str(meta["name"])
            self.size = int(meta["size"])
            self.classes = tuple(map(str, meta["classes"]))
            self.label_names = tuple(map(str, meta["label_names"]))
            self.fit = str(meta["fit"])
            self._count = int(meta["count"])
            square = (self.size, self.size)
            shapes = {"image": (3, *square), "labels": (len(self.label_names),)}
            self._arrays = {
                part: _open(
                    root / f"{part}.bin", TYPES[part][0], (self._count, *shapes.get(part, square))
                )
                for part in meta["parts"]
            }
            _ = self._arrays["image"]
        self._offsets = _open(root / OFFSETS, "<i8", (self._count + 1,))
        self._records = _open(root / RECORDS, "u1", (-1,))
        if self._offsets[-1] != len(self._records) or (np.diff(self._offsets) < 0).any():
            raise DataError(f"{root / RECORDS} does not fit {root / META}.", "Pack it again.")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Record:
        batch = self.batch([range(self._count)[index]])
        parts = {name: part[0] for name in PARTS if (part := getattr(batch, name)) is not None}
        scene = None if batch.scenes is None else batch.scenes[0]
        return Record(image=batch.images[0], name=batch.names[0], scene=scene, **parts)

    def batch(self, indices: Sequence[int]) -> Batch:
        """The records at `indices`, in that order."""
        rows = np.asarray(indices, dtype=np.int64)
        parts = {
            part: torch.from_numpy(array[rows].astype(TYPES[part][1], copy=False))
            for part, array in self._arrays.items()
        }
        about = [self._about(index) for index in indices]
        scenes = tuple(a["scene"] for a in about if "scene" in a)
        return Batch(
            images=parts.pop("image"),
            names=tuple(a["name"] for a in about),
            indices=torch.from_numpy(rows),
            scenes=scenes if len(scenes) == len(about) else None,
            **parts,
        )

    def names(self) -> list[str]:
        """The name of each record."""
        return [self._about(index)["name"] for index in range(self._count)]

    def sources(self) -> Iterator[Path]:
        """The files of the folder."""
        yield from (self._root / name for name in (META, RECORDS, OFFSETS))
        yield from (self._root / f"{part}.bin" for part in self._arrays)

    def __getstate__(self) -> dict[str, Any]:
        return {"root": str(self._root)}  # a worker opens its own map

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["root"])  # type: ignore[misc]

    def _about(self, index: int) -> dict[str, Any]:
        line = self._records[self._offsets[index] : self._offsets[index + 1]].tobytes()
        where = f"Record {index} of {self._root / RECORDS} is damaged"
        with parsing(DataError, where, "Pack the dataset again."):
            about: dict[str, Any] = json.loads(line)
            _ = about["name"]
        return about


def _open(path: Path, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """A read-only map of `path`, an array of `shape`. -1 is as long as the file is."""
    if not path.is_file():
        raise DataError(f"{path} is missing.", "Pack the dataset again.")
    dtype, size = np.dtype(kind), path.stat().st_size
    expected = size if shape == (-1,) else math.prod(shape) * dtype.itemsize
    if size != expected or not size:
        raise DataError(
            f"{path} has {size} bytes, expected {expected or 'some'}.",
            "It is truncated; pack the dataset again.",
        )
    # A plain array: indexing numpy's memmap class costs more than a small read.
    return np.asarray(np.memmap(path, dtype, "r")).reshape(shape)
