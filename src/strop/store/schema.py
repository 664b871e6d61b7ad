"""The Lance tables of a store: columns, metadata, a check value for each row, errors of damage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from strop.config import from_dict, to_dict
from strop.errors import ConfigError, FormatError, StoreError, StropError, parsing
from strop.files import check_format, format_tag
from strop.identity import digest
from strop.listing import expand
from strop.optional import require
from strop.program import Program
from strop.random import mix

if TYPE_CHECKING:
    import lance

FORMAT = 1
DATA_STORAGE_VERSION = "2.1"
"""The Lance file format. Since 2.1 integers are packed into bits: 10 bits for 1,024 codes."""

METADATA = b"strop"
MAX_CODES = 2**16
CHECK = "check"

COLUMNS: Mapping[str, pa.DataType] = {
    "key": pa.string(),
    "codes": pa.list_(pa.uint16()),
    "length": pa.uint16(),
    "quality": pa.float32(),
    "width": pa.int32(),
    "height": pa.int32(),
    "source": pa.string(),
}
"""The columns of every store. Columns that are kept from the data follow, then `CHECK`."""

REJECTS = "rejects"
"""The folder of a store with the table of images that could not be read."""

REJECTS_SCHEMA = pa.schema({"key": pa.string(), "source": pa.string(), "reason": pa.string()})

VERSIONS = "versions"
"""The folder of a store with the programs of other models, by name."""

DAMAGED = "The store is damaged; run `strop store check` on it, or encode the images again."


@dataclass(frozen=True, kw_only=True)
class StoreInfo:
    """What a store says about its programs.

    model          name or path of the model that wrote them
    codes          `identity.codes` of that model
    lengths        `identity.lengths` of that model
    codebook_size  N
    capacity       K: how many codes a program of the model has at most
    length_rule    how lengths were chosen, as JSON; programs of two rules are not mixed
    """

    model: str
    codes: str
    lengths: str
    codebook_size: int
    capacity: int
    length_rule: str = field(default="{}")

    def __post_init__(self) -> None:
        if not 1 <= self.codebook_size <= MAX_CODES:
            raise StoreError(
                f"A codebook of {self.codebook_size:,} codes does not fit a store.",
                f"A store holds codes of 16 bits, {MAX_CODES:,} at most.",
            )

    def to_metadata(self) -> dict[bytes, bytes]:
        """The metadata of the table's schema."""
        values = {"format": format_tag("store", FORMAT), **to_dict(self)}
        return {METADATA: json.dumps({**values, "digest": digest(values)}).encode()}


def read_info(schema: pa.Schema, source: object) -> StoreInfo:
    """What the schema of a table says; `FormatError` if it is not the table of a store."""
    damaged = f"The metadata of the store {source} is damaged"
    with parsing(FormatError, damaged, "Encode the images again."):
        values = json.loads((schema.metadata or {}).get(METADATA, b"{}"))
        stated = values.pop("digest", None)  # stores of earlier versions have none
        if stated not in (None, digest(values)):
            raise ValueError("its digest is wrong")
        check_format(values.pop("format", None), "store", FORMAT, source)
        try:
            info = from_dict(StoreInfo, values, "store")
        except (ConfigError, StoreError) as error:
            raise ValueError(error.problem) from error
    for name, kind in {**COLUMNS, CHECK: pa.uint32()}.items():
        if name not in schema.names or schema.field(name).type != kind:
            raise FormatError(
                f"The store {source} has no column {name} of type {kind}.",
                "The store is damaged; encode the images again.",
            )
    return info


def make_schema(info: StoreInfo, kept: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema of a store that keeps the columns `kept` of its data."""
    fields = {**COLUMNS, **kept, CHECK: pa.uint32()}
    if len(fields) != len(COLUMNS) + len(kept) + 1:
        clash = next(name for name in kept if name in COLUMNS or name == CHECK)
        raise StoreError(
            f"A kept column cannot be named {clash!r}.",
            f"A store has its own columns {', '.join(COLUMNS)} and {CHECK}; rename yours.",
        )
    return pa.schema(fields, metadata=info.to_metadata())


def read_programs(table: pa.Table, info: StoreInfo, source: object) -> Program:
    """The programs in the columns `codes`, `length` and, if there, `key` and `quality`."""
    lists = _one_chunk(table["codes"])
    lengths = torch.from_numpy(_one_chunk(table["length"]).to_numpy().astype(np.int64))
    offsets = lists.offsets.to_numpy()
    flat = lists.values.to_numpy(zero_copy_only=False)
    if not np.array_equal(np.diff(offsets), lengths.numpy()):
        raise FormatError(f"The rows of {source} do not agree in length.", DAMAGED)
    codes = torch.zeros(len(table), info.capacity, dtype=torch.int64)
    active = torch.arange(info.capacity) < lengths[:, None]
    try:
        codes[active] = torch.from_numpy(flat[offsets[0] : offsets[-1]].astype(np.int64))
        known = "quality" in table.column_names and not table["quality"].null_count
        return Program(
            quality=torch.tensor(table["quality"].to_numpy()) if known else None,
            codes=codes,
            lengths=lengths,
            codebook_size=info.codebook_size,
            model=info.codes,
            names=tuple(table["key"].to_pylist()) if "key" in table.column_names else (),
        )
    except (RuntimeError, ValueError) as error:
        raise FormatError(f"{source} holds impossible programs ({error}).", DAMAGED) from error


def with_checks(table: pa.Table) -> pa.Table:
    """The table with the column `CHECK`: (n,) uint32, a hash of all other values of a row."""
    return table.append_column(CHECK, pa.array(row_checks(table)))


def damaged_rows(table: pa.Table) -> np.ndarray:
    """The numbers of the rows whose values do not have the hash that was written with them."""
    return np.flatnonzero(row_checks(table) != _one_chunk(table[CHECK]).to_numpy())


def row_checks(table: pa.Table) -> np.ndarray:
    """A hash of each row over all columns but `CHECK`: (n,) uint32."""
    total = np.zeros(len(table), dtype=np.uint64)
    for number, name in enumerate(name for name in table.column_names if name != CHECK):
        total += _hashes(_one_chunk(table[name])) * _weights(np.array([number], dtype=np.uint64))
    return (mix(total) >> np.uint64(32)).astype(np.uint32)


def key_hashes(keys: Any) -> np.ndarray:
    """A hash of each key: (n,) uint64. Two of a billion keys are equal with a chance of 3 %."""
    return _hashes(_one_chunk(keys))


def _hashes(values: pa.Array) -> np.ndarray:
    """A hash of each value: (n,) uint64, the sum of its parts times weights of their positions."""
    kind = values.type
    if pa.types.is_null(kind):
        return np.zeros(len(values), dtype=np.uint64)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _valid(values, _text_hashes(values.cast(pa.binary())))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = values.offsets.to_numpy().astype(np.int64)
        parts = _hashes(values.values)[offsets[0] : offsets[-1]]
        return _valid(values, _segments(parts, offsets - offsets[0]))
    if pa.types.is_boolean(kind):
        return _valid(values, values.cast(pa.uint8()).fill_null(0).to_numpy().astype(np.uint64))
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        numbers = values.fill_null(0).to_numpy()
        bits = numbers.view(np.dtype(f"u{numbers.itemsize}")).astype(np.uint64)
        return _valid(values, bits)
    raise StoreError(
        f"A column of {kind} cannot be kept.",
        "Keep columns of text, bytes, numbers and truth values, or lists of these.",
    )


def _text_hashes(values: pa.Array) -> np.ndarray:
    if not len(values):
        return np.zeros(0, dtype=np.uint64)
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int32)[
        values.offset : values.offset + len(values) + 1
    ].astype(np.int64)
    content = values.buffers()[2]
    everything = np.frombuffer(content, dtype=np.uint8) if content else np.zeros(0, dtype=np.uint8)
    return _segments(everything[offsets[0] : offsets[-1]].astype(np.uint64), offsets - offsets[0])


def _segments(parts: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Hashes of consecutive parts: parts (m,) uint64 and offsets (n + 1,) to (n,)."""
    counts = np.diff(offsets)
    position = np.arange(len(parts)) - np.repeat(offsets[:-1], counts)
    # One is added to distinguish a zero from a missing value. Sums wrap around.
    weighted = (parts + np.uint64(1)) * _weights(position.astype(np.uint64))
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(weighted, dtype=np.uint64)])
    return sums[offsets[1:]] - sums[offsets[:-1]]


def _valid(values: pa.Array, hashes: np.ndarray) -> np.ndarray:
    """Hashes in which a null differs from every value."""
    return np.where(values.is_valid().to_numpy(zero_copy_only=False), mix(hashes), 0)


def _weights(position: np.ndarray) -> np.ndarray:
    return mix(position) | np.uint64(1)


def _one_chunk(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


class NoStoreError(StoreError):
    """There is no store at a path."""


def open_table(path: str) -> lance.LanceDataset:
    """The Lance dataset at `path`; `StoreError` if there is none."""
    lance = require("lance", StoreError)
    if "://" not in path and expand(path).is_file():
        raise StoreError(
            f"{path} is a file, not a store.",
            "A store is a folder. Program.load, `strop interpret` and `strop decode` read files "
            "of programs.",
        )
    try:
        with reading(path):
            table = lance.dataset(path)
            _ = table.schema  # is read from the file only now, and may be damaged
            return table
    except FormatError as error:
        if isinstance(error.__cause__, ValueError) and "not found" in str(error.__cause__).lower():
            name = path.rstrip("/")
            if "://" not in path and expand(path).is_dir():
                name += ".lance"  # a folder of something else, such as images
            raise NoStoreError(
                f"There is no store at {path}.", f"Write one with: strop encode DATA -o {name}"
            ) from error
        raise


def read_rejects(path: str) -> pa.Table:
    """The images that could not be read, each once: `key`, `source` and `reason`."""
    try:
        table = open_table(below(path, REJECTS)).to_table()
    except StoreError:
        return REJECTS_SCHEMA.empty_table()
    # An encoder that was killed may have written a reject twice. The last one counts.
    latest = {(row["key"], row["source"]): number for number, row in enumerate(table.to_pylist())}
    return table.take(pa.array(sorted(latest.values()), pa.int64()))


def damage(fragment: Any) -> str | None:
    """What is wrong with the rows of a fragment, with the name of its file, or None."""
    files = ", ".join(str(file.path) for file in fragment.metadata.files)
    try:
        with reading(files):
            rows = damaged_rows(fragment.to_table())
    except FormatError as error:
        return error.problem
    if not len(rows):
        return None
    return f"{len(rows)} of {fragment.count_rows()} rows in data/{files} were changed."


@contextmanager
def reading(source: str, remedy: str = DAMAGED) -> Iterator[None]:
    """Convert the exceptions of Lance to `FormatError`."""
    try:
        yield
    except StropError:
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # on damaged files Lance also panics, which is no Exception
        raise FormatError(f"{source} cannot be read ({error}).", remedy) from error


def below(path: str, name: str) -> str:
    """The path of something in the folder of a store."""
    return f"{path.rstrip('/')}/{name}"
