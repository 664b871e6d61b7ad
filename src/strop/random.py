"""Torch's own generators, borrowed for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators, of the CPU and of all GPUs, and give them back as they were."""
    # Before CUDA is in use there is nothing of its to save, and `torch.manual_seed` would leave
    # it a seed for when it starts.
    on_gpu = torch.cuda.is_initialized()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if on_gpu else ()):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.manual_seed_all(seed)
        yield
