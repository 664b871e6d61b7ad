"""A corpus: the images that a command names, from files, datasets, tars, tables or URLs."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from strop.data.layout import FileDataset, Files
from strop.data.record import Dataset
from strop.data.remote import RemoteFiles
from strop.data.shards import ShardDataset
from strop.data.spec import KINDS, open_dataset
from strop.data.tables import HuggingFaceTable, LanceTable, ParquetDataset
from strop.errors import DataError, StropError, did_you_mean, expect
from strop.files import PathLike
from strop.images import SUFFIXES
from strop.listing import expand, find_images
from strop.store.schema import key_hashes

Stored = tuple[str | bytes | Tensor | StropError, dict[str, Any]]
"""An image as a dataset stores it, or why there is none; and values of columns."""

LABELS = "labels"
"""A column that every dataset has: the names of the labels of a record."""


@dataclass(frozen=True)
class Item:
    """One image before it is decoded: its key, where it comes from, and kept values.

    `image` is a path, the bytes of a file or pixels; or it is the reason why there is none.
    """

    key: str
    source: str
    image: str | bytes | Tensor | StropError
    values: Mapping[str, Any]


class Corpus:
    """Images of several sources in one order, each with a key of its own.

    A key is the name of an image within its source. Where a name occurs again, its number follows:
    `a.jpg`, `a.jpg (2)`.

    data    files, folders, globs, specs such as voc:PATH?split=val, .tar, .parquet and .lance
            files, folders that `datasets` saved, and URLs of these
    keep    names of columns of the data to be kept
    prefix  put before each key
    """

    def __init__(
        self, data: PathLike | Iterable[PathLike], keep: Sequence[str] = (), prefix: str = ""
    ) -> None:
        expect(prefix, str, "a prefix of keys", DataError, "Give text, such as a/.")
        self.sources = _open_all(data)
        self.keep = tuple(dict.fromkeys([keep] if isinstance(keep, str) else keep))
        self._starts = np.cumsum([0, *(len(dataset) for _, dataset in self.sources)])
        if not len(self):
            raise DataError("The data holds no image.", "Name data that holds some.")
        self.keys = _distinct(
            [_utf8(f"{prefix}{n}") for _, dataset in self.sources for n in _names(dataset)]
        )
        self.kept = {name: self._type_of(name) for name in self.keep}

    def __len__(self) -> int:
        return int(self._starts[-1])

    @functools.cached_property
    def names(self) -> list[str]:
        """The path of each image that is a file, and the keys of others."""
        names: list[str] = []
        for _, dataset in self.sources:
            raw = getattr(dataset, "raw", None)
            is_local = not getattr(dataset, "in_main_process", False)
            if raw and is_local and isinstance(raw([0])[0][0], str):
                names += [path for path, _ in raw(range(len(dataset)))]
            else:
                names += self.keys[len(names) : len(names) + len(dataset)]
        return names

    @property
    def in_main_process(self) -> bool:
        """Whether items have to be read by the process that opened the corpus."""
        return any(getattr(dataset, "in_main_process", False) for _, dataset in self.sources)

    @property
    def places(self) -> list[str]:
        """Where each image comes from, as a store has it."""
        return [source for source, dataset in self.sources for _ in range(len(dataset))]

    def items(self, indices: Sequence[int]) -> list[Item]:
        """The images at `indices`, not decoded."""
        found: list[Item] = []
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        for number, group in groupby(zip(numbers.tolist(), indices, strict=True), itemgetter(0)):
            (source, dataset), start = self.sources[number], int(self._starts[number])
            rows = [row for _, row in group]
            read = _read_safely(dataset, [row - start for row in rows], self.keep)
            for row, (image, values) in zip(rows, read, strict=True):
                found.append(Item(self.keys[row], source, image, values))
        return found

    def _type_of(self, column: str) -> pa.DataType:
        """The type of a kept column, which all sources share."""
        types = set()
        for source, dataset in self.sources:
            columns = getattr(dataset, "columns", {})
            if column in columns:
                types.add(columns[column])
            elif column == LABELS and dataset.label_names:
                types.add(pa.list_(pa.string()))
            else:
                known = [*columns, *([LABELS] if dataset.label_names else [])]
                has = f"It has {', '.join(known)}." if known else "It has none."
                raise DataError(
                    f"{source} has no column {column!r}.", did_you_mean(column, known) + has
                )
        if len(types) > 1:
            raise DataError(
                f"The column {column!r} has several types: {', '.join(map(str, types))}.",
                "Encode these sources into stores of their own.",
            )
        return types.pop()


def _open_all(data: PathLike | Iterable[PathLike]) -> list[tuple[str, Dataset]]:
    """The datasets that `data` names, with the text that a store has as their source."""
    opened: list[tuple[str, Dataset]] = []
    files: list[str] = []  # single files that follow each other are one dataset

    def flush() -> None:
        if files:
            items = [Files(name, name) for name in files]
            root = str(Path.cwd())
            opened.append((root, _Paths(name=root, root=Path(), items=items)))
            files.clear()

    for each in [data] if isinstance(data, str) or not isinstance(data, Iterable) else data:
        remedy = "Give files, folders or specs. `Tokenizer.encode` takes images and datasets."
        expect(each, str | os.PathLike, "the name of data", DataError, remedy)
        text = os.fspath(each)
        if not text.strip():
            find_images([text])  # refuses it
        dataset = _open_one(text)
        if dataset is None:
            files.extend(find_images([text]))
            continue
        flush()
        # Paths are kept as absolute ones; specs and URLs as they are.
        place = str(expand(text).absolute()) if expand(text).exists() else text
        opened.append((getattr(dataset, "root", "") or place, dataset))
    flush()
    return opened


def _open_one(text: str) -> Dataset | None:
    """The dataset that `text` names; None if it is a file or a glob of image files."""
    suffix = Path(text.rstrip("/")).suffix.lower()
    by_suffix: dict[str, Any] = {
        ".tar": ShardDataset,
        ".parquet": ParquetDataset,
        ".lance": LanceTable,
    }
    if "://" in text and text.partition(":")[0] not in KINDS:
        if text.startswith("file://"):
            return _open_one(text.removeprefix("file://")) or open_dataset(text[7:])
        return by_suffix.get(suffix, RemoteFiles)(text)
    kind = re.match(r"([A-Za-z][\w-]*):", text)
    if kind and not os.path.exists(text):  # noqa: PTH110 (False for a name that is too long)
        return open_dataset(text) if kind[1] in KINDS or suffix not in SUFFIXES else None
    if suffix in by_suffix:
        return by_suffix[suffix](text)
    folder = expand(text)
    if not folder.is_dir():
        place, _, query = text.rpartition("?")  # of a glob, or before parameters
        return open_dataset(text) if "=" in query and expand(place).is_dir() else None
    if (folder / "_versions").is_dir():
        return LanceTable(text)
    if any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return HuggingFaceTable(text)
    if (folder / "records.i64").is_file():
        return open_dataset(f"packed:{text}")
    images = [str(Path(path).relative_to(folder)) for path in find_images([text])]
    return _Paths(name=text, root=folder, items=[Files(name, name) for name in images])


class _Paths(FileDataset):
    """Image files. Their own names may be absolute paths."""

    def _path(self, relative: str) -> str:
        return str(Path(self._root) / relative)


def _names(dataset: Any) -> Iterable[str]:
    if hasattr(dataset, "names"):
        yield from dataset.names()
    else:
        yield from (f"{dataset.name}/{index:08d}" for index in range(len(dataset)))


def _distinct(names: list[str]) -> list[str]:
    """Names in which the second of two equal ones has a number; in place."""
    hashes = key_hashes(pa.array(names, pa.string()))
    order = np.argsort(hashes, kind="stable")
    again = order[1:][hashes[order][1:] == hashes[order][:-1]]
    if len(again):
        taken = set(names)
        for index in sorted(again.tolist()):
            number = 2
            while f"{names[index]} ({number})" in taken:
                number += 1
            names[index] = f"{names[index]} ({number})"
            taken.add(names[index])
    return names


def _utf8(name: str) -> str:
    """A name in which bytes that are not UTF-8 are escaped."""
    if name.isascii():
        return name
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _read_safely(dataset: Dataset, indices: list[int], columns: Sequence[str]) -> list[Stored]:
    """What `raw` returns. If it fails, rows are read one by one, and some are errors."""
    try:
        return _raw(dataset, indices, columns)
    except (StropError, OSError) as error:
        if len(indices) == 1:
            problem = error if isinstance(error, StropError) else DataError(str(error), "")
            return [(problem, dict.fromkeys(columns))]
    return [found for index in indices for found in _read_safely(dataset, [index], columns)]


def _raw(dataset: Dataset, indices: list[int], columns: Sequence[str]) -> list[Stored]:
    raw: Any = getattr(dataset, "raw", None)
    native = [name for name in columns if name in getattr(dataset, "columns", {})]
    rows: list[Stored] = [("", {})] * len(indices) if raw is None else raw(indices, native)
    if raw is not None and len(native) == len(columns):
        return rows
    found: list[Stored] = []
    for index, (_, values) in zip(indices, rows, strict=True):
        record, names = dataset[index], dataset.label_names
        if len(native) < len(columns):  # labels, which are known only from the record
            labels = None if record.labels is None else record.labels.nonzero().flatten()
            values = {**values, LABELS: labels if labels is None else [names[i] for i in labels]}
        found.append((record.image, values))
    return found
