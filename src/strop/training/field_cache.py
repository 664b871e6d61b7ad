"""The teacher's fields of images: computed in versions, in memory or in a cache file.

The cache is a memory-mapped safetensors file. Its tensor `fields` is (n, m, S, d_enc) bf16: n
images in m versions each, which are the unchanged image, the mirrored one if there are flips, and
random views. The metadata is what they depend on.
"""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from strop import identity
from strop.config import changes, flatten
from strop.data.loader import image_batches
from strop.data.record import Dataset
from strop.data.spec import open_dataset
from strop.errors import FormatError, TeacherError, TrainingError, parsing
from strop.files import PathLike, atomic_path, check_format, format_tag
from strop.model.teacher import Teacher, load_teacher
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.progress import Progress, no_progress
from strop.training.draws import uniform
from strop.training.preset import TrainingConfig
from strop.training.views import NUMBERS, view_images

_KIND, _VERSION = "fields", 1
_NAMES = ("teacher", "data", "teacher_digest", "data_digest", "image_size", "fit", "versions")
_HEADER = 4096  # fixed, because it is written last, when the number of images is known


def teacher_field(teacher: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """The field of uint8 images (B, 3, H, H), without gradient; bf16 on a GPU."""
    device = images.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return teacher(images)


def compiled_teacher(teacher: Teacher, compiled: bool, *sizes: int) -> Callable[..., Tensor]:
    """The teacher as a function, optionally compiled, of images with these sides."""
    if not compiled:
        return teacher
    for size in sizes:  # it keeps what depends on the size alone
        teacher(torch.zeros(1, 3, size, size, dtype=torch.uint8, device=teacher.mean.device))
    return torch.compile(teacher, dynamic=False)


def compute_fields(
    batches: Iterable[Tensor], teacher: Teacher, training: TrainingConfig
) -> Iterator[Tensor]:
    """Fields (b, m, S, d_enc) bf16 of batches (b, 3, H, H) uint8, in the m versions of `training`.

    The teacher runs on the device of its weights, on a GPU in bf16.
    """
    device = teacher.mean.device
    for number, images in enumerate(batches):
        shown = [images, images.flip(-1)] if training.flip else [images]
        for view in range(training.views):
            random = uniform(training.seed, f"view {view}", number, len(images), NUMBERS)
            shown.append(view_images(images, random.to(device), training))
        fields = [teacher_field(teacher, version) for version in shown]
        yield torch.stack(fields, dim=1).bfloat16()


@dataclass(eq=False)
class FieldComputer:
    """Computes fields with the model's teacher, or with that of `tokenizer`, loaded on first use.

    `report` is called with a message that names broken images.
    """

    config: TokenizerConfig
    training: TrainingConfig
    device: torch.device
    loading_workers: int = 0
    report: Callable[[str], None] | None = None
    tokenizer: Tokenizer | None = None

    @cached_property
    def teacher(self) -> Teacher:
        """The teacher, on the device."""
        expected = self.config.teacher
        teacher = self.tokenizer.teacher if self.tokenizer else load_teacher(expected.name)
        if teacher.width != expected.width:
            raise TrainingError(
                f"The teacher {expected.name} has fields of width {teacher.width}, the model "
                f"expects {expected.width}.",
                "Set model.teacher.width to the teacher's.",
            )
        return teacher.to(self.device)

    @property
    def loaded_digest(self) -> str:
        """The teacher's digest; empty if it was not loaded."""
        return self.teacher.digest if "teacher" in self.__dict__ else ""

    def write(
        self, path: PathLike, origin: Mapping[str, Any], dataset: Dataset, progress: Progress
    ) -> FieldCache:
        """Write the fields of a dataset to a cache file."""
        chunks = self.chunks(dataset, self.training)
        return write_fields(path, chunks, origin, images=len(dataset), progress=progress)

    def origin(self, data: str, data_digest: str) -> dict[str, Any]:
        """What the fields of `data` depend on. A teacher that cannot be loaded has no digest."""
        teacher_digest = ""
        with suppress(TeacherError):
            teacher_digest = self.teacher.digest
        return origin_of(self.config, self.training, data, data_digest, teacher_digest)

    def chunks(self, dataset: Dataset, training: TrainingConfig) -> Iterator[Tensor]:
        """The fields of a dataset in chunks, in all versions of `training`."""
        images = image_batches(
            dataset,
            size=self.config.image_size,
            fit=self.config.fit,
            device=self.device,
            workers=self.loading_workers,
            report=self.report,
        )
        return compute_fields(images, self.teacher, training)

    def plain(self, source: Dataset | Tensor) -> Tensor:
        """(n, S, d_enc) bf16: the fields of the unchanged images of a dataset, or of fields."""
        if isinstance(source, Tensor):
            return source[:, 0]
        return self.fields(source, replace(self.training, flip=False, views=0))[:, 0]

    def fields(
        self, dataset: Dataset, training: TrainingConfig, progress: Progress = no_progress
    ) -> Tensor:
        """(n, m, S, d_enc) bf16 on the device: all fields of a dataset, in m versions."""
        shape = (self.config.grid**2, self.config.teacher.width)
        # Written in place, because they may fill more than half of a GPU.
        fields = torch.empty(
            (len(dataset), training.versions, *shape), dtype=torch.bfloat16, device=self.device
        )
        done = 0
        for chunk in self.chunks(dataset, training) if len(dataset) else ():
            fields[done : done + len(chunk)] = chunk
            done += len(chunk)
            progress("computing fields", done, len(dataset))
        return fields[:done]


def cache_fields(
    path: PathLike,
    data: str | Dataset,
    config: TokenizerConfig,
    training: TrainingConfig,
    *,
    device: str | torch.device = "cpu",
    loading_workers: int = 0,
    progress: Progress = no_progress,
) -> FieldCache:
    """Write the fields of a dataset, in the versions of `training`, to a cache file."""
    computer = FieldComputer(config, training, torch.device(device), loading_workers, warnings.warn)
    dataset = open_dataset(data)
    name = data if isinstance(data, str) else dataset.name
    origin = computer.origin(name, identity.of_dataset(dataset))
    return computer.write(path, origin, dataset, progress)


def origin_of(
    config: TokenizerConfig,
    training: TrainingConfig,
    data: str,
    data_digest: str,
    teacher_digest: str,
) -> dict[str, Any]:
    """What fields depend on; digests are of `strop.identity`, or empty if unknown."""
    versions: dict[str, Any] = {"flip": training.flip, "views": training.views}
    if training.views:  # views of any seed will do
        versions["view_area"] = training.view_area
    return {
        "teacher": config.teacher.name,
        "data": data,
        "teacher_digest": teacher_digest,
        "data_digest": data_digest,
        "image_size": config.image_size,
        "fit": config.fit,
        "versions": versions,
    }


@dataclass(frozen=True)
class FieldCache:
    """An open cache. `fields` is memory-mapped; `origin` is what `origin_of` gave."""

    path: Path
    fields: Tensor
    origin: dict[str, Any]

    def check(self, expected: Mapping[str, Any], shape: tuple[int, int]) -> None:
        """Raise if the fields have another origin or are not of `shape` (S, d_enc)."""
        found = {**self.origin, "field": list(self.fields.shape[2:])}
        wanted = {**expected, "field": list(shape)}
        wanted["teacher_digest"] = expected["teacher_digest"] or self.origin["teacher_digest"]
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
    origin: Mapping[str, Any],
    *,
    images: int,
    progress: Progress = no_progress,
) -> FieldCache:
    """Write chunks (b, m, S, d_enc) of fields and their origin atomically, and open the file."""
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
                    f"No field could be computed from {origin['data']}.", "Check the dataset."
                )
            file.seek(0)
            file.write(_header((done, *shape), origin))
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
        return FieldCache(target, fields, known)


def _header(shape: tuple[int, ...], origin: Mapping[str, Any]) -> bytes:
    """A safetensors header of exactly `_HEADER` bytes, its length included."""
    about = {name: str(origin[name]) for name in _NAMES}
    about |= {"format": format_tag(_KIND, _VERSION), "versions": json.dumps(origin["versions"])}
    size = 2 * int(np.prod(shape))
    described = {"dtype": "BF16", "shape": list(shape), "data_offsets": [0, size]}
    text = json.dumps({"__metadata__": about, "fields": described}).encode()
    room = _HEADER - 8
    if len(text) > room:
        raise TrainingError(
            "The name of the teacher or of the data is too long for the cache.", "Shorten it."
        )
    return struct.pack("<Q", room) + text.ljust(room)
