"""The programs of a store as a PyTorch dataset of fields, interpreted as they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import distributed
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from strop.config import in_range
from strop.device import check_device
from strop.errors import StoreError
from strop.model.tokenizer import Tokenizer
from strop.pool import map_ahead
from strop.store.schema import read_programs

if TYPE_CHECKING:
    from strop.store.store import RowIndex, Store

READ = 2048
"""Rows that are read at a time."""


class FieldBatch(dict[str, Any]):
    """What `Fields` yields. A `DataLoader` must not put several into another batch."""


def _refuse(batches: Sequence[FieldBatch], **_: Any) -> None:
    raise StoreError(
        "`store.fields()` yields batches already, and the DataLoader makes batches of them.",
        "Give the DataLoader batch_size=None, and `fields` the size of a batch.",
    )


default_collate_fn_map[FieldBatch] = _refuse


@dataclass(eq=False)
class Fields(IterableDataset[FieldBatch]):
    """Batches `{"field": (B, S, d_enc) float32 on the device, "key": [...], kept columns}`.

    Columns of numbers are tensors, others are lists. Each process of `torch.distributed`, and each
    worker of a `DataLoader(fields, batch_size=None)`, gets its share: together they get each row
    once. `fields[i]` is one row, `fields[[3, 1]]` and `fields[:8]` are batches, of all rows.

    After each iteration `epoch` increases, and with `shuffle` the order changes. Workers that a
    `DataLoader` restarts for each epoch need `set_epoch`.

    device     where fields are interpreted; by default where the model is
    batch      programs in a batch
    shuffle    in another order in each epoch, by `seed`
    drop_last  let all processes and workers have the same number of full batches
    workers    threads that read ahead
    """

    store: Store
    _: KW_ONLY
    device: InitVar[str | torch.device | None] = None
    batch: int = 64
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    workers: int = 2

    def __post_init__(self, device: str | torch.device | None) -> None:
        self.batch = in_range(self.batch, "batch", 1)
        self.workers = in_range(self.workers, "workers", 1)
        self.model = _on(self.store.model, device)
        self.epoch = 0
        self._rows = len(self.store)
        self._done = self._resume = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where this process is. It needs the same number of processes and workers to continue."""
        return {**self._settings(), "rows": self._rows, "epoch": self.epoch, "done": self._done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration yield what was left. Rows written since follow in a new epoch."""
        for name, value in self._settings().items():
            if state.get(name) != value:
                raise StoreError(
                    f"The state has {name} = {state.get(name)!r}, not {value!r}.",
                    "Load it with the same settings, store and number of processes.",
                )
        if state["rows"] > len(self.store):
            raise StoreError(
                f"The state is of a store of {state['rows']:,} rows, this has {len(self.store):,}.",
                "Load it with the same store.",
            )
        self._rows, self.epoch = state["rows"], state["epoch"]
        self._done = self._resume = state["done"]

    def __iter__(self) -> Iterator[FieldBatch]:
        rows = part_of(self._rows, *_part(), seed=(self.seed, self.epoch) if self.shuffle else None)
        if self.drop_last:  # every part has the same number of batches
            rows = rows[: self._rows // _part()[1] // self.batch * self.batch]
        self._done, self._resume = self._resume, 0
        rest = rows[self._done * self.batch :]
        size = max(READ // self.batch, 1) * self.batch
        parts = (rest[i : i + size] for i in range(0, len(rest), size))
        for table in map_ahead(self._read, parts, self.workers, threads=self.workers):
            for start in range(0, len(table), self.batch):
                self._done += 1
                yield self._interpret(table.slice(start, self.batch))
        self.epoch += 1
        self._done, self._rows = 0, len(self.store)

    def __getitem__(self, index: RowIndex) -> FieldBatch:
        """Rows of the store, independent of the shares: one for a number or a key, else a batch."""
        found = self._interpret(self._read(self.store.rows_of(index)))
        if isinstance(index, int | np.integer | str):
            return FieldBatch((name, values[0]) for name, values in found.items())
        return found

    def _settings(self) -> dict[str, Any]:
        return {
            "model": self.store.info.codes,
            "part": list(_part()),
            **{name: getattr(self, name) for name in ("batch", "shuffle", "seed", "drop_last")},
        }

    def _read(self, rows: RowIndex) -> pa.Table:
        return self.store.read(rows, columns=["key", "codes", "length", *self.store.kept])

    def _interpret(self, table: pa.Table) -> FieldBatch:
        program = read_programs(table, self.store.info, self.store.path)
        kept = {name: _values(table[name]) for name in self.store.kept}
        return FieldBatch(field=self.model.interpret(program), key=list(program.names), **kept)


def part_of(
    count: int, part: int, parts: int, *, seed: tuple[int, int] | None = None
) -> Sequence[int] | np.ndarray:
    """The rows of one of several parts, which share `count` rows: every row is in one part.

    With a seed, a pair, all rows are shuffled first.
    """
    if seed is None:
        return range(part, count, parts)
    return np.random.default_rng(seed).permutation(count)[part::parts]


def _part() -> tuple[int, int]:
    """The number of this worker of this process among all, and how many there are."""
    ready = distributed.is_available() and distributed.is_initialized()
    rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if ready else (0, 1)
    if (worker := get_worker_info()) is None:
        return rank, ranks
    return rank * worker.num_workers + worker.id, ranks * worker.num_workers


def _on(model: Tokenizer, device: str | torch.device | None) -> Tokenizer:
    """The model on a device; a copy if it is on another."""
    wanted = torch.device(check_device(device) or model.device)
    if wanted.type == model.device.type and wanted.index in (None, model.device.index):
        return model
    return deepcopy(model).to(wanted)


def _values(column: pa.ChunkedArray) -> Any:
    """A column as a tensor if it holds numbers only, else as a list."""
    kind = column.type
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return column.to_pylist()
    values = torch.from_numpy(column.to_numpy().copy())
    return values.long() if pa.types.is_integer(kind) else values
