"""A subset of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from strop.data.record import Batch, BatchDataset, Dataset, Raw, Record
from strop.identity import of_dataset


class Subset:
    """The records of `dataset` at `indices`, in that order."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.name = dataset.name
        self.classes = dataset.classes
        self.label_names = dataset.label_names
        self.problems: tuple[str, ...] = tuple(getattr(dataset, "problems", ()))
        self._dataset = dataset
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
        """The optional members of the dataset that depend on no index, and those that do."""
        if name not in {"columns", "in_main_process", "names", "raw"}:
            raise AttributeError(name)
        member = getattr(self._dataset, name)  # the subset has it if the dataset does
        return {"names": self._names, "raw": self._raw}.get(name, member)

    def _names(self) -> list[str]:
        names = self._dataset.names()  # type: ignore[attr-defined]
        return [names[index] for index in self._indices]

    def _raw(self, indices: Sequence[int], columns: Sequence[str] = ()) -> list[Raw]:
        inner = [self._indices[index] for index in indices]
        return self._dataset.raw(inner, columns)  # type: ignore[attr-defined]


class BatchSubset(Subset):
    """A subset of a `BatchDataset`."""

    def __init__(self, dataset: BatchDataset, indices: Sequence[int]) -> None:
        super().__init__(dataset, indices)
        self.size = dataset.size
        self.fit: str | None = getattr(dataset, "fit", None)

    def batch(self, indices: Sequence[int]) -> Batch:
        """The records at `indices` of the subset."""
        inner = [self._indices[index] for index in indices]
        batch = self._dataset.batch(inner)  # type: ignore[attr-defined]
        return replace(batch, indices=torch.tensor(indices, dtype=torch.int64))


def subset(dataset: Dataset, indices: Sequence[int]) -> Subset:
    """The records of `dataset` at `indices`, in that order, as a dataset."""
    if isinstance(dataset, BatchDataset):
        return BatchSubset(dataset, indices)
    return Subset(dataset, indices)
