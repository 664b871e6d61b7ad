"""The bundled models, each loaded once."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import strop

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="package")
def bundled() -> Callable[[str], strop.Tokenizer]:
    """A bundled model by name, on the CPU."""
    return functools.cache(functools.partial(strop.load, device="cpu"))
