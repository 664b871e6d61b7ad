"""The field cache: the teacher's fields of a dataset, computed once, in one mapped file.

The file is a safetensors file with a bf16 tensor `fields` (n, m, S, d_enc): n images, each in m
versions: as it is, then mirrored if there are flips, then in random views. The metadata names the
teacher, the data, size and fit, and the settings of the versions.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.data.record import Dataset
from strop.data.stream import image_batches
from strop.errors import FormatError, TrainingError
from strop.files import PathLike, atomic_path, check_format, format_tag
from strop.images import Fit
from strop.model.teacher import Teacher
from strop.model.tokenizer import TokenizerConfig
from strop.training.config import TrainingConfig
from strop.training.draws import uniform
from strop.training.views import MIRROR, NUMBERS, random_views

_KIND, _VERSION = "fields", 1
_HEADER = 4096  # fixed, so that it can be written once the number of images is known

Progress = Callable[[int, int], None]
"""Called with how many images are done and how many there are."""


@dataclass(frozen=True)
class FieldCache:
    """An open cache. `fields` is mapped: rows are read from the file when they are used."""

    path: Path
    fields: Tensor
    teacher: str
    data: str
    image_size: int
    fit: str
    versions: Mapping[str, Any]

    def check(self, config: TokenizerConfig, training: TrainingConfig) -> None:
        """Refuse a cache of another teacher, size, fit or other versions of the images."""
        expected = {
            "teacher": config.teacher.name,
            "image_size": config.image_size,
            "fit": config.fit,
            "locations and width of fields": [config.grid**2, config.teacher.width],
        }
        found = {
            "teacher": self.teacher,
            "image_size": self.image_size,
            "fit": self.fit,
            "locations and width of fields": list(self.fields.shape[2:]),
        }
        for what, value in expected.items():
            if found[what] != value:
                raise TrainingError(
                    f"The cache {self.path} does not fit the model: its {what} is {found[what]}, "
                    f"the model's {value}.",
                    "Write one for this model with `strop data features`, or name another.",
                )
        if self.versions != _versions(training):
            raise TrainingError(
                f"The cache {self.path} was made with {_told(self.versions)}; the run has "
                f"{_told(_versions(training))}.",
                "Write it again with these, or change them with --set.",
            )


@torch.no_grad()
def compute_fields(
    dataset: Dataset,
    teacher: Teacher,
    *,
    size: int,
    fit: Fit,
    training: TrainingConfig,
    batch: int = 64,
    workers: int = 0,
    report: Callable[[str], None] | None = None,
) -> Iterator[Tensor]:
    """Fields (b, m, S, d_enc) bf16 of all images of a dataset, in order, a batch at a time.

    The m versions of each image are those of `training`.

    Broken images are left out; `report` is told of them at the end. On a GPU the teacher runs in
    bf16, and on the device its weights are on.
    """
    device = teacher.mean.device
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    batches = image_batches(
        dataset, size=size, fit=fit, batch=batch, device=device, workers=workers, report=report
    )
    for number, images in enumerate(batches):
        shown = [images, images.flip(-1)] if training.flip else [images]
        for view in range(training.views):
            chance = uniform(training.seed, f"view {view}", number, len(images), NUMBERS)
            shown.append(view_images(images, chance.to(device), training))
        with autocast:
            fields = torch.stack([teacher(version) for version in shown], dim=1).bfloat16()
        yield fields


def view_images(images: Tensor, uniform: Tensor, training: TrainingConfig) -> Tensor:
    """Random views (B, 3, H, H) uint8 of images, by `uniform` (B, NUMBERS); see `random_views`."""
    if not training.flip:
        uniform = uniform.index_fill(1, torch.tensor([MIRROR], device=uniform.device), 1.0)
    return random_views(images, uniform, smallest=training.view_area).round().to(torch.uint8)


def write_fields(
    path: PathLike,
    chunks: Iterator[Tensor],
    *,
    images: int,
    teacher: str,
    data: str,
    size: int,
    fit: str,
    training: TrainingConfig,
    progress: Progress | None = None,
) -> FieldCache:
    """Write what `compute_fields` yields to `path`, whole or not at all, and open it."""
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
                    f"No field could be computed from {data}.", "Check the dataset."
                )
            file.seek(0)
            about = {"teacher": teacher, "data": data, "image_size": str(size), "fit": fit}
            about["versions"] = json.dumps(_versions(training))
            file.write(_header((done, *shape), about))
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
        if "versions" not in about:  # which once were not told
            raise FormatError(
                f"{target} is of an older strop and does not say which views it holds.",
                "Delete it and write it again with `strop data features`.",
            )
        shape = tuple(int(n) for n in described["shape"])
        size, teacher, data = int(about["image_size"]), about["teacher"], about["data"]
        fit, versions = about["fit"], dict(json.loads(about["versions"]))
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
    # Copy-on-write rather than read-only, which torch warns of; nothing is ever written back.
    mapped = np.memmap(target, dtype=np.uint16, mode="c", offset=8 + length, shape=shape)
    fields = torch.from_numpy(mapped).view(torch.bfloat16)
    return FieldCache(target, fields, teacher, data, size, fit, versions)


def _versions(training: TrainingConfig) -> dict[str, Any]:
    """The settings that the versions of an image depend on."""
    settings: dict[str, Any] = {"flip": training.flip, "views": training.views}
    if training.views:  # the seed does not count: views of another one are as good
        settings["view_area"] = training.view_area
    return settings


def _told(versions: Mapping[str, Any]) -> str:
    return ", ".join(f"training.{name} = {json.dumps(value)}" for name, value in versions.items())


def _header(shape: tuple[int, ...], about: dict[str, str]) -> bytes:
    """A safetensors header of exactly `_HEADER` bytes, its length included."""
    size = 2 * int(np.prod(shape))
    content = {
        "__metadata__": {"format": format_tag(_KIND, _VERSION), **about},
        "fields": {"dtype": "BF16", "shape": list(shape), "data_offsets": [0, size]},
    }
    text = json.dumps(content).encode()
    room = _HEADER - 8
    if len(text) > room:
        raise TrainingError(
            "The name of the teacher or of the data is too long for the cache.", "Shorten it."
        )
    return struct.pack("<Q", room) + text.ljust(room)
