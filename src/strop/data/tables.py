"""Tables with a column of images: Parquet files, Lance datasets, Hugging Face datasets.

An image is the bytes of a file, a path, or a struct of `bytes` and `path` as Hugging Face writes
it. Rows are named by the column `key` of the spec, or by file and number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from strop.data.record import Raw
from strop.data.remote import ImageDataset, find_files, open_file
from strop.errors import DataError, parsing
from strop.listing import expand
from strop.optional import require

_IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp")


class TableDataset(ImageDataset):
    """Rows of a table as records. A subclass reads rows by `_rows`.

    columns  the Arrow type of each other column, which `raw` returns on request
    """

    _names: list[str] | None = None
    _stem: str

    def __init__(self, name: str, where: str, schema: Any, image: str, key: str) -> None:
        self.name = name
        self._where = where
        self._image = image or _image_column(schema, where)
        for column in filter(None, (self._image, key)):
            if column not in schema.names:
                raise DataError(
                    f"{where} has no column {column!r}.", f"It has {', '.join(schema.names)}."
                )
        self._key = key
        self.columns: Mapping[str, Any] = {
            field.name: field.type for field in schema if field.name != self._image
        }

    def names(self) -> Sequence[str]:
        """The name of each record."""
        if self._names is None:
            keys = self._column(self._key) if self._key else range(len(self))
            self._names = [str(key) if self._key else f"{self._stem}/{key:08d}" for key in keys]
        return self._names

    def raw(self, indices: Sequence[int], columns: Sequence[str] = ()) -> list[Raw]:
        """Images as they are stored, with the values of `columns`."""
        rows = self._rows(indices, [self._image, *columns])
        return [(self._source(row), {name: row[name] for name in columns}) for row in rows]

    def _column(self, name: str) -> list[Any]:
        """All values of a column."""
        raise NotImplementedError

    @abstractmethod
    def _rows(self, indices: Sequence[int], columns: list[str]) -> list[dict[str, Any]]: ...

    def _source(self, row: dict[str, Any]) -> str | bytes:
        cell = row[self._image]
        if isinstance(cell, dict):
            cell = cell.get("bytes") or cell.get("path")
        if isinstance(cell, str):
            return cell if Path(cell).is_absolute() else str(Path(self._where).parent / cell)
        return cell if isinstance(cell, bytes) else b""  # reading it reports that it is empty


class ParquetDataset(TableDataset):
    """Rows of Parquet files. One row group of one file is in memory at a time."""

    def __init__(self, path: str, image: str = "", key: str = "") -> None:
        self._paths = find_files(path, ".parquet", "Parquet files")
        self._groups: list[tuple[str, int]] = []  # (file, row group)
        counts: list[int] = []
        self._names = []
        schema = None
        for path in self._paths:
            with _open(path) as file:
                schema = schema or file.schema_arrow
                groups = range(file.num_row_groups)
                self._groups += [(path, group) for group in groups]
                counts += [file.metadata.row_group(group).num_rows for group in groups]
                if not key:
                    rows = range(file.metadata.num_rows)
                    self._names += [f"{Path(path).stem}/{row:08d}" for row in rows]
                elif key in file.schema_arrow.names:
                    self._names += map(str, file.read(columns=[key])[key].to_pylist())
        super().__init__(Path(self._paths[0]).stem, self._paths[0], schema, image, key)
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._read: tuple[Any, Any] = (None, None)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": (None, None)}

    def sources(self) -> Iterator[Path]:
        """The files."""
        return map(Path, self._paths)

    def _rows(self, indices: Sequence[int], columns: list[str]) -> list[dict[str, Any]]:
        rows = []
        for index in indices:
            group = int(np.searchsorted(self._starts, index, side="right")) - 1
            table = self._group(group, tuple(columns))
            rows.append(table.slice(index - int(self._starts[group]), 1).to_pylist()[0])
        return rows

    def _group(self, number: int, columns: tuple[str, ...]) -> Any:
        if self._read[0] != (number, columns):
            path, group = self._groups[number]
            self._read = (None, None)  # before the next is read: it may be large
            with _open(path) as file:
                table = file.read_row_group(group, columns=list(columns))
            self._read = ((number, columns), table)
        return self._read[1]


@contextmanager
def _open(path: str) -> Iterator[Any]:
    import pyarrow.parquet as pq

    unreadable = f"{path} is not a readable Parquet file"
    with parsing(DataError, unreadable, "Download it again."), open_file(path) as stream:
        yield pq.ParquetFile(stream)


class LanceTable(TableDataset):
    """Rows of a Lance dataset."""

    def __init__(self, path: str, image: str = "", key: str = "") -> None:
        self._path = path if "://" in path else str(expand(path))
        self._dataset: Any = None
        dataset = self._open()
        super().__init__(Path(path).stem, self._path, dataset.schema, image, key)
        self._count = dataset.count_rows()
        self._stem = self.name

    def __len__(self) -> int:
        return self._count

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dataset": None}

    def sources(self) -> Iterator[str]:
        """The path and the version of the dataset."""
        yield f"{self._path} {self._open().version}"

    def _open(self) -> Any:
        if self._dataset is None:
            lance = require("lance", DataError)
            unreadable = f"{self._path} is not a readable Lance dataset"
            with parsing(DataError, unreadable, "Check the path."):
                self._dataset = lance.dataset(self._path)
        return self._dataset

    def _column(self, name: str) -> list[Any]:
        column: list[Any] = self._open().to_table(columns=[name])[name].to_pylist()
        return column

    def _rows(self, indices: Sequence[int], columns: list[str]) -> list[dict[str, Any]]:
        unreadable = f"Rows of {self._path} cannot be read"
        with parsing(DataError, unreadable, "Copy the dataset again."):
            rows: list[dict[str, Any]] = self._open().take(list(indices), columns).to_pylist()
        return rows


class HuggingFaceTable(TableDataset):
    """Rows of a Hugging Face dataset, on disk or from the hub."""

    def __init__(self, path: str, split: str = "", image: str = "", key: str = "") -> None:
        datasets = require("datasets", DataError)
        with parsing(DataError, f"The dataset {path} cannot be loaded", "Check its name or path."):
            if Path(path).is_dir() or "://" in path:
                self._dataset = datasets.load_from_disk(path)
            else:
                self._dataset = datasets.load_dataset(path, split=split or None)
        if isinstance(self._dataset, dict):
            splits = ", ".join(self._dataset)
            if split not in self._dataset and (split or len(self._dataset) > 1):
                raise DataError(
                    f"The dataset {path} has the splits {splits}.", f"Name one: hf:{path}?split=..."
                )
            split = split or splits
            self._dataset = self._dataset[split]
        schema = self._dataset.features.arrow_schema
        super().__init__(path, path, schema, image, key)
        if isinstance(self._dataset.features[self._image], datasets.Image):
            raw = datasets.Image(decode=False)
            self._dataset = self._dataset.cast_column(self._image, raw)
        self._stem = split or Path(path).name

    def __len__(self) -> int:
        return len(self._dataset)

    def sources(self) -> Iterator[str]:
        """What `datasets` calls the content of the dataset."""
        yield str(self._dataset._fingerprint)

    def _column(self, name: str) -> list[Any]:
        return list(self._dataset[name])

    def _rows(self, indices: Sequence[int], columns: list[str]) -> list[dict[str, Any]]:
        rows = self._dataset.select_columns(columns)[list(indices)]
        return [{name: rows[name][i] for name in columns} for i in range(len(indices))]


def _image_column(schema: Any, where: str) -> str:
    import pyarrow as pa

    def holds_images(field: Any) -> bool:
        kind = field.type
        if pa.types.is_struct(kind):
            return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
        return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)

    if b"strop" in (schema.metadata or {}):
        raise DataError(
            f"{where} holds programs, not images.",
            "Name the images themselves. `strop decode` turns programs into previews.",
        )
    named = [name for name in _IMAGE_COLUMNS if name in schema.names]
    candidates = named or [field.name for field in schema if holds_images(field)]
    if len(candidates) != 1 and not named:
        raise DataError(
            f"{where} has no column that is clearly of images ({', '.join(schema.names)}).",
            "Name it: parquet:PATH?image=COLUMN.",
        )
    return candidates[0]
