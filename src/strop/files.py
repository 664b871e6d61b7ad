"""Files are written whole or not at all, and each says which format it is in."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from strop.errors import FormatError

PathLike = str | os.PathLike[str]


@contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it onto `path` if the block succeeds.

    A reader therefore sees the old file or the new one, never half of one, and a failed write
    leaves nothing behind. The temporary file keeps the suffix, which some writers look at.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.stem}-", suffix=target.suffix
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


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
    text = json.dumps(_sayable(tagged), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # A file name may hold bytes that are not UTF-8; this writes them as JSON's own \u escapes.
    write_text(path, text.encode(errors="backslashreplace").decode())


def _sayable(value: Any) -> Any:
    """`value` as JSON can say it: plain numbers, null for those that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): _sayable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: PathLike, kind: str, version: int) -> dict[str, Any]:
    """Read what `write_json` wrote, without its tag; `FormatError` if it is anything else."""
    try:
        payload = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or absurd numbers
        raise FormatError(
            f"{path} is not valid JSON ({error}).", "The file is damaged; write it again."
        ) from error
    if not isinstance(payload, dict):
        raise FormatError(
            f"{path} holds a {type(payload).__name__}, not an object.",
            f"Expected a strop {kind} file.",
        )
    check_format(payload.pop("format", None), kind, version, path)
    return payload


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
