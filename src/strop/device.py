"""The device that models run on, and what fits on it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from strop.errors import ConfigError

RESIDENT_SHARE = 0.6
"""The share of a GPU's free memory that a cached tensor may take."""


def check_device(device: str | torch.device | None) -> str | torch.device | None:
    """`device` if it is available. None stays None, which means "choose"."""
    if device is None:
        return None
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"There is no device {device!r}.", "Give cpu or cuda.") from error
    if wanted.type not in ("cpu", "cuda"):  # torch knows more, but strop is not tested on them
        raise ConfigError(f"strop does not run on {device!r}.", "Give cpu or cuda.")
    if wanted.type == "cuda":
        count = torch.cuda.device_count()
        if not count:
            raise ConfigError("There is no GPU that torch can use here.", "Use the device cpu.")
        if (wanted.index or 0) >= count:
            raise ConfigError(
                f"There is no {device}: torch sees {count} GPU{'s' if count > 1 else ''} here.",
                "Give cuda, or a number from cuda:0 on.",
            )
    return device


def choose_device(device: str | torch.device | None) -> str | torch.device:
    """`device` if given and available; otherwise a GPU if there is one, else the CPU."""
    return check_device(device) or ("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def exact_products() -> Iterator[None]:
    """Compute products and convolutions on a GPU in fp32.

    By default torch computes convolutions in TF32, which has the 10 bits of fp16, and a program may
    have allowed it for matrix products.
    """
    parts: Any = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = [part.fp32_precision for part in parts]
    try:
        for part in parts:
            part.fp32_precision = "ieee"
        with torch.autocast("cuda", enabled=False):
            yield
    finally:
        for part, kept in zip(parts, before, strict=True):
            part.fp32_precision = kept


@contextmanager
def sound_attention() -> Iterator[None]:
    """Leave out cuDNN's attention, whose gradients may be NaN (torch 2.11 and later).

    If its last tile of keys is half full, as with the 64 locations of 128 px, the other half is
    scored 0 instead of masked. Where all scores of a query are far below 0, its gradient overflows,
    although its output is right (pytorch/pytorch#196678).
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def fits_on(device: torch.device, nbytes: int) -> bool:
    """Whether `nbytes` may stay on `device`: always on a CPU, within a share of a GPU's memory."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return nbytes <= RESIDENT_SHARE * free


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """`value` on `device`, copied asynchronously from pinned memory."""
    if device.type != "cuda":
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)


def to_device_if_fits(tensor: Tensor, device: torch.device) -> Tensor:
    """Move `tensor` to `device` if it fits there."""
    return tensor.to(device) if fits_on(device, tensor.nbytes) else tensor


def describe_machine(device: torch.device | str) -> dict[str, Any]:
    """The machine of a measurement: device, cores and versions."""
    device = torch.device(device)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: _version(package) for package in ("strop", "torch", "transformers", "numpy")},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from a source tree
        return "not installed"
