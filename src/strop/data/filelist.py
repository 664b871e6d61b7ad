"""The dataset behind most layouts: a list of which files make up each record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strop.data.decode import (
    check_size,
    labels_of,
    look_up,
    match_depth,
    read_depth,
    read_ids,
    read_picture,
)
from strop.data.record import Record


@dataclass(frozen=True, slots=True)
class Files:
    """Where the parts of one record lie, as paths relative to the dataset's root."""

    name: str
    image: str
    semantic: str | None = None
    instance: str | None = None
    depth: str | None = None
    labels: tuple[int, ...] | None = None
    scene: Mapping[str, Any] | None = None


class FileDataset:
    """Records read from files.

    `table` maps a mask's raw ids to class ids. Labels are those listed in `Files.labels`, or what
    `find_labels` says, or, with `label_ids`, the classes found in the mask.
    """

    def __init__(
        self,
        *,
        name: str,
        root: Path,
        items: Sequence[Files],
        classes: Sequence[str] = (),
        label_names: Sequence[str] = (),
        table: np.ndarray | None = None,
        label_ids: Sequence[int] | None = None,
        find_labels: Callable[[Files], tuple[int, ...]] | None = None,
    ) -> None:
        self.name = name
        self.classes = tuple(classes)
        self.label_names = tuple(label_names)
        self._root = str(root)
        self.items = items
        self._table = table
        self._label_ids = None if label_ids is None else torch.tensor(list(label_ids))
        self._find_labels = find_labels

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Record:
        item = self.items[index]
        image = read_picture(self._path(item.image), item.image)
        semantic = instance = depth = None
        if item.semantic is not None and self._table is not None:
            path = self._path(item.semantic)
            semantic = look_up(read_ids(path, path), self._table, path)
            check_size(semantic, image, path, "mask")
        if item.instance is not None:
            path = self._path(item.instance)
            instance = torch.from_numpy(read_ids(path, path).astype(np.int64))
            check_size(instance, image, path, "mask")
        if item.depth is not None:
            path = self._path(item.depth)
            depth = match_depth(read_depth(path, path), image, path)
        labels = None
        present = item.labels if self._find_labels is None else self._find_labels(item)
        if present is not None:
            labels = torch.zeros(len(self.label_names), dtype=torch.bool)
            labels[list(present)] = True
        elif self._label_ids is not None and semantic is not None:
            labels = labels_of(semantic, self._label_ids)
        return Record(
            image=image,
            name=item.name,
            semantic=semantic,
            instance=instance,
            labels=labels,
            depth=depth,
            scene=item.scene,
        )

    def sources(self) -> Iterator[Path | str]:
        """The files of all records, and what is listed about them."""
        for item in self.items:
            yield f"{item.name} {item.labels}"
            for file in (item.image, item.semantic, item.instance, item.depth):
                if file is not None:
                    yield Path(self._path(file))

    def _path(self, relative: str) -> str:
        return f"{self._root}/{relative}"
