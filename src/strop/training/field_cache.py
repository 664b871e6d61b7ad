"""The field cache: the teacher's fields of a dataset, computed once, in one mapped file.

The file is a safetensors file with a bf16 tensor `fields` (n, m, S, d_enc): n images, each in m
versions: as it is, then mirrored if there are flips, then in random views. The metadata describes
what the fields were computed from (`FieldInfo`).
"""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.errors import FormatError, TrainingError
from strop.files import PathLike, atomic_path, check_format, format_tag
from strop.training.config import TrainingConfig

_KIND, _VERSION = "fields", 1
_HEADER = 4096  # fixed, so that it can be written once the number of images is known

Progress = Callable[[int, int], None]
"""Called with the number of images that are done and the number of all."""


@dataclass(frozen=True, kw_only=True)
class FieldInfo:
    """What fields are computed from.

    teacher, data                the name of the teacher and the spec of the data
    teacher_digest, data_digest  of weights and preprocessing, of the data's files; see
                                 `strop.identity`. Empty if unknown
    image_size, fit              how images are made square
    versions                     the training settings that the versions of an image depend on
    """

    teacher: str
    data: str
    teacher_digest: str = ""
    data_digest: str = ""
    image_size: int
    fit: str
    versions: Mapping[str, Any]


def versions_of(training: TrainingConfig) -> dict[str, Any]:
    """The settings that the versions of an image depend on."""
    settings: dict[str, Any] = {"flip": training.flip, "views": training.views}
    if training.views:  # the seed does not count: views of another one are as good
        settings["view_area"] = training.view_area
    return settings


@dataclass(frozen=True)
class FieldCache:
    """An open cache. `fields` is mapped: rows are read from the file when they are used."""

    path: Path
    fields: Tensor
    info: FieldInfo

    def check(self, expected: FieldInfo, shape: tuple[int, int]) -> None:
        """Refuse fields that were computed from anything else, or are not of `shape` (S, d_enc)."""
        found = self.info
        pairs = {
            name: (getattr(found, name), getattr(expected, name))
            for name in ("teacher", "image_size", "fit")
        }
        pairs["locations and width of fields"] = list(self.fields.shape[2:]), list(shape)
        for what, (has, wanted) in pairs.items():
            if has != wanted:
                raise TrainingError(
                    f"The cache {self.path} does not fit the model: its {what} is {has}, "
                    f"the model's {wanted}.",
                    "Write one for this model with `strop data features`, or name another.",
                )
        if found.versions != expected.versions:
            raise TrainingError(
                f"The cache {self.path} was made with {_listed(found.versions)}; the run has "
                f"{_listed(expected.versions)}.",
                "Write it again with these, or change them with --set.",
            )
        if found.data != expected.data:
            raise TrainingError(
                f"The cache {self.path} is of {found.data}, not of {expected.data}.",
                "Name another file with --cache, or the data it is of.",
            )
        if not (found.teacher_digest and found.data_digest):
            warnings.warn(
                f"The cache {self.path} is of an older strop. Whether the weights of the teacher "
                "or the files of the data have changed since cannot be checked.",
                stacklevel=2,
            )
        for what, has, wanted in (
            (f"the weights of {found.teacher}", found.teacher_digest, expected.teacher_digest),
            (f"the files of {found.data}", found.data_digest, expected.data_digest),
        ):
            if has and wanted and has != wanted:
                raise TrainingError(
                    f"The cache {self.path} is out of date: {what} have changed since it was "
                    "written.",
                    "Delete it and write it again with `strop data features`.",
                )


def write_fields(
    path: PathLike,
    chunks: Iterator[Tensor],
    info: FieldInfo,
    *,
    images: int,
    progress: Progress | None = None,
) -> FieldCache:
    """Write chunks (b, m, S, d_enc) of fields to `path`, complete or not at all, and open it."""
    target, done = Path(path), 0
    shape: tuple[int, ...] = (0, 0, 0)
    try:
        with atomic_path(target) as temporary, temporary.open("wb") as file:
            file.write(b" " * _HEADER)
            for fields in chunks:
                file.write(fields.contiguous().cpu().view(torch.uint16).numpy().tobytes())
                done, shape = done + len(fields), tuple(fields.shape[1:])
                if progress is not None:
                    progress(done, images)
            if not done:
                raise TrainingError(
                    f"No field could be computed from {info.data}.", "Check the dataset."
                )
            file.seek(0)
            file.write(_header((done, *shape), info))
    except OSError as error:
        raise TrainingError(
            f"The cache {target} cannot be written ({error.strerror or error}).",
            "Free some space or choose another place; nothing was left behind.",
        ) from error
    return open_fields(target)


def open_fields(path: PathLike) -> FieldCache:
    """Map a cache that `write_fields` wrote."""
    target = Path(path)
    try:
        with target.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 1 << 20)))
        about: Mapping[str, Any] = header["__metadata__"]
        described = header["fields"]
        check_format(about.get("format"), _KIND, _VERSION, target)
        if "versions" not in about:
            raise FormatError(
                f"{target} is of an older strop and does not say which views it holds.",
                "Delete it and write it again with `strop data features`.",
            )
        shape = tuple(int(n) for n in described["shape"])
        info = FieldInfo(
            teacher=about["teacher"],
            data=about["data"],
            teacher_digest=about.get("teacher_digest", ""),
            data_digest=about.get("data_digest", ""),
            image_size=int(about["image_size"]),
            fit=about["fit"],
            versions=dict(json.loads(about["versions"])),
        )
    except OSError as error:
        raise TrainingError(
            f"The cache {target} cannot be read ({error.strerror or error}).",
            "Write it with `strop data features`.",
        ) from error
    except (ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise FormatError(
            f"{target} is not a field cache ({error!r}).", "Write one with `strop data features`."
        ) from error
    expected = 8 + length + 2 * int(np.prod(shape))
    if len(shape) != 4 or described["dtype"] != "BF16" or target.stat().st_size != expected:
        raise FormatError(
            f"{target} is cut short or damaged: {target.stat().st_size} bytes, not {expected}.",
            "Write it again with `strop data features`.",
        )
    # Copy-on-write, because torch warns of read-only memory; nothing is ever written back.
    mapped = np.memmap(target, dtype=np.uint16, mode="c", offset=8 + length, shape=shape)
    return FieldCache(target, torch.from_numpy(mapped).view(torch.bfloat16), info)


def _listed(versions: Mapping[str, Any]) -> str:
    return ", ".join(f"training.{name} = {json.dumps(value)}" for name, value in versions.items())


def _header(shape: tuple[int, ...], info: FieldInfo) -> bytes:
    """A safetensors header of exactly `_HEADER` bytes, its length included."""
    about = {name: str(value) for name, value in asdict(info).items()}
    about |= {"format": format_tag(_KIND, _VERSION), "versions": json.dumps(info.versions)}
    size = 2 * int(np.prod(shape))
    described = {"dtype": "BF16", "shape": list(shape), "data_offsets": [0, size]}
    text = json.dumps({"__metadata__": about, "fields": described}).encode()
    room = _HEADER - 8
    if len(text) > room:
        raise TrainingError(
            "The name of the teacher or of the data is too long for the cache.", "Shorten it."
        )
    return struct.pack("<Q", room) + text.ljust(room)
