"""The planted model and a dataset it reads without error, for every study."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from planted import PlantedDataset, PlantedTokenizer

from strop.structure.study import Encoded, Job, encode_dataset


@pytest.fixture(scope="session")
def planted() -> PlantedTokenizer:
    return PlantedTokenizer().eval()


@pytest.fixture(scope="session")
def planted_encoded(planted: PlantedTokenizer) -> Encoded:
    """48 images, encoded."""
    return encode_dataset(planted, PlantedDataset(), "planted:")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)
