"""Several processes: who we are, and sums over all. Alone, everything here does nothing."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

PATIENCE = timedelta(days=1)
"""How long a process waits for the others: the first may compute the fields of a large dataset in
the meantime. A process that died is noticed by torchrun, long before."""

_joins = itertools.count()


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


def this_process() -> Workers:
    """This process by the group it is in or, outside one, by what `torchrun` says of it."""
    if _grouped():
        return Workers(dist.get_rank(), dist.get_world_size())
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return Workers(int(os.environ["RANK"]), world) if world > 1 else Workers()


@contextmanager
def joined(device: torch.device) -> Iterator[Workers]:
    """Join the group that `torchrun` describes in the environment, and leave it afterwards.

    A group that exists already is used and left alone.
    """
    workers = this_process()
    if _grouped() or workers.world == 1:
        yield workers
    else:
        # This module keeps the group that there is when it is first imported, which torch does
        # somewhere on the way. Before there is one, it keeps none; otherwise the group's threads
        # would outlive the interpreter and now and then abort the process.
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
    """Where the processes of a group find each other.

    torchrun keeps its store over restarts, and a process may join one group after another. Without
    a name for each life and each group, processes find the addresses of those before.
    """
    life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = _connected(address, port, workers.world, workers.first and not agents)
    return PrefixStore(f"strop/{life}/{next(_joins)}", store)


@functools.cache  # the next group is looked for at once, while the first still holds this one
def _connected(address: str, port: int, world: int, serves: bool) -> TCPStore:
    return TCPStore(address, port, world, is_master=serves, timeout=PATIENCE)


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


def of_first(values: dict[str, float], device: torch.device) -> dict[str, float]:
    """What rank 0 gave, in every process. All must call this at the same point."""
    if not _together():
        return values
    # As JSON, since torch's own way for objects is pickle.
    told = torch.tensor(list(json.dumps(values).encode()), dtype=torch.uint8, device=device)
    size = torch.tensor(len(told), device=device)
    dist.broadcast(size, 0)
    shared = told if this_process().first else told.new_empty(int(size))
    dist.broadcast(shared, 0)
    found: dict[str, float] = json.loads(bytes(shared.tolist()))
    return found


def any_of(flag: bool, device: torch.device) -> bool:
    """Whether `flag` is set in any process. All must call this at the same point."""
    if not _together():
        return flag
    return bool(summed(torch.tensor(float(flag), device=device)).item())


def wait_for_all() -> None:
    """Go on only when every process has come here."""
    if _together():
        dist.barrier()


def _grouped() -> bool:
    return dist.is_available() and dist.is_initialized()


def _together() -> bool:
    return _grouped() and dist.get_world_size() > 1
