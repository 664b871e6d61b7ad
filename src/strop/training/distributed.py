"""Several processes: who we are, and sums over all. Alone, everything here does nothing."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Workers:
    """This process among all: `rank` of `world`."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.rank == 0

    def share(self, batch: int) -> slice:
        """The rows of a global batch that are this process's."""
        rows = batch // self.world
        return slice(self.rank * rows, (self.rank + 1) * rows)


@contextmanager
def joined(device: torch.device) -> Iterator[Workers]:
    """Join the group that `torchrun` describes in the environment, and leave it afterwards.

    A group that exists already is used and left alone.
    """
    if dist.is_available() and dist.is_initialized():
        yield Workers(dist.get_rank(), dist.get_world_size())
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # This module keeps the group that there is when it is first imported, which torch does
        # somewhere on the way. Before there is one, it keeps none; otherwise the group's threads
        # would outlive the interpreter and now and then abort the process.
        importlib.import_module("torch.distributed.nn")
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=_store(rank, world), rank=rank, world_size=world)
        try:
            yield Workers(dist.get_rank(), dist.get_world_size())
        finally:
            dist.destroy_process_group()
    else:
        yield Workers()


def _store(rank: int, world: int) -> Store:
    """Where the processes of a group find each other.

    torchrun keeps its store over restarts. Without a name for each life, the processes of the
    next one find the addresses of the dead.
    """
    life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, world, is_master=rank == 0 and not agents)
    return PrefixStore(f"strop/{life}", store)


def summed(value: Tensor) -> Tensor:
    """The sum of `value` over all processes, as a new tensor; `value` itself alone."""
    if not _together():
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Sum every gradient over all processes, in one message."""
    if not _together():
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    offset = 0
    for gradient in gradients:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()


def copy_from_first(tensors: Iterable[Tensor]) -> None:
    """Overwrite `tensors` with those of rank 0, so that all processes start out equal."""
    if _together():
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def any_of(flag: bool, device: torch.device) -> bool:
    """Whether `flag` is set in any process. All must call this at the same point."""
    if not _together():
        return flag
    return bool(summed(torch.tensor(float(flag), device=device)).item())


def wait_for_all() -> None:
    """Go on only when every process has come here."""
    if _together():
        dist.barrier()


def _together() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
