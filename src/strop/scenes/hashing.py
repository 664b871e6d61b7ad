"""Counter-based random numbers, which are equal on every device.

A stateful generator would make a scene depend on its batch. Here each number is a hash of (seed,
index, ...) in wrapping 64-bit integers, so a scene depends on its seed and index alone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from strop.random import mix

_STEP = 0x9E3779B97F4A7C15


def key(seed: int, *parts: np.ndarray) -> np.ndarray:
    """A uint64 key for each element of the broadcast int64 counters `parts`."""
    state = mix(np.array([(2 * seed + 1 - _STEP) % 2**64], dtype=np.uint64))
    for part in parts:
        state = mix(state + part.astype(np.uint64) * np.uint64(_STEP))
    return state


def uniform(keys: np.ndarray, count: int, device: torch.device | str = "cpu") -> Tensor:
    """`count` float64 numbers in [0, 1) for each key: (...) to (..., count), on `device`."""
    bits = mix(keys[..., None] + np.arange(count, dtype=np.uint64) * np.uint64(_STEP))
    return torch.from_numpy((bits >> np.uint64(11)) * 2.0**-53).to(device)
