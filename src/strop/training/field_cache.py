"""The field cache: the teacher's fields of a dataset in a memory-mapped safetensors file.

Its tensor `fields` is (n, m, S, d_enc) bf16: n images in m versions each, which are the unchanged
image, the mirrored one if there are flips, and random views. The metadata is a `FieldInfo`.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from strop.config import changes, flatten
from strop.errors import FormatError, TrainingError, parsing
from strop.files import PathLike, atomic_path, check_format, format_tag
from strop.progress import Progress, no_progress
from strop.training.preset import TrainingConfig

_KIND, _VERSION = "fields", 1
_HEADER = 4096  # fixed, because it is written last, when the number of images is known


@dataclass(frozen=True, kw_only=True)
class FieldInfo:
    """The origin of fields.

    teacher, data                the name of the teacher and the spec of the data
    teacher_digest, data_digest  see `strop.identity`; the first is empty if unknown
    image_size, fit              how images are made square
    versions                     the training settings that the versions of an image depend on
    """

    teacher: str
    data: str
    teacher_digest: str
    data_digest: str
    image_size: int
    fit: str
    versions: Mapping[str, Any]


_NAMES = tuple(field.name for field in dataclasses.fields(FieldInfo))


def versions_of(training: TrainingConfig) -> dict[str, Any]:
    """The settings that the versions of an image depend on."""
    settings: dict[str, Any] = {"flip": training.flip, "views": training.views}
    if training.views:  # views of any seed will do
        settings["view_area"] = training.view_area
    return settings


@dataclass(frozen=True)
class FieldCache:
    """An open cache. `fields` is memory-mapped."""

    path: Path
    fields: Tensor
    info: FieldInfo

    def check(self, expected: FieldInfo, shape: tuple[int, int]) -> None:
        """Raise if the fields have another origin or are not of `shape` (S, d_enc)."""
        found = {**asdict(self.info), "field": list(self.fields.shape[2:])}
        wanted = {**asdict(expected), "field": list(shape)}
        wanted["teacher_digest"] = expected.teacher_digest or self.info.teacher_digest
        for facts in (found, wanted):
            facts |= flatten(facts.pop("versions"), "training.")
        if different := changes(found, wanted):
            raise TrainingError(
                f"The cache {self.path} does not fit the run: {different}.",
                "Delete it and write it again with `strop data features`, give another --cache, or "
                "use the settings and the data of this one.",
            )


def write_fields(
    path: PathLike,
    chunks: Iterator[Tensor],
    info: FieldInfo,
    *,
    images: int,
    progress: Progress = no_progress,
) -> FieldCache:
    """Write chunks (b, m, S, d_enc) of fields to `path` atomically, and open it."""
    target, done = Path(path), 0
    shape: tuple[int, ...] = (0, 0, 0)
    try:
        with atomic_path(target) as temporary, temporary.open("wb") as file:
            file.write(b" " * _HEADER)
            for fields in chunks:
                file.write(fields.contiguous().cpu().view(torch.uint16).numpy().tobytes())
                done, shape = done + len(fields), tuple(fields.shape[1:])
                progress("computing fields", done, images)
            if not done:
                raise TrainingError(
                    f"No field could be computed from {info.data}.", "Check the dataset."
                )
            file.seek(0)
            file.write(_header((done, *shape), info))
    except OSError as error:
        raise TrainingError(
            f"The cache {target} cannot be written ({error.strerror or error}).",
            "Free some space or choose another place.",
        ) from error
    return open_fields(target)


def open_fields(path: PathLike) -> FieldCache:
    """Map a cache that `write_fields` wrote."""
    target = Path(path)
    remedy = "Delete it and write it again with `strop data features`."
    with parsing(FormatError, f"{target} cannot be read as a field cache", remedy):
        with safe_open(target, "pt") as file:
            about, fields = file.metadata() or {}, file.get_tensor("fields")
        check_format(about.get("format"), _KIND, _VERSION, target)
        known: dict[str, Any] = {name: about[name] for name in _NAMES}
        known |= {"image_size": int(about["image_size"]), "versions": json.loads(about["versions"])}
        return FieldCache(target, fields, FieldInfo(**known))


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
