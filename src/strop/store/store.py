"""A store: the programs of a corpus as a Lance dataset, one row an image."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strop.errors import FormatError, StoreError, StropError, expect, parsing
from strop.files import PathLike
from strop.listing import expand
from strop.model.checkpoint import load
from strop.model.tokenizer import Tokenizer
from strop.optional import require
from strop.program import SUFFIXES, Program
from strop.store import pictures
from strop.store import search as searching
from strop.store.fields import Fields
from strop.store.index import Index
from strop.store.schema import (
    CHECK,
    COLUMNS,
    DAMAGED,
    VERSIONS,
    NoStoreError,
    below,
    damage,
    open_table,
    read_info,
    read_programs,
    read_rejects,
    reading,
)

RowIndex = int | str | slice | Sequence[int] | np.ndarray
"""What picks rows: see `Store.rows_of`."""


def open_store(
    path: PathLike, *, version: str | None = None, model: Tokenizer | str | None = None
) -> Store:
    """Open a store that `strop encode DATA -o STORE` wrote.

    path     a folder, or a URL that Lance reads, such as s3://bucket/photos.lance; its credentials
             come from the environment
    version  the programs of another model, written with `--as VERSION`
    model    the tokenizer that interprets the programs, or its name; by default the name that the
             store holds
    """
    tokenizer = load(model) if isinstance(model, str) else model
    where = str(path) if version is None else below(str(path), f"{VERSIONS}/{version}")
    try:
        return Store(where, model=tokenizer)
    except NoStoreError as error:
        if version is None:
            raise
        raise NoStoreError(
            f"The store {path} has no version {version!r}.",
            f"Write it with: strop encode DATA -o {path} --as {version}",
        ) from error


class Store:
    """The programs of a corpus, as they were when it was opened.

    path     folder or URL
    info     the model that wrote the programs, N, K, and the length rule
    dataset  the `lance.LanceDataset`; its rows are in the order in which they were written

    index    the search index, opened at first use

    Each fragment of the table is verified when it is first read.
    """

    def __init__(self, path: str, *, model: Tokenizer | None = None) -> None:
        self.path = path
        self.dataset = open_table(path)
        self.info = read_info(self.dataset.schema, path)
        self._model: Tokenizer | None = None
        self._verified: set[int] = set()
        self._process = os.getpid()
        self.index: Index | searching.Memory | None = None
        counts = [fragment.count_rows() for fragment in self.dataset.get_fragments()]
        self._starts = np.cumsum([0, *counts], dtype=np.int64)  # the first row of each fragment
        if model is not None:
            self.model = model

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: RowIndex) -> Program:
        """One program for a number or a key, else the batch of the rows that `index` picks."""
        programs = self.programs(self.rows_of(index))
        return programs[0] if isinstance(index, int | np.integer | str) else programs

    def __iter__(self) -> Iterator[Program]:
        for start in range(0, len(self), 1024):
            yield from self[start : start + 1024]

    def __repr__(self) -> str:
        return f"Store of {len(self):,} programs of {self.info.model} at {self.path}"

    def __getstate__(self) -> dict[str, Any]:
        # The dataset of another process would share its threads: each process opens its own.
        return {"path": self.path, "model": self._model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def keys(self) -> list[str]:
        """The key of each row."""
        return self.read(columns=["key"])["key"].to_pylist()

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the columns that were kept from the data."""
        return tuple(name for name in self.columns if name not in COLUMNS)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(name for name in self.dataset.schema.names if name != CHECK)

    @property
    def rejects(self) -> pa.Table:
        """The images that could not be read: `key`, `source` and `reason`."""
        return read_rejects(self.path)

    @property
    def model(self) -> Tokenizer:
        """The tokenizer that wrote the programs, loaded at first use by the name in the store."""
        if self._model is None:
            try:
                self.model = load(self.info.model)
            except StropError as error:
                raise StoreError(
                    f"The model {self.info.model!r} of the store {self.path} cannot be loaded. "
                    f"{error.problem}",
                    "Give the model: --model, or open_store(path, model=strop.load(...)).",
                ) from error
        assert self._model is not None
        return self._model

    @model.setter
    def model(self, tokenizer: Tokenizer) -> None:
        if not tokenizer.wrote(self.info.codes):
            raise StoreError(
                f"The programs of {self.path} were written by the model {self.info.model} "
                f"({self.info.codes}), not by this one ({tokenizer.identity.codes}).",
                "Give the model that wrote them.",
            )
        self._model = tokenizer
        self.index = None

    def rows_of(self, index: RowIndex) -> np.ndarray:
        """The rows (n,) int64 that a number, a key, a slice, numbers or a mask of all rows pick."""
        if isinstance(index, str):
            return np.array([self.row_of(index)])
        if isinstance(index, slice):
            return np.arange(*index.indices(len(self)))
        problem = f"{index!r:.80} is not the number of a row, nor a list of numbers"
        remedy = "Give numbers, a slice, a key, or a mask with one entry per row."
        with parsing(StoreError, problem, remedy):
            picked = np.asarray(index)
        if picked.dtype == bool and picked.shape == (len(self),):
            return np.flatnonzero(picked)
        # Among numbers, NumPy takes True for 1.
        truths = isinstance(index, list | tuple) and any(isinstance(each, bool) for each in index)
        whole = picked.dtype.kind in "iu" or not picked.size
        if truths or not whole or picked.ndim > 1:
            raise StoreError(f"{problem}.", remedy)
        return np.atleast_1d(picked).astype(np.int64)

    def programs(self, rows: RowIndex) -> Program:
        """The programs at `rows`, in that order, with their keys as names."""
        table = self.read(rows, columns=["key", "codes", "length", "quality"])
        if not len(table):
            raise StoreError("This picks no program.", f"The store has {len(self):,}.")
        return read_programs(table, self.info, self.path)

    def read(self, rows: RowIndex | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of the table at `rows`, in that order, or all of them."""
        names = list(self.columns if columns is None else columns)
        for name in names:
            if name not in self.columns:
                raise StoreError(
                    f"The store has no column {name!r}.", f"It has {', '.join(self.columns)}."
                )
        if rows is None:
            self._verify(range(len(self._starts) - 1))
            with reading(self.path):
                return self.dataset.to_table(columns=names)
        wanted = self.rows_of(rows)
        count = len(self)
        wrong = wanted[(wanted < -count) | (wanted >= count)]
        if len(wrong):
            raise StoreError(
                f"There is no row {wrong[0]}.", f"The store {self.path} has {count:,} rows."
            )
        wanted = wanted % max(count, 1)
        self._verify(np.unique(np.searchsorted(self._starts, wanted, side="right") - 1))
        with reading(self.path):
            return self.dataset.take(wanted.tolist(), columns=names)

    def batches(
        self, columns: Sequence[str] | None = None, batch: int = 8192
    ) -> pa.RecordBatchReader:
        """All rows in order as Arrow batches, in bounded memory."""
        names = list(self.columns if columns is None else columns)
        schema = pa.schema([self.dataset.schema.field(name) for name in names])

        def read() -> Iterator[pa.RecordBatch]:
            for number, fragment in enumerate(self.dataset.get_fragments()):
                self._verify([number])
                with reading(self.path):
                    yield from fragment.to_batches(columns=names, batch_size=batch)

        return pa.RecordBatchReader.from_batches(schema, read())

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows as an Arrow table."""
        return self.read(columns=columns)

    def to_hf(self, columns: Sequence[str] | None = None) -> Any:
        """All rows as a `datasets.Dataset`."""
        return require("datasets", StoreError).Dataset(self.to_arrow(columns))

    def fields(self, **options: Any) -> Fields:
        """A PyTorch dataset of `{"field", "key", kept columns}`, interpreted as it is read.

        See `strop.store.fields.Fields` for the options, such as `batch` and `shuffle`.
        """
        return Fields(self, **options)

    search = searching.search
    picture = pictures.picture

    def row_of(self, key: str) -> int:
        """The row of a key."""
        expect(key, str, "a key", StoreError, "Give the name of an image, as in `store.keys`.")
        start = 0
        for batch in self.batches(["key"]):
            place = pc.index(batch["key"], key).as_py()
            if place >= 0:
                return start + place
            start += len(batch)
        raise StoreError(
            f"The store {self.path} has no key {key!r}.",
            "`store.keys` and `strop store export` list its keys.",
        )

    def sql(self, query: str) -> pa.Table:
        """The result of a DuckDB query on the tables `programs` and `rejects`.

        `store.sql("select key, length from programs where length > 40 order by quality")`. The
        query cannot reach files or the network.
        """
        duckdb = require("duckdb", StoreError)
        with duckdb.connect(config={"enable_external_access": "false"}) as connection:
            connection.register("programs", _Stream(self))
            connection.register("rejects", self.rejects)
            try:
                return connection.sql(query).to_arrow_table()
            except duckdb.Error as error:
                raise StoreError(f"The query failed: {error}", "Correct the query.") from error

    def _verify(self, numbers: Sequence[int] | np.ndarray) -> None:
        """Compare the rows of fragments with their checks, once; `FormatError` if any differs."""
        if os.getpid() != self._process:  # Lance crashes or hangs
            raise StoreError(
                f"The store {self.path} was opened before this process was forked.",
                'Open it in this process, or give the DataLoader multiprocessing_context="spawn". '
                "`store.fields` reads ahead without a DataLoader.",
            )
        fragments = None
        for number in map(int, numbers):
            if number in self._verified:
                continue
            fragments = fragments or self.dataset.get_fragments()
            problem = damage(fragments[number])
            if problem is not None:
                raise FormatError(f"{self.path}: {problem}", DAMAGED)
            self._verified.add(number)


class _Stream:
    """The rows of a store as a stream that DuckDB can read more than once."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._store.batches().__arrow_c_stream__(requested_schema)


def is_store(path: PathLike) -> bool:
    """Whether an output of this name is a store: a URL, a folder, or a name with `.lance`."""
    text = str(path)
    if Path(text).suffix.lower() in SUFFIXES:
        return False
    return text.endswith((".lance", "/")) or "://" in text or expand(text).is_dir()
