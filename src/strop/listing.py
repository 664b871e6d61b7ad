"""Find image files: folders, globs, and links that lead in circles."""

from __future__ import annotations

import difflib
import glob
import os
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from strop.errors import DataError, parsing
from strop.files import PathLike
from strop.images import SUFFIXES


def find_images(patterns: Sequence[str]) -> list[str]:
    """Files, folders (searched recursively) and globs to a list of files, in order."""
    found: list[str] = []
    for pattern in patterns:
        if not pattern.strip():  # an unset shell variable does not mean the current folder
            raise DataError(
                "A path is empty.", "Give a file, a folder or a pattern. The current folder is `.`."
            )
        path = expand(pattern)
        if path.is_dir():
            names = list_files(path)
            if not names:
                raise DataError(
                    f"The folder {pattern} holds no images.",
                    f"It should hold files ending in {', '.join(sorted(SUFFIXES))}.",
                )
            found += [str(path / name) for name in names]
        elif path.exists() or (path.suffix.lower() in SUFFIXES and not glob.has_magic(pattern)):
            found.append(str(path))  # reading reports a missing file
        elif not glob.has_magic(pattern):
            raise missing(path)
        else:
            # `Path.glob` does not take absolute patterns.
            matches = glob.glob(str(path), recursive=True)  # noqa: PTH207
            files = sorted(match for match in matches if Path(match).is_file())
            if not files:
                raise DataError(f"No file matches {pattern}.", "Check the pattern.")
            found += files
    return list(dict.fromkeys(found))


def missing(path: Path) -> DataError:
    """The error for a path that does not exist. It names the nearest one that does."""
    parent = path.parent
    if not parent.is_dir():
        return missing(parent)
    names = [each.name for each in parent.iterdir()]
    near = difflib.get_close_matches(path.name, names, n=1)
    hint = f"Did you mean {parent / near[0]}? " if near else ""
    return DataError(f"There is no file or folder {path}.", f"{hint}Check the path.")


def expand(path: PathLike) -> Path:
    """`path` with `~` replaced by the home folder; `DataError` if no file can have that name."""
    name = os.fspath(path)
    if "\0" in name:
        raise DataError(f"The path {name!r:.200} holds a NUL character.", "Remove it.")
    with parsing(DataError, f"The path {name!r:.200} cannot be used", "Give another path."):
        expanded = Path(name).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            expanded.stat()
    return expanded


def list_files(folder: Path, suffixes: Iterable[str] = SUFFIXES) -> list[str]:
    """Files below `folder` by suffix, as sorted relative paths, without hidden ones.

    Links are followed, but each real folder and each real file is listed once. A real name takes
    precedence over a link to it.
    """
    wanted = frozenset(suffixes)
    names: list[str] = []
    visited: set[str] = set()
    # Relative name, real path, and whether it is a folder.
    found, linked = deque([("", os.path.realpath(folder), True)]), deque[tuple[str, str, bool]]()
    while found or linked:
        name, real, is_folder = (found or linked).popleft()
        if real in visited:
            continue
        visited.add(real)
        if not is_folder:
            names.append(name)
            continue
        with suppress(OSError), os.scandir(real) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.startswith(".") or entry.name == "__MACOSX":
                    continue
                inner = f"{name}/{entry.name}" if name else entry.name
                if not entry.is_dir() and inner[inner.rfind(".") :].lower() not in wanted:
                    continue
                if entry.is_symlink():
                    linked.append((inner, os.path.realpath(entry.path), entry.is_dir()))
                else:
                    found.append((inner, f"{real}/{entry.name}", entry.is_dir()))
    return sorted(names)
