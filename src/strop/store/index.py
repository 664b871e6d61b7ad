"""The index of a store: a vector for each program, and the approximate index of Lance over them.

It is a table in the folder `INDEX` of the store, one row an image, and follows from the programs:
it can be built again at any time. Rows are added in the order of the store, so an index that was
interrupted, or whose store has grown, goes on with the rows that it lacks.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor

from strop.errors import FormatError, StoreError, parsing
from strop.files import check_format, exclusive, format_tag
from strop.optional import require
from strop.pool import map_ahead
from strop.progress import Progress, no_progress
from strop.store.schema import (
    CHECK,
    DATA_STORAGE_VERSION,
    below,
    open_table,
    read_programs,
    reading,
)

if TYPE_CHECKING:
    from strop.store.store import Store

INDEX = "index"
"""The folder of a store with its index."""

FORMAT = 2
METADATA = b"strop-index"
SAMPLE = 4096
"""Images on which the descriptor is fitted."""

LEAST_ROWS = 20_000
"""Fewer vectors are compared one by one: that is exact, and fast enough."""

PARTS, REFINE = 40, 20
"""Parts of the index that a search looks into, and vectors compared exactly for each result."""

_WRITE = 8192  # rows that are written together: what is lost at most when a process is killed
_BATCH = 64  # programs that are interpreted together
_READERS = timedelta(hours=1)  # how long others may read the index as it was


WIDTH = 128
"""Dimensions of a vector. The index keeps it in half precision: 256 bytes an image."""

REMEDY = "Build it again: strop index STORE."
"""What to do about a damaged index."""

_PARTS = ("channel_mean", "channel_spread", "centre", "directions")


@dataclass(frozen=True, eq=False)
class Descriptor:
    """A map of fields to unit vectors, fitted on the fields of a store.

    The means of the channels over the locations and their standard deviations, both without their
    average over images and scaled to unit length, are projected onto their first principal
    directions. Whitening them finds less alike images (`benchmarks/NOTES.md`).

    channel_mean, channel_spread  (d,) of patches, over images and locations
    centre                        (2 d,) means and standard deviations, on average over images
    directions                    (2 d, D) orthonormal
    """

    channel_mean: Tensor
    channel_spread: Tensor
    centre: Tensor
    directions: Tensor

    @staticmethod
    def fit(pooled: Tensor, width: int = WIDTH) -> Descriptor:
        """Fit to what `pool` returns for (n) images: (n, 2 d)."""
        means, deviations = pooled.chunk(2, dim=1)
        variance = deviations.square().mean(dim=0) + means.var(dim=0, correction=0)
        centre = pooled.mean(dim=0)
        halves = _halves(pooled - centre).double()
        vectors = torch.linalg.eigh(halves.T @ halves)[1]
        return Descriptor(
            channel_mean=means.mean(dim=0),
            channel_spread=variance.sqrt().clamp(min=1e-6),
            centre=centre,
            directions=vectors.flip(1)[:, :width].float().contiguous(),
        )

    def __call__(self, fields: Tensor) -> Tensor:
        """Fields (B, S, d) of images, or of S patches of a region, to unit vectors (B, D)."""
        return self.vectors(pool(fields))

    def vectors(self, pooled: Tensor) -> Tensor:
        """What `pool` returns to unit vectors: (B, 2 d) to (B, D)."""
        return F.normalize(_halves(pooled - self.centre) @ self.directions, dim=-1)

    def patches(self, fields: Tensor) -> Tensor:
        """Fields (B, S, d) to unit vectors of their patches, (B, S, d)."""
        return F.normalize((fields.float() - self.channel_mean) / self.channel_spread, dim=-1)

    def to(self, device: torch.device | str) -> Descriptor:
        """The same on another device."""
        return Descriptor(*(getattr(self, name).to(device) for name in _PARTS))

    def to_text(self) -> str:
        """What `from_text` reads: a file of safetensors in base64."""
        parts = {name: getattr(self, name).cpu().contiguous() for name in _PARTS}
        return base64.b64encode(save(parts)).decode()

    @staticmethod
    def from_text(text: str, source: object) -> Descriptor:
        """Read what `to_text` wrote; `FormatError` if it is anything else."""
        with parsing(FormatError, f"The index {source} is damaged", REMEDY):
            held = load(base64.b64decode(text, validate=True))
            parts = [held[name].float() for name in _PARTS]
            width = len(parts[0])
            if [len(part) for part in parts] != [width, width, 2 * width, 2 * width]:
                raise ValueError(f"shapes {[tuple(part.shape) for part in parts]}")
            if not all(part.isfinite().all() for part in parts):
                raise ValueError("a value that is not finite")
            return Descriptor(*parts)


def pool(fields: Tensor) -> Tensor:
    """Mean and standard deviation of each channel over locations: (B, S, d) to (B, 2 d)."""
    fields = fields.float()
    return torch.cat([fields.mean(dim=1), fields.std(dim=1, correction=0)], dim=1)


def _halves(centred: Tensor) -> Tensor:
    """Both halves of (B, 2 d) scaled to unit length."""
    return torch.cat([F.normalize(half, dim=-1) for half in centred.chunk(2, dim=-1)], dim=-1)


class Index:
    """Vectors of the programs of a store.

    rows  how many rows of the store have one: the first
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = below(store.path, INDEX)
        self._table = open_table(self._path)
        with parsing(FormatError, f"The index {self._path} is damaged", REMEDY):
            values = json.loads((self._table.schema.metadata or {}).get(METADATA, b"{}"))
            check_format(values.get("format"), "index", FORMAT, self._path)
            self._descriptor = Descriptor.from_text(values["descriptor"], self._path)
        self.rows: int = self._table.count_rows()

    @property
    def descriptor(self) -> Descriptor:
        """What makes the vector of a field, on the device of the model."""
        return self._descriptor.to(self._store.model.device)

    def is_current(self) -> bool:
        """Whether the vectors are those of the programs that the store holds now."""
        if self.rows > len(self._store):
            return False
        with reading(self._path, REMEDY):
            for batch in self._table.to_batches(columns=["row", CHECK]):
                rows = batch["row"].to_numpy()
                if not np.array_equal(_checks(self._store, rows), batch[CHECK].to_numpy()):
                    return False
        return True

    def nearest(self, vector: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows (k,) whose vectors are nearest to a vector (D,), and the cosines (k,)."""
        query = {
            "column": "vector",
            "q": vector.cpu().numpy().astype(np.float16),
            "k": min(k, self.rows),
            "nprobes": PARTS,
            "refine_factor": REFINE,
        }
        with reading(self._path, REMEDY):
            found = self._table.to_table(columns=["row", CHECK, "_distance"], nearest=query)
        rows = found["row"].to_numpy().astype(np.int64)
        self._confirm(rows, found[CHECK].to_numpy())
        return rows, 1 - found["_distance"].to_numpy() / 2

    def vectors(self, rows: np.ndarray) -> Tensor:
        """The vectors (n, D) of rows of the store."""
        with reading(self._path, REMEDY):
            table = self._table.take(rows.tolist(), columns=["vector", CHECK])
        self._confirm(rows, table[CHECK].to_numpy())
        joined = table["vector"].combine_chunks()
        vectors = joined.flatten().to_numpy().reshape(len(rows), -1)
        return torch.from_numpy(vectors.astype(np.float32))

    def add(self, progress: Progress = no_progress) -> int:
        """Add the vectors of the rows that the index lacks. Returns how many those were."""
        before, count, descriptor = self.rows, len(self._store), self.descriptor
        parts = (range(start, min(start + _WRITE, count)) for start in range(before, count, _WRITE))

        def read(rows: range) -> tuple[range, pa.Table]:
            return rows, self._store.read(rows, columns=["codes", "length"])

        # Fields are interpreted in this thread, while another one reads.
        for rows, table in map_ahead(read, parts, 1):
            vectors = []
            for fields in fields_of(self._store, table):
                vectors.append(descriptor(fields).half().cpu())
                progress("indexing", rows[0] + sum(map(len, vectors)), count)
            self.append(rows, torch.cat(vectors))
        self.build()
        return self.rows - before

    def append(self, rows: range, vectors: Tensor) -> None:
        """Add the vectors (n, D) float16 of the next rows."""
        schema = self._table.schema
        flat = pa.array(vectors.numpy().ravel(), pa.float16())
        columns = {
            "row": pa.array(rows, pa.uint64()),
            CHECK: _checks(self._store, np.asarray(rows)),
            "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        }
        table = pa.table(columns).cast(schema)
        lance = require("lance", StoreError)
        self._table = lance.write_dataset(table, self._path, mode="append")
        self.rows += len(rows)

    def build(self) -> None:
        """Build or extend the approximate index over the vectors, if there are enough."""
        if self.rows >= LEAST_ROWS:
            if len(self._table.get_fragments()) > 1 + self.rows // (1 << 20):
                self._table.optimize.compact_files()
            if self._table.list_indices():
                self._table.optimize.optimize_indices()
            else:
                self._table.create_index(
                    "vector",
                    index_type="IVF_PQ",
                    metric="L2",
                    num_partitions=max(1, round(self.rows**0.5 / 2)),
                    num_sub_vectors=self._descriptor.directions.shape[1] // 4,
                )
        self._table = open_table(self._path)
        self._table.cleanup_old_versions(older_than=_READERS)

    def _confirm(self, rows: np.ndarray, checks: np.ndarray) -> None:
        """Refuse vectors of programs that are no longer in the store."""
        inside = (rows < len(self._store)).all()
        if not inside or not np.array_equal(_checks(self._store, rows), checks):
            raise StoreError(
                f"The index of {self._store.path} is of other programs than the store holds now.",
                f"Build it again: strop index {self._store.path}",
            )


def find_index(store: Store) -> Index | None:
    """The index of a store, or None if it has none."""
    try:
        return Index(store)
    except StoreError:
        return None


def build_index(store: Store, *, rebuild: bool = False, progress: Progress = no_progress) -> int:
    """Index the programs of a store that are not indexed yet. Returns how many those were.

    rebuild  fit the descriptor again and compute all vectors; needed when the store has grown to
             other kinds of images than those that the index was first built with
    """
    if not len(store):
        raise StoreError(f"The store {store.path} has no programs.", "Encode some images.")
    path = below(store.path, INDEX)
    with nullcontext() if "://" in path else exclusive(path):
        index, mode = None, "overwrite"
        with suppress(FormatError):  # a damaged index is built again
            index = find_index(store)
            mode = "create" if index is None else mode
        if rebuild or index is None or not index.is_current():
            index = create_table(store, fit_descriptor(store, progress), mode)
        store.index = None  # the next search opens the new one
        return index.add(progress)


def fit_descriptor(store: Store, progress: Progress = no_progress) -> Descriptor:
    """A descriptor for images like those of a store, from at most `SAMPLE` of them."""
    rows = np.linspace(0, len(store) - 1, min(len(store), SAMPLE)).astype(np.int64)
    table = store.read(np.unique(rows), columns=["codes", "length"])
    pooled: list[Tensor] = []
    for fields in fields_of(store, table):
        pooled.append(pool(fields).cpu())
        progress("fitting", sum(map(len, pooled)), len(table))
    return Descriptor.fit(torch.cat(pooled))


def create_table(store: Store, descriptor: Descriptor, mode: str = "create") -> Index:
    """An index without vectors, in place of one that is there if the mode is "overwrite"."""
    values = {"format": format_tag("index", FORMAT), "descriptor": descriptor.to_text()}
    vector = pa.list_(pa.float16(), descriptor.directions.shape[1])
    schema = pa.schema(
        {"row": pa.uint64(), CHECK: pa.uint32(), "vector": vector},
        metadata={METADATA: json.dumps(values).encode()},
    )
    require("lance", StoreError).write_dataset(
        schema.empty_table(),
        below(store.path, INDEX),
        mode=mode,
        data_storage_version=DATA_STORAGE_VERSION,
    )
    return Index(store)


def fields_of(store: Store, table: pa.Table) -> Iterator[Tensor]:
    """The fields of the programs in a table, `_BATCH` at a time."""
    program = read_programs(table, store.info, store.path)
    for start in range(0, len(program), _BATCH):
        yield store.model.interpret(program[start : start + _BATCH])


def _checks(store: Store, rows: np.ndarray) -> np.ndarray:
    with reading(store.path):
        return store.dataset.take(rows.tolist(), columns=[CHECK])[CHECK].to_numpy()
