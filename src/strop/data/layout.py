"""Checks of how a dataset lies on disk, with errors that say what was expected and found."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from strop.errors import DataError
from strop.files import PathLike
from strop.images import SUFFIXES


def found(folder: Path, limit: int = 8) -> str:
    """What `folder` holds, in a few words for an error message."""
    if not folder.is_dir():
        return "a file" if folder.exists() else "nothing there"
    names = sorted(
        entry.name + ("/" if entry.is_dir() else "")
        for entry in os.scandir(folder)
        if not entry.name.startswith(".")
    )
    if not names:
        return "an empty folder"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def require_folder(path: PathLike, kind: str, tree: str) -> Path:
    """`path` as a folder, or an error that shows the tree a `kind` dataset has."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {what}.", f"A {kind} dataset is a folder with {tree}.")
    return folder


def first_folder(root: Path, candidates: Sequence[str], kind: str) -> Path:
    """The first of `candidates` that is a folder under `root`, or an error naming them all."""
    for candidate in candidates:
        if (root / candidate).is_dir():
            return root / candidate
    expected = " or ".join(f"{candidate}/" for candidate in candidates)
    raise DataError(
        f"{root} is not laid out as {kind}: expected {expected}, found {found(root)}.",
        "Point the spec at the dataset's own root folder; docs/data.md shows the tree.",
    )


def first_file(root: Path, candidates: Sequence[str]) -> Path | None:
    """The first of `candidates` that is a file under `root`."""
    return next((root / name for name in candidates if (root / name).is_file()), None)


def list_files(folder: Path, suffixes: Iterable[str] = SUFFIXES) -> list[str]:
    """Files below `folder` by suffix, as sorted relative paths; hidden ones are left out."""
    wanted = frozenset(suffixes)
    names: list[str] = []
    prefix = len(str(folder)) + 1
    for base, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__MACOSX")
        below = base[prefix:]
        names.extend(
            f"{below}/{name}" if below else name
            for name in files
            if name[name.rfind(".") :].lower() in wanted and not name.startswith(".")
        )
    return sorted(names)


def require_some(items: Sequence[Any], kind: str, where: Path, expected: str) -> None:
    """Refuse an empty split."""
    if not items:
        raise DataError(
            f"This {kind} split is empty: {where} holds {found(where)}.", f"Expected {expected}."
        )


def choose(value: str, choices: Sequence[str], what: str) -> str:
    """`value` if it is one of `choices`."""
    if value not in choices:
        raise DataError(f"There is no {what} {value!r}.", f"Choose one of {', '.join(choices)}.")
    return value


def read_lines(path: Path) -> list[str]:
    """The lines of a list file that are not blank, stripped."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"Cannot read the list {path} ({error}).", "Expected a text file."
        ) from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def load_json(path: Path, fields: Sequence[str]) -> dict[str, Any]:
    """A JSON object that has all of `fields`."""
    try:
        payload = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"Cannot read {path} ({error.strerror}).", "Check the path.") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}).", "Download it again.") from error
    if not isinstance(payload, dict):
        raise DataError(
            f"{path} holds a {type(payload).__name__}, not an object.", "Download it again."
        )
    for field in fields:
        if field not in payload:
            raise DataError(
                f"{path} has no field {field!r} (it has {', '.join(list(payload)[:8])}).",
                "Check that this is the right file, whole.",
            )
    return payload
