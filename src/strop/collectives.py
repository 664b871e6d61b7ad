"""Sums and joins of tensors over the processes of a run; with a single process they do nothing."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def grouped() -> bool:
    """Whether there is a process group. It may begin to exist after a model was made."""
    return dist.is_available() and dist.is_initialized()


def together() -> bool:
    """Whether there are several processes."""
    return grouped() and dist.get_world_size() > 1


def summed(value: Tensor) -> Tensor:
    """The sum of `value` over all processes, as a new tensor; `value` itself with one process."""
    if not together():
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total


def joined_rows(value: Tensor) -> Tensor:
    """`(n, ...)` of every process, in order of rank, as `(world * n, ...)`."""
    if not together():
        return value
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, value.contiguous())
    return torch.cat(parts)
