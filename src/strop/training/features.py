"""The field cache: the teacher's fields of a dataset, computed once, in one mapped file.

The file is a safetensors file with a bf16 tensor `fields` (n, m, S, d_enc): n images, each in m
versions: as it is, then mirrored if there are flips, then in random views. Where the oracle of a
run goes by outlines, a float32 tensor `outlines` (n, m) follows. The metadata says of which
teacher, data, size and fit they are, by which settings the versions were made, and how close the
teacher looked for the outlines.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from strop.curriculum import total_variation
from strop.data.loader import image_batches
from strop.data.record import Dataset
from strop.errors import FormatError, TrainingError
from strop.files import PathLike, atomic_path, check_format, format_tag
from strop.images import Fit
from strop.model.teacher import PIXELS_PER_LOCATION, Teacher
from strop.model.tokenizer import TokenizerConfig
from strop.training.config import TrainingConfig
from strop.training.draws import uniform
from strop.training.views import MIRROR, NUMBERS, random_views

_KIND, _VERSION = "fields", 1
_LOCATIONS_AT_ONCE = 16_384  # seen closer by, a batch may be more than memory or caches hold
_HEADER = 4096  # fixed, so that it can be written once the number of images is known

Progress = Callable[[int, int], None]
"""Called with how many images are done and how many there are."""


class Seen(NamedTuple):
    """What the teacher sees of b images, each in m versions.

    fields    (b, m, S, d_enc) bf16
    outlines  (b, m) float32, as the oracle of that name has them, or None
    """

    fields: Tensor
    outlines: Tensor | None


@dataclass(frozen=True)
class FieldCache:
    """An open cache. `seen.fields` is mapped: rows are read when touched."""

    path: Path
    seen: Seen
    teacher: str
    data: str
    image_size: int
    fit: str
    versions: Mapping[str, Any]
    zoom: int | None

    def check(
        self, config: TokenizerConfig, training: TrainingConfig, zoom: int | None = None
    ) -> None:
        """Refuse a cache that is not of this model's teacher, size and fit, or of other views, or
        that lacks the outlines that a run asks for, seen `zoom` times as close."""
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
            "locations and width of fields": list(self.seen.fields.shape[2:]),
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
        if zoom not in (None, self.zoom):
            has = "no outlines" if self.zoom is None else f"outlines at a zoom of {self.zoom}"
            raise TrainingError(
                f"The cache {self.path} has {has}; curriculum.oracle_zoom is {zoom}.",
                "Write it again with `strop data features` and the run's preset and settings.",
            )


@torch.no_grad()
def compute_fields(
    dataset: Dataset,
    teacher: Teacher,
    *,
    size: int,
    fit: Fit,
    training: TrainingConfig,
    zoom: int | None = None,
    batch: int = 64,
    workers: int = 0,
    report: Callable[[str], None] | None = None,
) -> Iterator[Seen]:
    """The fields of all images of a dataset, some at a time, in order, in all versions that
    `training` asks for; with `zoom` their outlines, too.

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
            outlines = None
            if zoom is not None:
                once = shown[:1] + shown[1 + training.flip :]  # mirrored, outlines stay as they are
                seen = [outlines_of(teacher, each, zoom) for each in once]
                outlines = torch.stack(seen[:1] * (1 + training.flip) + seen[1:], dim=1)
        yield Seen(fields, outlines)


def outlines_of(teacher: Callable[[Tensor, int], Tensor], images: Tensor, zoom: int) -> Tensor:
    """(B,): what the oracle `outlines` goes by, of square uint8 images (B, 3, H, H)."""
    side = images.shape[-1] // PIXELS_PER_LOCATION * zoom
    parts = images.split(max(_LOCATIONS_AT_ONCE // side**2, 1))
    fields = (teacher(part, zoom).unflatten(1, (side, side)) for part in parts)
    return torch.cat([total_variation(field) for field in fields])


def view_images(images: Tensor, uniform: Tensor, training: TrainingConfig) -> Tensor:
    """Random views (B, 3, H, H) uint8 of images, by `uniform` (B, NUMBERS); see `random_views`."""
    if not training.flip:
        uniform = uniform.index_fill(1, torch.tensor([MIRROR], device=uniform.device), 1.0)
    return random_views(images, uniform, smallest=training.view_area).round().to(torch.uint8)


def write_fields(
    path: PathLike,
    chunks: Iterator[Seen],
    *,
    images: int,
    teacher: str,
    data: str,
    size: int,
    fit: str,
    training: TrainingConfig,
    zoom: int | None = None,
    progress: Progress | None = None,
) -> FieldCache:
    """Write what `compute_fields` yields to `path`, whole or not at all, and open it."""
    target, done = Path(path), 0
    shape: tuple[int, ...] = (0, 0, 0)
    outlines: list[Tensor] = []
    try:
        with atomic_path(target) as temporary, temporary.open("wb") as file:
            file.write(b" " * _HEADER)
            for fields, more in chunks:
                file.write(fields.contiguous().cpu().view(torch.uint16).numpy().tobytes())
                done, shape = done + len(fields), tuple(fields.shape[1:])
                outlines += [] if more is None else [more.float().cpu()]
                if progress is not None:
                    progress(done, images)
            if not done:
                raise TrainingError(
                    f"No field could be computed from {data}.", "Check the dataset."
                )
            for part in outlines:
                file.write(part.numpy().tobytes())
            file.seek(0)
            about = {"teacher": teacher, "data": data, "image_size": str(size), "fit": fit}
            about["versions"] = json.dumps(_versions(training))
            if outlines:
                about["zoom"] = str(zoom)
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
        zoom = int(about["zoom"]) if "outlines" in header else None
    except OSError as error:
        raise TrainingError(
            f"The cache {target} cannot be read ({error.strerror or error}).",
            "Write it with `strop data features`.",
        ) from error
    except (ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise FormatError(
            f"{target} is not a field cache ({error!r}).", "Write one with `strop data features`."
        ) from error
    begins = 8 + length + 2 * int(np.prod(shape))
    expected = begins + (4 * int(np.prod(shape[:2])) if zoom is not None else 0)
    if len(shape) != 4 or described["dtype"] != "BF16" or target.stat().st_size != expected:
        raise FormatError(
            f"{target} is cut short or damaged: {target.stat().st_size} bytes, not {expected}.",
            "Write it again with `strop data features`.",
        )
    # Copy-on-write rather than read-only, which torch warns of; nothing is ever written back.
    mapped = np.memmap(target, dtype=np.uint16, mode="c", offset=8 + length, shape=shape)
    fields, outlines = torch.from_numpy(mapped).view(torch.bfloat16), None
    if zoom is not None:
        read = np.fromfile(target, dtype=np.float32, offset=begins)
        outlines = torch.from_numpy(read).view(shape[:2])
    return FieldCache(target, Seen(fields, outlines), teacher, data, size, fit, versions, zoom)


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
    content: dict[str, Any] = {"__metadata__": {"format": format_tag(_KIND, _VERSION), **about}}
    ends = 0
    for name, kind, size, dimensions in (
        ("fields", "BF16", 2, shape),
        *([("outlines", "F32", 4, shape[:2])] if "zoom" in about else []),
    ):
        begins, ends = ends, ends + size * int(np.prod(dimensions))
        content[name] = {"dtype": kind, "shape": list(dimensions), "data_offsets": [begins, ends]}
    text = json.dumps(content).encode()
    room = _HEADER - 8
    if len(text) > room:
        raise TrainingError(
            "The name of the teacher or of the data is too long for the cache.", "Shorten it."
        )
    return struct.pack("<Q", room) + text.ljust(room)
