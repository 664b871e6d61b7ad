"""The planted model and a dataset that it encodes without error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "reading"))

from planted import PlantedTokenizer, subject_of

from strop.analysis.subject import Subject


@pytest.fixture(scope="session")
def planted() -> Subject:
    """48 planted images, with the model that encodes them."""
    return subject_of(PlantedTokenizer().eval())
