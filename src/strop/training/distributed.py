"""Collectives over the processes of a run. With a single process they do nothing."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from strop.collectives import grouped, together
from strop.files import exclusive

PATIENCE = timedelta(days=1)
"""Timeout of collectives. It is long because the first process may compute the fields of a large
dataset while the others wait; torchrun detects processes that died much earlier."""

_joins = itertools.count()


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


@contextmanager
def joined(device: torch.device) -> Iterator[Workers]:
    """A context in which the process group described by the environment of `torchrun` exists.

    A group that already exists is used and not destroyed.
    """
    workers = this_process()
    if grouped() or workers.world == 1:
        yield workers
    else:
        # torch imports this module later, and it keeps a reference to the group that exists then.
        # The threads of the group would outlive the interpreter and sometimes abort the process.
        importlib.import_module("torch.distributed.nn")
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=_store(workers),
            rank=workers.rank,
            world_size=workers.world,
            timeout=PATIENCE,
        )
        try:
            yield workers
        finally:
            dist.destroy_process_group()


def _store(workers: Workers) -> Store:
    """The store of a new process group.

    torchrun keeps its store over restarts, and a process may join several groups in turn. The
    prefix separates their entries.
    """
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = _connected(address, port, workers.world, workers.first and not agents)
    return PrefixStore(f"strop/{restart}/{next(_joins)}", store)


@functools.cache  # the port is still in use when the next group is joined
def _connected(address: str, port: int, world: int, serves: bool) -> TCPStore:
    return TCPStore(address, port, world, is_master=serves, timeout=PATIENCE)


@contextmanager
def only_writer(folder: Path | None) -> Iterator[None]:
    """Keep other runs out of `folder`. Of the processes of one run, only the first writes."""
    with ExitStack() as stack:
        if folder is not None and this_process().first:
            stack.enter_context(exclusive(folder))
        yield


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
