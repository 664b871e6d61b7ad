"""The Lance tables of a store: opening them, errors of damaged files, and the table of rejects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strop.errors import FormatError, StoreError, StropError
from strop.listing import expand
from strop.optional import require
from strop.store.schema import DAMAGED, damaged_rows

if TYPE_CHECKING:
    import lance

REJECTS = "rejects"
"""The folder of a store with the table of images that could not be read."""

REJECTS_SCHEMA = pa.schema({"key": pa.string(), "source": pa.string(), "reason": pa.string()})

VERSIONS = "versions"
"""The folder of a store with the programs of other models, by name."""


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
