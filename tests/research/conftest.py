"""Makes the scripts under research/ importable, and the small models that training tests use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from strop.analysis.subject import Subject

ROOT = Path(__file__).parents[2]
for folder in (
    *(path for path in (ROOT / "research").iterdir() if path.is_dir()),
    ROOT / "tests" / "analysis",
    ROOT / "tests" / "training",
    Path(__file__).parent,
):
    sys.path.insert(0, str(folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder as slow, except for those of the scripts as a whole."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.stem != "test_scripts":
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def planted() -> Subject:
    """48 planted images, with the model that encodes them."""
    from planted import PlantedTokenizer, subject_of

    return subject_of(PlantedTokenizer().eval())
