"""Add rows to a store, each key once, in commits that other writers cannot slip between."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from strop.errors import StoreError
from strop.optional import require
from strop.random import mix
from strop.store.schema import (
    DATA_STORAGE_VERSION,
    REJECTS,
    REJECTS_SCHEMA,
    StoreInfo,
    below,
    key_hashes,
    make_schema,
    open_table,
    read_info,
    read_rejects,
    with_checks,
)

if TYPE_CHECKING:
    import lance

_KEPT_VERSIONS = 3  # of the table: readers may still be opening the last ones
_CLEAN_EVERY = 50  # commits


class Writer:
    """Appends to the store at `path`, which it creates if there is none.

    A commit replaces the list of fragments that it has read, so it fails if another writer has
    committed meanwhile. Then the rows that the other has written are left out, and it is tried
    again. Each key is therefore written once, whoever writes at the same time.
    """

    def __init__(
        self,
        path: str,
        info: StoreInfo,
        kept: Mapping[str, pa.DataType] | None = None,
        *,
        overwrite: bool = False,
        retry: bool = False,
    ) -> None:
        self.path = path
        self.info = info
        self._schema = make_schema(info, kept or {})
        self._commits = 0
        self._table: lance.LanceDataset
        self._known: np.ndarray  # the hashes of the keys in the store, sorted
        self._places: np.ndarray  # the hashes of keys with their sources, sorted
        self._rejected: np.ndarray
        self._open(overwrite, forget_rejects=overwrite or retry)

    def missing(self, keys: list[str]) -> np.ndarray:
        """Which keys are neither in the store nor rejected: (n,) bool."""
        hashes = key_hashes(pa.array(keys, pa.string()))
        return ~(_contains(self._known, hashes) | _contains(self._rejected, hashes))

    def from_elsewhere(self, keys: list[str], sources: list[str]) -> str | None:
        """The first of the keys that the store has from another source than now, or None."""
        known = _contains(self._known, key_hashes(pa.array(keys, pa.string())))
        same = _contains(self._places, _place_hashes(pa.array(keys), pa.array(sources)))
        others = np.flatnonzero(known & ~same)
        return keys[others[0]] if len(others) else None

    def append(self, rows: pa.Table) -> int:
        """Commit rows, without their checks, at once. Returns how many were new."""
        import lance
        from lance.commit import CommitConflictError

        rows = with_checks(rows.cast(self._schema.remove(len(self._schema) - 1)))
        rows = rows.replace_schema_metadata(self._schema.metadata)
        written = None
        while True:
            new = ~_contains(self._known, key_hashes(rows["key"]))
            if not new.all():
                rows, written = rows.filter(pa.array(new)), None
            if not len(rows):
                return 0
            if written is None:
                written = self._write(rows, self._table, self.path)
            earlier = [fragment.metadata for fragment in self._table.get_fragments()]
            first = max((fragment.id for fragment in earlier), default=-1) + 1
            for number, fragment in enumerate(written):
                fragment.id = first + number
            operation = lance.LanceOperation.Merge(earlier + written, self._table.lance_schema)
            try:
                self._table = self._commit(self._table, operation)
            except CommitConflictError:
                self._open()
                continue
            self._learn([rows])
            self._commits += 1
            if self._commits % _CLEAN_EVERY == 0:
                self.clean()
            return len(rows)

    def reject(self, rows: list[dict[str, str]]) -> None:
        """Note images that could not be read: rows of `key`, `source` and `reason`."""
        if not rows:
            return
        import lance

        table = pa.Table.from_pylist(rows, REJECTS_SCHEMA)
        path = below(self.path, REJECTS)
        rejects = self._create(path, REJECTS_SCHEMA)
        self._commit(rejects, lance.LanceOperation.Append(self._write(table, rejects, path)))
        self._rejected = np.sort(np.concatenate([self._rejected, key_hashes(table["key"])]))

    def clean(self) -> None:
        """Remove old versions of the table. Their rows are in the newest, too."""
        self._table.cleanup_old_versions(
            older_than=timedelta(0), retain_versions=_KEPT_VERSIONS, delete_unverified=False
        )

    def _open(self, overwrite: bool = False, forget_rejects: bool = False) -> None:
        self._table = self._create(self.path, self._schema, overwrite)
        self._check()
        self._known = self._places = np.zeros(0, np.uint64)
        self._learn(self._table.to_batches(columns=["key", "source"]))
        rejects = read_rejects(self.path)
        if forget_rejects and len(rejects):
            open_table(below(self.path, REJECTS)).delete("true")
            rejects = REJECTS_SCHEMA.empty_table()
        self._rejected = np.sort(key_hashes(rejects["key"]))

    def _create(self, path: str, schema: pa.Schema, overwrite: bool = False) -> lance.LanceDataset:
        """The table at `path`, made empty if there is none."""
        lance = require("lance", StoreError)
        if not overwrite:
            with suppress(StoreError):
                return open_table(path)
        mode = "overwrite" if overwrite else "create"
        try:
            return lance.write_dataset(
                schema.empty_table(), path, mode=mode, data_storage_version=DATA_STORAGE_VERSION
            )
        except OSError as error:
            if "already exists" not in str(error):
                raise
            return open_table(path)  # another writer was faster

    def _check(self) -> None:
        """Refuse a store of another model, of other lengths or of other columns."""
        found = read_info(self._table.schema, self.path)
        remedy = "replace the programs with --overwrite, or keep both with --as VERSION."
        if found.codes != self.info.codes:
            raise StoreError(
                f"The store {self.path} holds programs of the model {found.model} "
                f"({found.codes}), not of {self.info.model} ({self.info.codes}).",
                f"Use that model, {remedy}",
            )
        if (found.lengths, found.length_rule) != (self.info.lengths, self.info.length_rule):
            old, new = (
                each.length_rule.strip("{}").replace('"', "") or "the model's default"
                for each in (found, self.info)
            )
            raise StoreError(
                f"The lengths in the store {self.path} were chosen by {old}, not by {new}.",
                f"Give the same options, {remedy}",
            )
        if self._table.schema.names != self._schema.names:
            raise StoreError(
                f"The store {self.path} has the columns {', '.join(self._table.schema.names)}, "
                f"not {', '.join(self._schema.names)}.",
                "Give the same --keep, or keep both with --as VERSION.",
            )

    def _learn(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> None:
        """Note the keys and sources of rows."""
        known, places = [self._known], [self._places]
        for batch in batches:
            known.append(key_hashes(batch["key"]))
            places.append(_place_hashes(batch["key"], batch["source"]))
        self._known = np.sort(np.concatenate(known))
        self._places = np.sort(np.concatenate(places))

    def _commit(self, table: lance.LanceDataset, operation: Any) -> lance.LanceDataset:
        """The table after an operation on the version that was read."""
        import lance

        return lance.LanceDataset.commit(table, lance.Transaction(table.version, operation))

    def _write(self, rows: pa.Table, table: lance.LanceDataset, path: str) -> list[Any]:
        """Write fragments of the table at `path`, to the disk before a commit refers to them.

        Lance does not notice if a full disk cuts off the end of a file.
        """
        from lance.fragment import write_fragments

        written = write_fragments(
            rows,
            table,
            schema=rows.schema,
            data_storage_version=DATA_STORAGE_VERSION,
        )
        for file in (file for fragment in written for file in fragment.files):
            place = Path(path) / "data" / file.path
            if not place.is_file():  # at a URL
                continue
            with place.open("rb") as opened:
                os.fsync(opened.fileno())
                size = os.fstat(opened.fileno()).st_size
            if file.file_size_bytes not in (None, size):
                place.unlink()
                raise StoreError(
                    f"Only {size:,} of {file.file_size_bytes:,} bytes of {place} were written.",
                    "Free some space on the disk, and repeat the command.",
                )
        return list(written)


def _contains(known: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Which hashes are in the sorted `known`: (n,) bool."""
    if not len(known):
        return np.zeros(len(hashes), dtype=bool)
    places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
    return known[places] == hashes


def _place_hashes(keys: Any, sources: Any) -> np.ndarray:
    """A hash of each key with its source: (n,) uint64."""
    return key_hashes(keys) ^ mix(key_hashes(sources))
