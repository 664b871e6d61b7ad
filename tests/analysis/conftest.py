"""The planted model and its images, and small folders of images on disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from planted import PlantedTokenizer, subject_of

from strop.analysis.subject import Subject
from strop.images import save_image


@pytest.fixture(scope="session")
def planted() -> Subject:
    """48 planted images, with the model that encodes them."""
    return subject_of(PlantedTokenizer().eval())


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Specs of two folders of images that share none: 10 to measure on, 20 to fit on."""
    root = tmp_path_factory.mktemp("pictures")
    random = torch.Generator().manual_seed(0)
    for name, count in (("val", 10), ("train", 20)):
        for number in range(count):
            blocks = torch.rand(3, 4, 4, generator=random)
            picture = blocks.repeat_interleave(16, dim=1).repeat_interleave(16, dim=2)
            save_image(Path(root) / name / f"{number:02d}.png", picture)
    return f"folder:{root}/val", f"folder:{root}/train"
