"""Optional packages of stores, imported where they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from strop.errors import StoreError

_EXTRAS = {"lance": "store", "duckdb": "store", "datasets": "store", "ray": "ray"}


def require(package: str) -> Any:
    """The module `package`; `StoreError` with the install line if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise StoreError(
            f"This needs the package {package} ({error}).",
            f"Install it with: pip install 'strop[{_EXTRAS[package]}]'.",
        ) from error
