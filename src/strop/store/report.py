"""What a store holds, whether it is sound, and its programs as one file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from strop.errors import FormatError, StoreError
from strop.files import PathLike, atomic_path, format_tag
from strop.program import FORMAT as PROGRAM_FORMAT
from strop.program import SUFFIXES
from strop.progress import Progress, no_progress
from strop.store.index import find_index
from strop.store.schema import damage, key_hashes, read_programs
from strop.store.store import Store


def summary(store: Store) -> dict[str, Any]:
    """Counts, bytes, lengths, qualities and rejects of a store, ready for JSON."""
    lengths = np.zeros(store.info.capacity + 1, dtype=np.int64)
    qualities = []
    for batch in store.batches(["length", "quality"]):
        lengths += np.bincount(batch["length"].to_numpy(), minlength=len(lengths))
        qualities.append(batch["quality"].drop_null().to_numpy())
    quality = np.concatenate([np.zeros(0, np.float32), *qualities])
    count = len(store)
    size = sum(
        file.file_size_bytes or 0
        for fragment in store.dataset.get_fragments()
        for file in fragment.metadata.files
    )
    indexed = 0
    with suppress(FormatError):  # a damaged index says nothing of the programs
        index = find_index(store)
        indexed = 0 if index is None else index.rows
    return {
        "store": store.path,
        "model": store.info.model,
        "identity": store.info.codes,
        "codebook_size": store.info.codebook_size,
        "capacity": store.info.capacity,
        "length_rule": json.loads(store.info.length_rule),
        "programs": count,
        "rejects": store.rejects.num_rows,
        "indexed": indexed,
        "columns": list(store.columns),
        "fragments": len(store.dataset.get_fragments()),
        "bytes": size,
        "bytes_per_image": round(size / count, 1) if count else None,
        "length": _spread(np.repeat(np.arange(len(lengths)), lengths)),
        "quality": _spread(quality),
    }


def check(store: Store, progress: Progress = no_progress) -> dict[str, Any]:
    """Verify every row. The result names damaged files, repeated keys and impossible programs."""
    problems = []
    fragments = store.dataset.get_fragments()
    good = 0
    for number, fragment in enumerate(fragments):
        problem = damage(fragment)
        if problem is None:
            table = fragment.to_table()
            try:
                if len(table):
                    read_programs(table, store.info, store.path)
                good += len(table)
            except FormatError as error:
                problem = str(error)
        if problem is not None:
            problems.append(problem)
        progress("checking", number + 1, len(fragments))
    if not problems:
        parts = [key_hashes(batch["key"]) for batch in store.batches(["key"])]
        repeated = good - len(np.unique(np.concatenate([np.zeros(0, np.uint64), *parts])))
        if repeated:
            problems.append(f"{repeated} keys occur more than once.")
    return {"store": store.path, "programs": len(store), "good": good, "problems": problems}


def export(store: Store, path: PathLike, progress: Progress = no_progress) -> int:
    """Write all programs to a `.parquet` or `.jsonl` file that `Program.load` reads.

    A Parquet file has the other columns of the store, too, and is written in bounded memory.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise StoreError(
            f"{Path(path).name} is not a file for programs.",
            f"Name it {' or '.join(SUFFIXES)}, or .strop with --entropy-coded.",
        )
    if not len(store):
        raise StoreError(f"The store {store.path} has no programs.", "Encode some images.")
    if suffix == ".jsonl":
        store[:].save(path)
        return len(store)
    write_tables(path, _program_rows(store, progress))
    return len(store)


def write_tables(path: PathLike, tables: Iterator[pa.Table], **options: Any) -> None:
    """Write a Parquet file of at least one table, holding one of them at a time."""
    import pyarrow.parquet as pq

    first = next(tables)
    options |= {"write_page_checksum": True}
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, first.schema, **options) as file,
    ):
        for table in chain([first], tables):
            file.write_table(table)


def _program_rows(store: Store, progress: Progress) -> Iterator[pa.Table]:
    """The rows of a store with the columns of a file of programs."""
    header = {
        "format": format_tag("program", PROGRAM_FORMAT),
        "codebook_size": store.info.codebook_size,
        "model": store.info.codes,
    }
    others = [name for name in store.columns if name not in ("key", "codes", "length")]
    written = 0
    for batch in store.batches(batch=1 << 16):
        table = pa.Table.from_batches([batch])
        rows = read_programs(table, store.info, store.path).to_arrow()
        rows = rows.select(["name", "length", "codes", "rest", "erased"])
        for name in others:
            rows = rows.append_column(name, table[name])
        yield rows.replace_schema_metadata({"strop": json.dumps(header)})
        written += len(rows)
        progress("exporting", written, len(store))


def _spread(values: np.ndarray) -> dict[str, float] | None:
    if not len(values):
        return None
    names = ("min", "p5", "median", "p95", "max")
    shown = dict(zip(names, np.percentile(values, (0, 5, 50, 95, 100)), strict=True))
    shown = {"mean": values.mean(), **shown}
    return {name: round(float(value), 4) for name, value in shown.items()}
