"""Spec strings, which name datasets in commands and configs: `voc:/path?split=val`.

All datasets of the paper's Section 5.1 have a kind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, get_args
from urllib.parse import quote, unquote

from strop.data import folders
from strop.data.packed import PackedDataset
from strop.data.record import Dataset, check_dataset
from strop.data.rendered import scenes
from strop.data.shards import ShardDataset
from strop.data.subset import Subset
from strop.data.tables import HuggingFaceTable, LanceTable, ParquetDataset
from strop.errors import DataError, did_you_mean, parsing
from strop.files import PathLike
from strop.listing import expand, missing

KINDS: dict[str, Callable[..., Dataset]] = {
    "ade20k": folders.ade20k,
    "cityscapes": folders.cityscapes,
    "clevr": folders.clevr,
    "coco": folders.coco,
    "cocostuff": folders.cocostuff,
    "folder": folders.folder,
    "hf": HuggingFaceTable,
    "imagenet": folders.imagenet,
    "lance": LanceTable,
    "nyuv2": folders.nyuv2,
    "packed": PackedDataset,
    "parquet": ParquetDataset,
    "scenes": scenes,
    "shards": ShardDataset,
    "voc": folders.voc,
}
"""What opens each kind of dataset. Its parameters, but for `path`, are those of the spec."""

_COMMON = {"skip": int, "limit": int}
_MAX_DIGITS = 18  # fits int64
_PLAIN = "/:,+@"  # characters of values that are not percent-encoded


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed spec string. `str()` returns a string that parses to the same spec."""

    kind: str
    path: str
    parameters: Mapping[str, str | int]

    def __str__(self) -> str:
        query = "&".join(
            f"{key}={quote(str(value), safe=_PLAIN, errors='surrogateescape')}"
            for key, value in self.parameters.items()
        )
        # An empty query protects question marks and trailing blanks of the path.
        marked = query or _has_query(self.path) or self.path != self.path.rstrip()
        return f"{self.kind}:{self.path}" + (f"?{query}" if marked else "")


def parse_spec(text: str) -> Spec:
    """Parse `KIND:PATH?KEY=VALUE&...` or the path of a folder.

    All kinds take `skip` and `limit`: skip the first `skip` records, and keep at most `limit`.
    """
    text = text.strip()
    kind, colon, rest = text.partition(":")
    if not colon or kind not in KINDS:
        named = colon and re.fullmatch(r"[A-Za-z][\w-]*", kind)
        is_folder = text != "" and expand(text).is_dir()
        place = text.rpartition("?")[0] if _has_query(text) else ""
        if place and not is_folder and expand(place).is_dir():
            kind, rest = "folder", text
        elif is_folder or (not named and ("/" in text or text in {".", "..", "~"})):
            return Spec("folder", text, {})
        elif text and not colon:
            raise _no_folder(text)
        else:
            raise DataError(
                f"There is no kind of data {kind!r}.",
                f"{did_you_mean(kind, KINDS)}A spec is KIND:PATH?KEY=VALUE, and KIND one of "
                f"{', '.join(KINDS)}; or it is the path of a folder of images.",
            )
    path, _, query = rest.rpartition("?") if _has_query(rest) else (rest, "", "")
    has_path = "path" in signature(KINDS[kind]).parameters
    if has_path and not path:
        raise DataError(f"The spec {text!r} names no path.", f"Write {kind}:/path/to/the/data.")
    if path and not has_path:
        raise DataError(f"{kind!r} takes no path, but the spec has {path!r}.", f"Write {kind}:?...")
    return Spec(kind, path, _parameters(kind, query))


def _no_folder(text: str) -> DataError:
    path = expand(text)
    if path.is_file():
        kind = {".tar": "shards", ".parquet": "parquet"}.get(path.suffix.lower())
        remedy = f"Write {kind}:{text}." if kind else "Give the folder that holds the images."
        return DataError(f"{text} is a file, not a folder of images.", remedy)
    error = missing(path)
    if hint := did_you_mean(text, KINDS):
        error.remedy = hint.replace("'?", ":'?") + error.remedy
    return DataError(
        f"There is no folder {text}.",
        f"{error.remedy} Data is a folder of images or a spec such as voc:/data/voc?split=val.",
    )


def open_dataset(spec: PathLike | Dataset) -> Dataset:
    """Open the dataset that `spec` names; a dataset is returned as it is."""
    if not isinstance(spec, str | os.PathLike):
        return check_dataset(spec)
    spec = os.fspath(spec)
    with parsing(DataError, f"{spec[:200]} cannot be opened", "Check the spec and the files."):
        return _open(spec)


def _open(spec: str) -> Dataset:
    parsed = parse_spec(spec)
    if parsed.kind == "folder" and not expand(parsed.path).is_dir():
        raise _no_folder(parsed.path)
    parameters = dict(parsed.parameters)
    skip = int(parameters.pop("skip", 0))
    limit = parameters.pop("limit", None)
    for name, value in parameters.items():
        choices = get_args(parameters_of(parsed.kind)[name])
        if choices and value not in choices:
            raise DataError(
                f"{parsed.kind!r} has no {name} {value!r:.60}.",
                f"Choose one of {', '.join(choices)}.",
            )
    dataset = KINDS[parsed.kind](*([parsed.path] if parsed.path else []), **parameters)
    if not skip and limit is None:
        return dataset
    end = len(dataset) if limit is None else min(len(dataset), skip + int(limit))
    if skip >= end:
        raise DataError(
            f"{spec} leaves nothing of {len(dataset)} records.", "Lower skip or raise limit."
        )
    return Subset(dataset, range(skip, end))


def _has_query(rest: str) -> bool:
    # A glob may contain question marks. A query follows the last one and contains "=".
    _, mark, query = rest.rpartition("?")
    return bool(mark) and (not query or "=" in query)


def parameters_of(kind: str) -> dict[str, Any]:
    """The types of the parameters of a kind."""
    known = signature(KINDS[kind], eval_str=True).parameters
    return {name: each.annotation for name, each in known.items() if name != "path"}


def _parameters(kind: str, query: str) -> dict[str, str | int]:
    types = parameters_of(kind) | _COMMON
    parameters: dict[str, str | int] = {}
    # parse_qsl would decode a plus as a blank, but paths may contain a plus.
    for key, _, quoted in (part.partition("=") for part in query.split("&") if part):
        value = unquote(quoted, errors="surrogateescape")
        if key not in types:
            raise DataError(
                f"{kind!r} has no parameter {key!r}.",
                f"{did_you_mean(key, types)}It takes {', '.join(types)}.",
            )
        if key in parameters:
            raise DataError(f"The parameter {key!r} is given twice.", "Give it once.")
        if types[key] is int:
            if not value.isdecimal() or len(value) > _MAX_DIGITS:
                raise DataError(
                    f"The parameter {key!r} of {kind!r} is {value!r:.60}.",
                    f"Give a whole number of at most {_MAX_DIGITS} digits.",
                )
            parameters[key] = int(value)
        else:
            parameters[key] = value
    return parameters
