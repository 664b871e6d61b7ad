"""Programs as an entropy-coded file: the codes of a prior's range coder, in Parquet.

A row is a block of programs: one stream of bytes with their lengths and codes, and a list for each
other column. The metadata names the model and the prior, without which a file cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from strop.analysis.prior import TENSORS, Prior, load_prior
from strop.analysis.program_coding import decode_programs, encode_programs
from strop.errors import FormatError, StoreError, parsing
from strop.files import PathLike, check_format, format_tag
from strop.identity import of_tensors
from strop.program import Program
from strop.progress import Progress, no_progress
from strop.store.report import write_tables
from strop.store.schema import read_programs
from strop.store.store import Store

SUFFIX = ".strop"
FORMAT = 1
BLOCK = 4096
METADATA = b"strop"
STREAM, COUNT = "programs", "count"
"""The columns of every file: a stream of bytes, and how many programs are in it."""


def export_coded(
    store: Store,
    path: PathLike,
    *,
    prior: PathLike | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Write all programs of a store to a `.strop` file; return counts and bytes, ready for JSON.

    prior  a file of `Prior.to_bytes`; by default that of the bundled model which wrote the
           programs
    """
    if Path(path).suffix.lower() != SUFFIX:
        raise StoreError(f"{Path(path).name} is not an entropy-coded file.", f"Name it *{SUFFIX}.")
    if not len(store):
        raise StoreError(f"The store {store.path} has no programs.", "Encode some images.")
    coder = load_prior(prior or store.info.model)
    header = {
        "format": format_tag("coded", FORMAT),
        "model": store.info.model,
        "codes": store.info.codes,
        "prior": _digest(coder),
    }
    others = [name for name in store.columns if name not in ("codes", "length")]
    size = written = 0
    bits = 0.0

    def blocks() -> Iterator[pa.Table]:
        nonlocal size, written, bits
        for batch in store.batches(batch=BLOCK):
            table = pa.Table.from_batches([batch])
            program = read_programs(table, store.info, store.path)
            stream = encode_programs(program, coder)
            row = {STREAM: pa.array([stream]), COUNT: pa.array([len(table)])}
            ends = pa.array([0, len(table)], pa.int32())
            for name in others:
                row[name] = pa.ListArray.from_arrays(ends, table[name].combine_chunks())
            yield pa.table(row).replace_schema_metadata({METADATA: json.dumps(header)})
            written, size = written + len(table), size + len(stream)
            bits += float(program.bits.sum())
            progress("exporting", written, len(store))

    write_tables(path, blocks(), compression="zstd")
    return {
        "programs": written,
        "bytes_per_image": size / written,
        "of_fixed_rate": 8 * size / bits,
    }


def read_coded(path: PathLike, *, prior: PathLike | None = None) -> Program:
    """All programs of a `.strop` file, with names and qualities; `FormatError` if it is damaged."""
    with parsing(FormatError, f"{path} holds no entropy-coded programs", "Export the store again."):
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            header = json.loads((file.schema_arrow.metadata or {}).get(METADATA, b"{}"))
            check_format(header.get("format"), "coded", FORMAT, path)
            coder = load_prior(prior or header["model"])
            if _digest(coder) != header["prior"]:
                raise FormatError(
                    f"{path} was written with another prior of {header['model']}.",
                    "Give the prior that wrote it, or use the release of strop that did.",
                )
            columns = [STREAM, COUNT, "key", "quality"]
            rows = file.read(columns=columns).to_pylist()
        programs = [decode_programs(row[STREAM], row[COUNT], coder) for row in rows]
        program = Program.cat(programs).named([name for row in rows for name in row["key"]])
        quality = [each for row in rows for each in row["quality"]]
        known = None if None in quality else torch.tensor(quality, dtype=torch.float32)
        return replace(program, quality=known)


def _digest(prior: Prior) -> str:
    return of_tensors({name: getattr(prior, name) for name in TENSORS})
