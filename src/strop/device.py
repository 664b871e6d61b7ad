"""Where models run: a device that was named, if it is here, or the best there is."""

from __future__ import annotations

import torch

from strop.errors import ConfigError


def check_device(device: str | torch.device | None) -> str | torch.device | None:
    """`device` if it exists here; None stays None and means "choose"."""
    if device is None:
        return None
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
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
    """`device` if it was given and exists; else a GPU if there is one."""
    return check_device(device) or ("cuda" if torch.cuda.is_available() else "cpu")
