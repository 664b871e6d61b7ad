"""A subset of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from strop.data.record import Batch, Dataset, Raw, Record
from strop.identity import of_dataset

_SHARED = {"columns", "fit", "in_main_process", "problems", "size"}
_INDEXED = {"batch", "names", "raw"}


class Subset:
    """The records of `dataset` at `indices`, in that order."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.name = dataset.name
        self.classes = dataset.classes
        self.label_names = dataset.label_names
        self._dataset: Any = dataset
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def sources(self) -> Iterator[Path | str]:
        """The sources of the dataset, and which of its records are in the subset."""
        yield str(self._indices if isinstance(self._indices, range) else list(self._indices))
        yield of_dataset(self._dataset)

    def __getitem__(self, index: int) -> Record:
        return self._dataset[self._indices[index]]

    def __getattr__(self, name: str) -> Any:
        """The optional members of the dataset: the subset has those that the dataset has."""
        if name not in _SHARED | _INDEXED:
            raise AttributeError(name)
        member = getattr(self._dataset, name)
        return member if name in _SHARED else getattr(self, f"_{name}")

    def _names(self) -> list[str]:
        names = self._dataset.names()
        return [names[index] for index in self._indices]

    def _raw(self, indices: Sequence[int], columns: Sequence[str] = ()) -> list[Raw]:
        rows: list[Raw] = self._dataset.raw([self._indices[index] for index in indices], columns)
        return rows

    def _batch(self, indices: Sequence[int]) -> Batch:
        batch = self._dataset.batch([self._indices[index] for index in indices])
        return replace(batch, indices=torch.tensor(indices, dtype=torch.int64))
