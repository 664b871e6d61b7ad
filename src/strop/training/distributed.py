"""Collectives over the processes of a run. With a single process they do nothing."""

from __future__ import annotations

import atexit
import importlib
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from strop.collectives import grouped, together
from strop.files import exclusive

PATIENCE = timedelta(days=1)
"""Timeout of collectives. It is long because the first process may compute the fields of a large
dataset while the others wait; torchrun detects processes that died much earlier."""


@dataclass(frozen=True)
class Workers:
    """The rank of this process and the number of processes."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.rank == 0

    def share(self, batch: int) -> slice:
        """The rows of this process in a global batch."""
        rows = batch // self.world
        return slice(self.rank * rows, (self.rank + 1) * rows)


def this_process() -> Workers:
    """Rank and world size from the process group, else from the environment of `torchrun`."""
    if grouped():
        return Workers(dist.get_rank(), dist.get_world_size())
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return Workers(int(os.environ["RANK"]), world) if world > 1 else Workers()


def join(device: torch.device) -> Workers:
    """Join the process group that the environment of `torchrun` describes, if it does.

    The process stays in the group until it ends. A group that already exists is used.
    """
    workers = this_process()
    if workers.world > 1 and not grouped():
        # torch imports this module later, and it keeps a reference to the group that exists then.
        # The threads of the group would outlive the interpreter and sometimes abort the process.
        importlib.import_module("torch.distributed.nn")
        store, rank, world = next(rendezvous("env://", timeout=PATIENCE))
        # torchrun keeps its store over restarts; the prefix separates their entries.
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=dist.PrefixStore(f"strop/{restart}", store),  # type: ignore[attr-defined]
            rank=rank,
            world_size=world,
            timeout=PATIENCE,
        )
        atexit.register(dist.destroy_process_group)
    return workers


def only_writer(folder: Path | None) -> AbstractContextManager[None]:
    """Keep other runs out of `folder`. Of the processes of one run, only the first writes."""
    return exclusive(folder) if folder is not None and this_process().first else nullcontext()


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Sum every gradient over all processes, in one message."""
    if not together():
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    offset = 0
    for gradient in gradients:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()


def copy_from_first(tensors: Iterable[Tensor]) -> None:
    """Overwrite `tensors` with those of rank 0."""
    if together():
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def wait_for_all() -> None:
    """Wait until every process has called this."""
    if together():
        dist.barrier()
