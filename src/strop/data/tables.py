"""Tables with a column of images: Parquet files, Lance datasets, Hugging Face datasets.

An image is the bytes of a file, a path, or a struct of `bytes` and `path` as Hugging Face writes
it. Rows are named by the column `key` of the spec, or by file and number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from strop.data.layout import found
from strop.data.record import Raw, Record
from strop.errors import DataError
from strop.images import read_image
from strop.listing import expand, list_files

_IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp")


class TableDataset:
    """Rows of a table as records. A subclass reads rows by `_rows`.

    columns  the Arrow type of each other column, which `raw` returns on request
    """

    in_main_process = True  # its libraries have threads, which do not survive a fork
    classes: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()

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

    def __getitem__(self, index: int) -> Record:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        ((source, _),) = self.raw([index % len(self)])
        name = self.names()[index]
        assert isinstance(source, str | bytes)
        return Record(image=read_image(source, name), name=name)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def names(self) -> Sequence[str]:
        """The name of each record."""

    def raw(self, indices: Sequence[int], columns: Sequence[str] = ()) -> list[Raw]:
        """Images as they are stored, with the values of `columns`."""
        rows = self._rows(indices, [self._image, *columns])
        return [(self._source(row), {name: row[name] for name in columns}) for row in rows]

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

    def __init__(self, paths: Sequence[str], image: str = "", key: str = "") -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._paths = list(paths)
        self._groups: list[tuple[int, int]] = []  # (file, row group)
        counts = []
        self._names: list[str] = []
        schema = None
        for number, path in enumerate(paths):
            try:
                with _open(path) as stream:
                    file = pq.ParquetFile(stream)
                    schema = schema or file.schema_arrow
                    groups = [file.metadata.row_group(g) for g in range(file.num_row_groups)]
                    if key and key in file.schema_arrow.names:
                        keys = file.read(columns=[key])[key].to_pylist()
                        self._names += map(str, keys)
            except (pa.ArrowException, OSError) as error:
                raise DataError(
                    f"{path} is not a readable Parquet file ({error}).", "Download it again."
                ) from error
            self._groups += [(number, group) for group in range(len(groups))]
            counts += [group.num_rows for group in groups]
            if not key:
                stem = Path(path).stem
                rows = sum(group.num_rows for group in groups)
                self._names += [f"{stem}/{row:08d}" for row in range(rows)]
        super().__init__(Path(paths[0]).stem, paths[0], schema, image, key)
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._read: tuple[Any, Any] = (None, None)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": (None, None)}

    def names(self) -> Sequence[str]:
        """The name of each record."""
        return self._names

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
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._read[0] != (number, columns):
            file, group = self._groups[number]
            self._read = (None, None)  # before the next is read: it may be large
            try:
                with _open(self._paths[file]) as stream:
                    table = pq.ParquetFile(stream).read_row_group(group, columns=list(columns))
            except (pa.ArrowException, OSError) as error:
                raise DataError(
                    f"Row group {group} of {self._paths[file]} cannot be read ({error}).",
                    "Download the file again.",
                ) from error
            self._read = ((number, columns), table)
        return self._read[1]


class LanceTable(TableDataset):
    """Rows of a Lance dataset."""

    def __init__(self, path: str, image: str = "", key: str = "") -> None:
        self._path = path
        self._dataset: Any = None
        dataset = self._open()
        super().__init__(Path(path).stem, path, dataset.schema, image, key)
        self._count = dataset.count_rows()
        self._names: list[str] | None = None

    def __len__(self) -> int:
        return self._count

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dataset": None}

    def names(self) -> Sequence[str]:
        """The name of each record."""
        if self._names is None:
            if self._key:
                table = self._open().to_table(columns=[self._key])
                self._names = [str(key) for key in table[self._key].to_pylist()]
            else:
                self._names = [f"{self.name}/{row:08d}" for row in range(self._count)]
        return self._names

    def sources(self) -> Iterator[str]:
        """The path and the version of the dataset."""
        yield f"{self._path} {self._open().version}"

    def _open(self) -> Any:
        if self._dataset is None:
            lance = _need("lance")
            try:
                self._dataset = lance.dataset(self._path)
            except (ValueError, OSError) as error:
                raise DataError(
                    f"{self._path} is not a readable Lance dataset ({error}).", "Check the path."
                ) from error
        return self._dataset

    def _rows(self, indices: Sequence[int], columns: list[str]) -> list[dict[str, Any]]:
        try:
            rows: list[dict[str, Any]] = self._open().take(list(indices), columns).to_pylist()
        except (ValueError, OSError) as error:
            raise DataError(
                f"Rows of {self._path} cannot be read ({error}).", "Copy the dataset again."
            ) from error
        return rows


class HuggingFaceTable(TableDataset):
    """Rows of a Hugging Face dataset, on disk or from the hub."""

    def __init__(self, path: str, split: str = "", image: str = "", key: str = "") -> None:
        datasets = _need("datasets")
        try:
            if Path(path).is_dir() or "://" in path:
                self._dataset = datasets.load_from_disk(path)
            else:
                self._dataset = datasets.load_dataset(path, split=split or None)
        except Exception as error:  # the hub raises nearly everything
            raise DataError(
                f"The dataset {path} cannot be loaded ({error}).", "Check its name or path."
            ) from error
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
        self._split = split or Path(path).name

    def __len__(self) -> int:
        return len(self._dataset)

    def names(self) -> Sequence[str]:
        """The name of each record."""
        if self._key:
            return [str(key) for key in self._dataset[self._key]]
        return [f"{self._split}/{row:08d}" for row in range(len(self))]

    def sources(self) -> Iterator[str]:
        """What `datasets` calls the content of the dataset."""
        yield str(self._dataset._fingerprint)

    def _rows(self, indices: Sequence[int], columns: list[str]) -> list[dict[str, Any]]:
        rows = self._dataset.select_columns(columns)[list(indices)]
        return [{name: rows[name][i] for name in columns} for i in range(len(indices))]


def parquet(path: str, image: str = "", key: str = "") -> ParquetDataset:
    """The rows of one Parquet file, of a folder of them, or of those that a glob or URL names."""
    import glob

    if "://" in path:
        from strop.data.remote import match

        paths = match(path, (".parquet",))
    elif expand(path).is_dir():
        paths = [str(expand(path) / name) for name in list_files(expand(path), {".parquet"})]
    else:
        paths = sorted(glob.glob(str(expand(path))))  # noqa: PTH207 (an absolute pattern)
    if not paths:
        raise DataError(f"No Parquet file matches {path}.", f"Found {found(expand(path).parent)}.")
    return ParquetDataset(paths, image, key)


def lance_table(path: str, image: str = "", key: str = "") -> LanceTable:
    """The rows of a Lance dataset."""
    return LanceTable(path if "://" in path else str(expand(path)), image, key)


def hugging_face(path: str, split: str = "", image: str = "", key: str = "") -> HuggingFaceTable:
    """The rows of a dataset that `save_to_disk` wrote, or of one on the hub."""
    return HuggingFaceTable(path, split, image, key)


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


def _open(path: str) -> Any:
    if "://" in path:
        from strop.data.remote import open_url

        return open_url(path)
    return Path(path).open("rb")


def _need(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise DataError(
            f"Reading this dataset needs {package}.", "Install it with: pip install 'strop[store]'."
        ) from error
