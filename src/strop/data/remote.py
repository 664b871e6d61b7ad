"""Files at URLs, through `fsspec`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from strop.data.record import Raw, Record
from strop.errors import DataError
from strop.images import SUFFIXES, read_image


def open_url(url: str) -> Any:
    """The file at a URL, for reading at random places."""
    system, path = _system(url)
    with _network(url):
        return system.open(path, "rb")


def size_of(url: str) -> int:
    """The bytes of the file at a URL."""
    system, path = _system(url)
    with _network(url):
        return int(system.size(path))


def read_range(url: str, start: int, size: int) -> bytes:
    """Some bytes of the file at a URL."""
    system, path = _system(url)
    with _network(url):
        content: bytes = system.cat_file(path, start=start, end=start + size)
    return content


def match(url: str, suffixes: Sequence[str]) -> list[str]:
    """The URLs of the files that a URL names: one file, a glob, or all below a folder; sorted."""
    system, path = _system(url)
    with _network(url):
        if any(mark in path for mark in "*?["):
            paths = system.glob(path)
        elif system.isdir(path):
            paths = [each for each in system.find(path) if each.lower().endswith(tuple(suffixes))]
        else:
            paths = [path] if system.exists(path) else []
    return [system.unstrip_protocol(each) for each in sorted(paths)]


class RemoteFiles:
    """The images at URLs. They are fetched together where the file system can."""

    in_main_process = True  # its connections do not survive a fork
    classes: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()

    def __init__(self, url: str) -> None:
        self.name = url
        urls = match(url, tuple(SUFFIXES))
        if not urls:
            raise DataError(f"There are no images at {url}.", "Check the address.")
        self._urls = urls
        system, path = _system(url)
        folder = path.rstrip("/") + "/"
        whole = system.unstrip_protocol(folder)
        self.root = url.rstrip("/") if all(each.startswith(whole) for each in urls) else ""
        self._names = [each.removeprefix(whole) if self.root else each for each in urls]

    def __len__(self) -> int:
        return len(self._urls)

    def __getitem__(self, index: int) -> Record:
        name = self._names[index]
        ((content, _),) = self.raw([index])
        assert isinstance(content, bytes)
        return Record(image=read_image(content, name), name=name)

    def names(self) -> Sequence[str]:
        """The name of each record: its path below the URL."""
        return self._names

    def raw(self, indices: Sequence[int], columns: Sequence[str] = ()) -> list[Raw]:
        """The bytes of the files."""
        urls = [self._urls[index] for index in indices]
        system, _ = _system(urls[0])
        paths = [system._strip_protocol(url) for url in urls]
        with _network(urls[0]):
            content = system.cat(paths) if len(paths) > 1 else {paths[0]: system.cat(paths[0])}
        return [(content[path], {}) for path in paths]

    def sources(self) -> Iterator[str]:
        """The addresses."""
        yield from self._urls


def _system(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise DataError(
            f"Reading {url} needs fsspec.", "Install it with: pip install 'strop[store]'."
        ) from error
    try:
        system, path = fsspec.url_to_fs(url)
    except ImportError as error:
        raise DataError(f"{url} cannot be read ({error}).", "Install these packages.") from error
    except ValueError as error:  # an unknown protocol
        raise DataError(f"{url} cannot be read ({error}).", "Check the address.") from error
    return system, path


@contextmanager
def _network(url: str) -> Iterator[None]:
    """Convert the exceptions of file systems to `DataError`."""
    try:
        yield
    except Exception as error:  # each file system has its own
        raise DataError(
            f"{url} cannot be read ({error}).", "Check the address and your access."
        ) from error
