"""Temporary seeding of torch's global generators, and a hash of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators of the CPU and of all GPUs, and restore their states on exit."""
    # Before CUDA is initialised there is no state to save, and `torch.manual_seed` would set a
    # seed for later.
    on_gpu = torch.cuda.is_initialized()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if on_gpu else ()):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.manual_seed_all(seed)
        yield


def mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser on uint64; a bijection, so different numbers stay different."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
