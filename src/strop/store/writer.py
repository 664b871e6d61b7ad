"""Add rows to a store, each key once, in commits that other writers cannot slip between."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from strop.errors import StoreError
from strop.store.extras import require
from strop.store.schema import (
    DATA_STORAGE_VERSION,
    StoreInfo,
    key_hashes,
    make_schema,
    read_info,
    with_checks,
)
from strop.store.store import REJECTS, REJECTS_SCHEMA, below, open_table, read_rejects

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
        storage_options: dict[str, str] | None = None,
    ) -> None:
        self.path = path
        self.info = info
        self._options = storage_options
        self._schema = make_schema(info, kept or {})
        self._retry = retry
        self._commits = 0
        self._table: lance.LanceDataset
        self._known: np.ndarray
        self._rejected: np.ndarray
        self._open(overwrite)

    def missing(self, keys: list[str]) -> np.ndarray:
        """Which keys are neither in the store nor rejected: (n,) bool."""
        hashes = key_hashes(pa.array(keys, pa.string()))
        return ~(_contains(self._known, hashes) | _contains(self._rejected, hashes))

    def append(self, rows: pa.Table, name: str) -> int:
        """Commit rows, without their checks, as the slice `name`. Returns how many were new."""
        require("lance")
        import lance
        from lance.fragment import write_fragments

        rows = with_checks(rows.cast(self._schema_without_check()))
        rows = rows.replace_schema_metadata(self._schema.metadata)
        written = None
        while True:
            new = ~_contains(self._known, key_hashes(rows["key"]))
            if not new.all():
                rows, written = rows.filter(pa.array(new)), None
            if not len(rows):
                return 0
            if written is None:
                written = write_fragments(
                    rows,
                    self._table,
                    schema=self._schema,
                    data_storage_version=DATA_STORAGE_VERSION,
                    storage_options=self._options,
                )
                self._sync(written)
            earlier = [fragment.metadata for fragment in self._table.get_fragments()]
            first = max((fragment.id for fragment in earlier), default=-1) + 1
            for number, fragment in enumerate(written):
                fragment.id = first + number
            operation = lance.LanceOperation.Merge(earlier + written, self._table.lance_schema)
            transaction = lance.Transaction(
                self._table.version, operation, transaction_properties={"strop.slice": name}
            )
            try:
                self._table = lance.LanceDataset.commit(
                    self._table, transaction, storage_options=self._options
                )
            except lance.commit.CommitConflictError:
                self._open(overwrite=False)
                continue
            self._known = _merged(self._known, key_hashes(rows["key"]))
            self._commits += 1
            if self._commits % _CLEAN_EVERY == 0:
                self.clean()
            return len(rows)

    def reject(self, rows: list[dict[str, str]]) -> None:
        """Note images that could not be read: rows of `key`, `source` and `reason`."""
        if not rows:
            return
        table = pa.Table.from_pylist(rows, REJECTS_SCHEMA)
        require("lance").write_dataset(
            table,
            below(self.path, REJECTS),
            mode="append",
            storage_options=self._options,
            data_storage_version=DATA_STORAGE_VERSION,
        )
        self._rejected = _merged(self._rejected, key_hashes(table["key"]))

    def clean(self) -> None:
        """Remove old versions of the table. Their rows are in the newest, too."""
        self._table.cleanup_old_versions(
            older_than=timedelta(0), retain_versions=_KEPT_VERSIONS, delete_unverified=False
        )

    def _schema_without_check(self) -> pa.Schema:
        return self._schema.remove(len(self._schema) - 1)

    def _open(self, overwrite: bool) -> None:
        lance = require("lance")
        mode = "overwrite" if overwrite else "create"
        try:
            if overwrite:
                raise StoreError("", "")
            self._table = open_table(self.path, self._options)
        except StoreError:
            try:
                self._table = lance.write_dataset(
                    self._schema.empty_table(),
                    self.path,
                    mode=mode,
                    storage_options=self._options,
                    data_storage_version=DATA_STORAGE_VERSION,
                )
            except OSError as error:
                if "already exists" not in str(error):  # another writer was faster
                    raise
                self._table = open_table(self.path, self._options)
        self._check()
        keys = self._table.to_table(columns=["key"])["key"]
        self._known = np.sort(key_hashes(keys))
        rejected = [] if self._retry else read_rejects(self.path, self._options)["key"]
        self._rejected = np.sort(key_hashes(pa.array(rejected, pa.string())))

    def _check(self) -> None:
        """Refuse a store of another model, of other lengths or of other columns."""
        found = read_info(self._table.schema, self.path)
        if found.codes != self.info.codes:
            raise StoreError(
                f"The store {self.path} holds programs of the model {found.model} "
                f"({found.codes}), not of {self.info.model} ({self.info.codes}).",
                "Use that model, replace its programs with --overwrite, or keep both with "
                "--as VERSION.",
            )
        if (found.lengths, found.length_rule) != (self.info.lengths, self.info.length_rule):
            raise StoreError(
                f"The lengths in the store {self.path} were chosen by {found.length_rule}, not by "
                f"{self.info.length_rule}.",
                "Give the same options, replace the programs with --overwrite, or keep both with "
                "--as VERSION.",
            )
        if self._table.schema.names != self._schema.names:
            raise StoreError(
                f"The store {self.path} has the columns {', '.join(self._table.schema.names)}, "
                f"not {', '.join(self._schema.names)}.",
                "Give the same --keep, or keep both with --as VERSION.",
            )

    def _sync(self, fragments: list[Any]) -> None:
        """Write the data to the disk before a commit refers to it."""
        for fragment in fragments:
            for file in fragment.files:
                path = Path(self.path) / "data" / file.path
                if path.is_file():
                    descriptor = os.open(path, os.O_RDONLY)
                    try:
                        os.fsync(descriptor)
                    finally:
                        os.close(descriptor)


def _contains(known: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Which hashes are in the sorted `known`: (n,) bool."""
    if not len(known):
        return np.zeros(len(hashes), dtype=bool)
    places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
    return known[places] == hashes


def _merged(known: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    return np.sort(np.concatenate([known, hashes]), kind="stable")
