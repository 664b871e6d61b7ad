"""Optional packages, imported where they are used."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from strop.errors import StropError

EXTRAS = {
    "lance": "store",
    "duckdb": "store",
    "datasets": "store",
    "fsspec": "store",
    "h5py": "nyu",
    "scipy.io": "eval",
    "ray": "ray",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "onnxruntime": "onnx",
    "openvino": "openvino",
    "tensorboard": "train",
}
"""Packages, and the extra of strop that installs each. Others are installed by their name."""


def require(package: str, error: type[StropError]) -> Any:
    """The module `package`; `error` with the install line if it is not installed."""
    os.environ.setdefault("LANCE_LOG", "error")  # it warns that a new store does not exist yet
    try:
        return import_module(package)
    except ImportError as missing:
        name = f"'strop[{EXTRAS[package]}]'" if package in EXTRAS else package
        raise error(
            f"This needs the package {package} ({missing}).",
            f"Install it with: pip install {name}.",
        ) from missing
