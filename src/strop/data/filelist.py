"""A dataset defined by a list of files. Most layouts use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strop.data.decode import labels_of, read_parts
from strop.data.record import Raw, Record


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
