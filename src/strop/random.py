"""Temporary seeding of torch's global generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
