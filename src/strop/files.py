"""Atomic writes, locks on output folders, and JSON files that carry a format tag."""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from strop.errors import BusyError, ConfigError, FormatError, parsing

try:
    import fcntl
except ImportError:  # not on Windows: no locks, and temporaries of killed writers stay
    fcntl = None  # type: ignore[assignment]

PathLike = str | os.PathLike[str]

_TEMPORARY = ".strop-tmp-"
LOCK = ".strop-lock"
"""The file that `exclusive` keeps in a folder while it is locked."""
_locked: dict[Path, tuple[int, int]] = {}  # the thread that locked a folder, and the descriptor


def at_home(path: PathLike) -> Path:
    """`path` with `~` replaced by the home folder. Of no user, as in `~a.jpg`, it stays."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (pathlib refuses such names)


@contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path of the same name; move it onto `path` if the block succeeds.

    A reader therefore sees the old file or the new one, never half of one, and a failed write
    leaves nothing behind. A killed writer leaves its temporary folder, which the next writer in the
    same place removes.
    """
    target = at_home(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target.parent.resolve())
    scratch, lock = _scratch_folder(target.parent)
    temporary = scratch / target.name
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        mask = os.umask(0)  # which can only be read by setting it
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _scratch_folder(parent: Path) -> tuple[Path, int | None]:
    """A new temporary folder, and the lock that marks it as in use for as long as it is open."""
    while True:
        scratch = Path(tempfile.mkdtemp(dir=parent, prefix=_TEMPORARY))
        if fcntl is None:
            return scratch, None
        with suppress(FileNotFoundError):  # removed by another writer before it was locked
            lock = os.open(scratch, os.O_RDONLY)
            with suppress(OSError):  # some network file systems have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if scratch.is_dir():
                return scratch, lock
            os.close(lock)


@functools.lru_cache(maxsize=1024)  # once for each folder: listing a large one takes long
def _sweep(folder: Path) -> None:
    """Remove the temporaries of writers that were killed: those that nobody has locked."""
    if fcntl is None:
        return
    for scratch in folder.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):
            lock = os.open(scratch, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(scratch, ignore_errors=True)
            finally:
                os.close(lock)


@contextmanager
def exclusive(folder: PathLike) -> Iterator[None]:
    """Be the only writer of `folder` until the block ends; `BusyError` if there is another one.

    The lock dies with its process, however that ends. The thread that holds it may enter again.
    On a file system without locks, a warning says so and nothing is locked. The folder is made if
    it does not exist, and removed at the end, with parents that were made, if it is still empty.
    """
    target = at_home(folder).resolve()
    thread, _ = _locked.get(target, (None, -1))
    if thread == threading.get_ident():
        yield
        return
    new = [each for each in (target, *target.parents) if not each.exists()]
    remedy = "Choose another folder, or change its permissions."
    with parsing(ConfigError, f"The folder {folder} cannot be created or written", remedy):
        descriptor = _lock_folder(target)
    _locked[target] = threading.get_ident(), descriptor
    try:
        yield
    finally:
        del _locked[target]
        try:
            # Removed before it is unlocked: whoever has opened it meanwhile sees that it is gone.
            with suppress(OSError):  # the folder was moved; a file that stays does no harm
                if os.path.samestat(os.fstat(descriptor), (target / LOCK).stat()):
                    (target / LOCK).unlink()
        finally:
            os.close(descriptor)
        with suppress(OSError):  # it is not empty
            for each in new:
                each.rmdir()


def _lock_folder(folder: Path) -> int:
    """Lock `folder` and note who holds it; the descriptor of the lock."""
    path = folder / LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # the holder before has just removed the empty folder
            continue
        try:
            _lock_file(descriptor, folder)
            # Between opening and locking, the holder before may have removed the file.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    holder = f"process {os.getpid()} on {socket.gethostname()} since "
                    holder += datetime.now(UTC).isoformat(timespec="seconds")
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, holder.encode())
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock_file(descriptor: int, folder: Path) -> None:
    try:
        if fcntl is None:
            raise OSError("this system has no locks")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        raise BusyError(
            f"{folder} is being written by {holder}.",
            "Wait until that ends, or choose another folder.",
        ) from error
    except OSError as error:
        warnings.warn(
            f"The file system of {folder} has no locks ({error}): nothing keeps a second process "
            "from writing there at the same time.",
            stacklevel=5,
        )


def _leave_locks() -> None:
    """Close the locks in a forked child: they belong to the parent and die with it."""
    while _locked:
        os.close(_locked.popitem()[1][1])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


def write_text(path: PathLike, text: str) -> None:
    """Write `text` to `path` as UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def format_tag(kind: str, version: int) -> str:
    """The tag a file carries: `strop.model/1`."""
    return f"strop.{kind}/{version}"


def check_format(tag: object, kind: str, version: int, source: object) -> None:
    """Refuse a file whose tag is of another kind, or of a version newer than `version`."""
    name, _, number = tag.partition("/") if isinstance(tag, str) else ("", "", "")
    if name != f"strop.{kind}" or not number.isdecimal() or len(number) > 9:
        raise FormatError(
            f"{source} is not a strop {kind} file (its format tag is {tag!r:.60}).",
            f"Expected {format_tag(kind, version)!r}; check that this is the right file.",
        )
    if int(number) > version:
        raise FormatError(
            f"{source} is in format {tag}, newer than this strop reads ({version}).",
            "Upgrade strop to read it.",
        )


def write_json(path: PathLike, kind: str, version: int, payload: dict[str, Any]) -> None:
    """Write `payload` with its format tag, atomically. A number that is not finite becomes null."""
    tagged = {"format": format_tag(kind, version), **payload}
    text = json.dumps(_json_value(tagged), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # A file name may hold bytes that are not UTF-8; this writes them as JSON's own \u escapes.
    write_text(path, text.encode(errors="backslashreplace").decode())


def _json_value(value: Any) -> Any:
    """`value` with plain numbers, and null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: PathLike, kind: str, version: int) -> dict[str, Any]:
    """Read what `write_json` wrote, without its tag; `FormatError` if it is anything else."""
    with parsing(FormatError, f"{path} is not valid JSON", "The file is damaged; write it again."):
        payload = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(payload, dict):
        raise FormatError(
            f"{path} holds a {type(payload).__name__}, not an object.",
            f"Expected a strop {kind} file.",
        )
    check_format(payload.pop("format", None), kind, version, path)
    return payload
