"""The errors that strop raises. Each states a problem and a remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class StropError(Exception):
    """Base class of the errors that strop raises: a problem and its remedy.

    Always give a remedy. It has a default only because a `DataLoader` raises the error of a worker
    again with one argument.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}".strip()


class ConfigError(StropError):
    """A configuration names something unknown, or gives a value of the wrong type or range."""


class ImageError(StropError):
    """An image cannot be read, or a tensor is not an image."""


class ProgramError(StropError):
    """A program, or an edit of one, is invalid."""


class FormatError(StropError):
    """A file is corrupt, of another format, or written by a newer strop."""


class ModelError(StropError):
    """A model cannot be found, loaded, or used for an operation."""


class TeacherError(StropError):
    """A teacher cannot be found, loaded, or used at this size."""


class DataError(StropError):
    """A dataset is not laid out as expected, or a file in it is broken."""


class StoreError(StropError):
    """A store of programs cannot be opened, read or extended as asked."""


class BusyError(StropError):
    """Another process is writing to the same folder."""


class TrainingError(StropError):
    """Training cannot start or continue."""


@contextmanager
def parsing(kind: type[StropError], problem: str, remedy: str) -> Iterator[None]:
    """Convert whatever a parser raises on data from outside to an error of `kind`.

    Damaged input makes parsers raise nearly everything: besides their own types OSError,
    KeyError, RecursionError, OverflowError, MemoryError, struct.error and more. The reason is put
    after the `problem`, in parentheses. Errors of strop pass unchanged.
    """
    try:
        yield
    except StropError:
        raise
    except Exception as error:
        raise kind(f"{problem} ({reason(error)}).", remedy) from error


def reason(error: Exception) -> str:
    """What an exception says, in at most one line."""
    said = getattr(error, "strerror", None) or str(error).strip()
    if isinstance(error, KeyError):
        said = f"{said} is missing"
    return f"{said or type(error).__name__}".splitlines()[0][:200]


def expect(value: object, kind: Any, what: str, error: type[StropError], remedy: str) -> None:
    """Refuse a value that is not of `kind`, which the error calls `what`."""
    if not isinstance(value, kind):
        name = type(value).__name__
        given = f"A{'n' if name.startswith((*'aeioAEIO', 'nd')) else ''} {name}"
        raise error(f"{repr(value)[:60] if name == 'str' else given} is not {what}.", remedy)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for a remedy: `"Did you mean 'x'? "`, or nothing if no known word is near."""
    candidates = list(known)
    close = difflib.get_close_matches(str(word).lower(), candidates, n=1)
    # `lr` is short for `learning_rate`.
    close += [name for name in candidates if word == "".join(p[0] for p in name.split("_") if p)]
    return f"Did you mean {close[0]!r}? " if close else ""
