"""Files by path or URL, and datasets of images without annotations. URLs need `fsspec`."""

from __future__ import annotations

import glob
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from strop.data.layout import found
from strop.data.record import Raw, Record
from strop.errors import DataError, parsing
from strop.images import SUFFIXES, read_image
from strop.listing import expand, list_files
from strop.optional import require


def open_file(path: str) -> Any:
    """A file, or the file at a URL, for reading at random places."""
    if "://" not in path:
        return Path(path).open("rb")
    system, where = _system(path)
    with _reading(path):
        return system.open(where, "rb")


def read_range(path: str, start: int, size: int) -> bytes:
    """Some bytes of a file, or of the file at a URL."""
    if "://" not in path:
        with Path(path).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), size, start)
    system, where = _system(path)
    with _reading(path):
        content: bytes = system.cat_file(where, start=start, end=start + size)
    return content


def find_files(path: str, suffix: str, kind: str) -> list[str]:
    """The files that a path or URL names: one file, a glob, or all below a folder; at least one."""
    where = expand(path)
    if "://" in path:
        paths = _match(path, [suffix])
    elif where.is_dir():
        paths = [str(where / name) for name in list_files(where, {suffix})]
    else:
        exists = where.is_file()
        paths = [str(where)] if exists else sorted(glob.glob(str(where)))  # noqa: PTH207
    if not paths:
        folder = where if where.is_dir() else where.parent
        raise DataError(
            f"No {kind} match {path}; {folder} holds {found(folder)}.",
            f"Expected {suffix} files; quote the pattern if the shell expands it.",
        )
    return paths


class ImageDataset:
    """Images without annotations, as they are stored. A subclass has `raw` and `names`."""

    in_main_process = True  # threads and connections do not survive a fork
    classes: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names())

    def __getitem__(self, index: int) -> Record:
        index = range(len(self))[index]
        ((source, _),) = self.raw([index])
        name = self.names()[index]
        assert isinstance(source, str | bytes)
        return Record(image=read_image(source, name), name=name)

    @abstractmethod
    def names(self) -> Sequence[str]:
        """The name of each record."""

    @abstractmethod
    def raw(self, indices: Sequence[int], columns: Sequence[str] = ()) -> list[Raw]:
        """Images as they are stored, with the values of `columns`."""


class RemoteFiles(ImageDataset):
    """The images at URLs. They are fetched together where the file system can."""

    def __init__(self, url: str) -> None:
        self.name = url
        urls = _match(url, tuple(SUFFIXES))
        if not urls:
            raise DataError(f"There are no images at {url}.", "Check the address.")
        self._urls = urls
        system, path = _system(url)
        whole = system.unstrip_protocol(path.rstrip("/") + "/")
        self.root = url.rstrip("/") if all(each.startswith(whole) for each in urls) else ""
        self._names = [each.removeprefix(whole) if self.root else each for each in urls]

    def names(self) -> Sequence[str]:
        """The path of each record below the URL."""
        return self._names

    def raw(self, indices: Sequence[int], columns: Sequence[str] = ()) -> list[Raw]:
        """The bytes of the files."""
        urls = [self._urls[index] for index in indices]
        system, _ = _system(urls[0])
        paths = [system._strip_protocol(url) for url in urls]
        with _reading(urls[0]):
            content = system.cat(paths) if len(paths) > 1 else {paths[0]: system.cat(paths[0])}
        return [(content[path], {}) for path in paths]

    def sources(self) -> Iterator[str]:
        """The addresses."""
        yield from self._urls


def _match(url: str, suffixes: Sequence[str]) -> list[str]:
    """The URLs of the files that a URL names: one file, a glob, or all below a folder; sorted."""
    system, path = _system(url)
    with _reading(url):
        if any(mark in path for mark in "*?["):
            paths = system.glob(path)
        elif system.isdir(path):
            paths = [each for each in system.find(path) if each.lower().endswith(tuple(suffixes))]
        else:
            paths = [path] if system.exists(path) else []
    return [system.unstrip_protocol(each) for each in sorted(paths)]


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    fsspec = require("fsspec", DataError)
    # Fails for unknown protocols, and for those that need another package.
    with parsing(DataError, f"{url} cannot be read", "Check the address and its packages."):
        system, path = fsspec.url_to_fs(url)
    return system, path


def _reading(url: str) -> AbstractContextManager[None]:
    """Convert the exceptions of file systems, each of which has its own."""
    return parsing(DataError, f"{url} cannot be read", "Check the address and your access.")
