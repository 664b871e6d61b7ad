"""Optional packages of stores, imported where they are used."""

from __future__ import annotations

import os
from typing import Any

import strop.optional
from strop.errors import StoreError


def require(package: str) -> Any:
    """The module `package`; `StoreError` with the install line if it is not installed."""
    os.environ.setdefault("LANCE_LOG", "error")  # it warns that a new store does not exist yet
    return strop.optional.require(package, StoreError)
