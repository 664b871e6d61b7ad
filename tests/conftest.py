"""Fixtures shared by the whole suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(max(1, (os.cpu_count() or 2) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real samples, or a skip with the reason."""
    default = Path(__file__).parents[2] / "shared"
    folder = Path(os.environ.get("STROP_SHARED", default))
    if not (folder / "data").is_dir():
        pytest.skip(f"no real samples at {folder}; set STROP_SHARED to use some")
    return folder
