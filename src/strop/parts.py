"""Keep programs part by part while many images are encoded, so that a kill loses one part."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from strop.errors import FormatError
from strop.files import LOCK, exclusive, read_json, write_json
from strop.program import Program

_SETTINGS = "settings.json"
_FORMAT = ("encoding", 1)


class Parts:
    """The parts of an output file, in the folder `OUTPUT.partial` beside it.

    stale  whether a run with other settings had left some, which were removed
    """

    def __init__(self, output: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder_of(output)
        self._suffix = output.suffix
        before = None
        with suppress(FormatError, OSError):  # there is none, or it is damaged
            before = read_json(self.folder / _SETTINGS, *_FORMAT)
        left = [path for path in self.folder.iterdir() if path.name != LOCK]
        self.stale = before != settings and any(path.suffix == self._suffix for path in left)
        if before != settings:
            for path in left:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            write_json(self.folder / _SETTINGS, *_FORMAT, dict(settings))

    def load(self, number: int) -> tuple[Program | None, dict[str, str]] | None:
        """The part of this number, as it was saved, if it is there and whole."""
        with suppress(FormatError, OSError):
            about = read_json(self._path(number, ".json"), *_FORMAT)
            path = self._path(number, self._suffix)
            return (Program.load(path) if about["programs"] else None), about["rejects"]
        return None

    def save(self, number: int, program: Program | None, rejects: Mapping[str, str]) -> None:
        """Keep a part: the programs of its images, and the reasons why others have none."""
        if program is not None:
            program.save(self._path(number, self._suffix))
        about = {"programs": 0 if program is None else len(program), "rejects": rejects}
        write_json(self._path(number, ".json"), *_FORMAT, about)

    def _path(self, number: int, suffix: str) -> Path:
        return self.folder / f"{number:08d}{suffix}"


@contextmanager
def kept_parts(output: Path, settings: Mapping[str, Any]) -> Iterator[Parts]:
    """The parts of `output`, for one process at a time; removed if the block succeeds."""
    with exclusive(folder_of(output)):
        parts = Parts(output, settings)
        yield parts
        shutil.rmtree(parts.folder)


def folder_of(output: Path) -> Path:
    """Where the parts of `output` are while it is not complete."""
    return output.with_name(f"{output.name}.partial")
