"""Rendered scenes, kept in memory: a probe looks at them many times."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strop.data import ScenesDataset
from strop.data.record import Dataset, Record


class Kept:
    """The records of a dataset, read once."""

    def __init__(self, dataset: Dataset) -> None:
        self.name, self.classes = dataset.name, dataset.classes
        self.label_names = dataset.label_names
        self.kept = [dataset[row] for row in range(len(dataset))]

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, row: int) -> Record:
        return self.kept[row]


@pytest.fixture(scope="session")
def kept() -> Callable[[Dataset], Kept]:
    """Reads a dataset into memory."""
    return Kept


@pytest.fixture(scope="session")
def scenes(kept) -> tuple[Kept, Kept]:
    """Twenty scenes to train on and eight to score, 64 px."""
    return kept(ScenesDataset(n=20, seed=1, size=64)), kept(ScenesDataset(n=8, seed=2, size=64))
