"""Datasets that are lists of files: finding the files, and reading their records.

Errors name what was expected and what was found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from strop.data.decode import labels_of, read_parts
from strop.data.record import Raw, Record
from strop.errors import DataError, parsing
from strop.files import PathLike
from strop.listing import expand, list_files
from strop.optional import require

Item = TypeVar("Item")


def found(folder: Path, limit: int = 8) -> str:
    """The contents of `folder`, shortened for an error message."""
    if not folder.is_dir():
        return "a file" if folder.exists() else "nothing there"
    names = sorted(
        entry.name + ("/" if entry.is_dir() else "")
        for entry in os.scandir(folder)
        if not entry.name.startswith(".")
    )
    if not names:
        return "an empty folder"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


@dataclass(frozen=True, slots=True)
class Layout:
    """The root folder of a dataset, and the name of its kind for error messages."""

    root: Path
    kind: str

    @staticmethod
    def open(path: PathLike, kind: str, tree: str, *inner: str) -> Layout:
        """The folder `path`, or the first of `inner` that exists below it.

        An error shows `tree`, which is what a `kind` dataset consists of.
        """
        root = expand(path)
        if not root.is_dir():
            what = "is a file, not a folder" if root.exists() else "does not exist"
            raise DataError(f"{root} {what}.", f"A {kind} dataset is a folder with {tree}.")
        return Layout(next((root / name for name in inner if (root / name).is_dir()), root), kind)

    def folder(self, *candidates: str) -> str:
        """The first of `candidates` that is a folder, or an error that names them all."""
        for candidate in candidates:
            if (self.root / candidate).is_dir():
                return candidate
        expected = " or ".join(f"{candidate}/" for candidate in candidates)
        raise DataError(
            f"{self.root} is not laid out as {self.kind}: expected {expected}, "
            f"found {found(self.root)}.",
            "Point the spec at the root folder of the dataset; docs/data.md shows the tree.",
        )

    def images(self, folder: str, expected: str) -> list[str]:
        """The images below `folder`, as sorted paths relative to it; at least one."""
        return self.require(list_files(self.root / folder), folder, expected)

    def lines(self, file: str) -> list[str]:
        """The lines of a list in `file`, stripped, without blank ones; at least one."""
        path = self.root / file
        if not path.is_file():
            raise DataError(
                f"The list {path} is missing; {path.parent} holds {found(path.parent)}.",
                f"Expected {path.name} there, one name per line.",
            )
        return self.require(read_lines(path), file, "one name per line")

    def require(self, items: list[Item], folder: str, expected: str) -> list[Item]:
        """`items` unless there are none; then `DataError` with the contents of `folder`."""
        if not items:
            where = self.root / folder
            raise DataError(
                f"This {self.kind} split is empty: {where} holds {found(where)}.",
                f"Expected {expected}.",
            )
        return items


def split_names(text: str) -> tuple[str, ...]:
    """Names that semicolons separate, over several lines."""
    return tuple(" ".join(name.split()) for name in text.split(";"))


def first_file(root: Path, candidates: Sequence[str]) -> Path | None:
    """The first of `candidates` that is a file under `root`."""
    return next((root / name for name in candidates if (root / name).is_file()), None)


def read_lines(path: Path) -> list[str]:
    """The lines of a list file, stripped, without blank ones."""
    with parsing(DataError, f"Cannot read the list {path}", "Expected a text file."):
        text = path.read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


def load_json(path: Path, fields: Sequence[str]) -> dict[str, Any]:
    """Read a JSON object and check that it has `fields`."""
    with parsing(DataError, f"Cannot read {path}", "Check the path."):
        content = path.read_bytes()
    with parsing(DataError, f"{path} is not valid JSON", "Download it again."):
        payload = json.loads(content)
    if not isinstance(payload, dict):
        raise DataError(
            f"{path} holds a {type(payload).__name__}, not an object.", "Download it again."
        )
    for field in fields:
        if field not in payload:
            raise DataError(
                f"{path} has no field {field!r} (it has {', '.join(list(payload)[:8])}).",
                "Check that this is the right file and that it is complete.",
            )
    return payload


def load_mat(path: Path, **options: Any) -> dict[str, Any]:
    """The variables of a MATLAB file, by SciPy."""
    loadmat = require("scipy.io", DataError).loadmat
    with parsing(DataError, f"{path} cannot be read", "Download it again."):
        content: dict[str, Any] = loadmat(path, **options)
    return content


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one record, as paths relative to the root of the dataset."""

    name: str
    image: str
    semantic: str | None = None
    instance: str | None = None
    depth: str | None = None
    labels: tuple[int, ...] | None = None
    scene: Mapping[str, Any] | None = None


def paired(images: str, masks: str, files: Iterable[str]) -> list[Files]:
    """Records of the `files` in the folder `images`, with PNG masks of that name in `masks`."""
    stems = ((file, file.rpartition(".")[0]) for file in files)
    return [Files(stem, f"{images}/{file}", semantic=f"{masks}/{stem}.png") for file, stem in stems]


class FileDataset:
    """Records read from files.

    `table` maps the raw ids of a mask to class ids. `label_names` are by default `classes`. Labels
    are those that `find_labels` returns, or those in `Files.labels`, or the classes in the mask.
    """

    def __init__(
        self,
        *,
        name: str,
        root: Path,
        items: Sequence[Files],
        classes: Sequence[str] = (),
        label_names: Sequence[str] | None = None,
        table: np.ndarray | None = None,
        find_labels: Callable[[Files], tuple[int, ...]] | None = None,
    ) -> None:
        self.name = name
        self.classes = tuple(classes)
        self.label_names = self.classes if label_names is None else tuple(label_names)
        self._root = str(root)
        self.items = items
        self._table = table
        self._find_labels = find_labels

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Record:
        item = self.items[index]
        image, semantic, instance, depth = (
            None if file is None else (self._path(file), self._path(file))
            for file in (item.image, item.semantic, item.instance, item.depth)
        )
        assert image is not None
        parts = read_parts(image, semantic, instance, depth, table=self._table)
        labels = None
        present = item.labels if self._find_labels is None else self._find_labels(item)
        if present is not None:
            labels = torch.zeros(len(self.label_names), dtype=torch.bool)
            labels[list(present)] = True
        elif "semantic" in parts:
            labels = labels_of(parts["semantic"], self.classes, self.label_names)
        return Record(name=item.name, labels=labels, scene=item.scene, **parts)

    def names(self) -> list[str]:
        """The name of each record."""
        return [item.name for item in self.items]

    def raw(self, indices: Sequence[int], columns: Sequence[str] = ()) -> list[Raw]:
        """The paths of the images."""
        return [(self._path(self.items[index].image), {}) for index in indices]

    def sources(self) -> Iterator[Path | str]:
        """The files of all records, with the names and labels listed for them."""
        for item in self.items:
            yield f"{item.name} {item.labels}"
            for file in (item.image, item.semantic, item.instance, item.depth):
                if file is not None:
                    yield Path(self._path(file))

    def _path(self, relative: str) -> str:
        return f"{self._root}/{relative}"
