"""Opens the data of a run: a loader of fields, and held-out fields."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from strop import identity
from strop.data.loader import image_batches
from strop.data.record import Dataset
from strop.data.spec import open_dataset, parse_spec
from strop.data.subset import Subset
from strop.device import to_device_if_fits
from strop.errors import TeacherError, TrainingError
from strop.files import PathLike
from strop.model.teacher import Teacher, describe_teacher, load_teacher, scale_for
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.progress import Progress, no_progress
from strop.training import distributed
from strop.training.distributed import Workers
from strop.training.draws import uniform
from strop.training.field_cache import (
    FieldCache,
    FieldInfo,
    open_fields,
    versions_of,
    write_fields,
)
from strop.training.loaders import (
    CachedFieldLoader,
    FieldLoader,
    OnlineFieldLoader,
    check_images,
    compiled_teacher,
    split,
    teacher_field,
)
from strop.training.preset import Preset, TrainingConfig
from strop.training.views import NUMBERS, view_images


@dataclass(frozen=True)
class RunData:
    """The data of a run, and the model's config with the teacher that was used.

    training                     the settings, with a smaller batch if there are few images
    held_out                     (V, S, d_enc) bf16, in the teacher's scale
    name                         name of the data for a model card
    teacher_digest, data_digest  identities of teacher and data; empty if unknown
    """

    loader: FieldLoader
    training: TrainingConfig
    held_out: Tensor
    config: TokenizerConfig
    name: str
    teacher_digest: str
    data_digest: str


def open_data(
    preset: Preset,
    data: str | Dataset | Tensor,
    *,
    validation: str | Dataset | Tensor | None = None,
    cache: PathLike | None = None,
    teacher: str | None = None,
    tokenizer: Tokenizer | None = None,
    workers: Workers,
    device: torch.device,
    loading_workers: int = 0,
    progress: Progress = no_progress,
) -> RunData:
    """Open the data of `strop.train`; see there for the arguments."""
    check_held_out(data, validation)
    config, training = preset.model, preset.training
    if teacher is not None:
        config = replace(config, teacher=describe_teacher(teacher))
    # All processes compute the same held-out fields, so only one reports broken images.
    report = warnings.warn if workers.first else None
    computer = FieldComputer(config, training, device, loading_workers, report, tokenizer)
    # Whatever can be refused is refused before fields are computed.
    source = _opened(data, config)
    other = None if validation is None else _opened(validation, config)
    most = training.held_out if other is None else 0
    training = fitting(training, len(split(len(source), most)[0]), workers, report)

    fields, teacher_digest = None, ""
    if isinstance(source, Tensor):
        fields = source
        data_digest = identity.digest(list(fields.shape), identity.of_tensor(fields[:8]))
    else:
        data_digest = identity.of_dataset(source)
        if cache == "memory":
            fields = computer.fields(source, training, progress)
        elif cache is not None:
            name = data if isinstance(data, str) else source.name
            file = _cached(Path(cache), computer, source, name, data_digest, workers, progress)
            fields, teacher_digest = file.fields, file.info.teacher_digest

    def plain_fields(indices: Tensor) -> Tensor:
        """The fields of unchanged images, (n, S, d_enc)."""
        if isinstance(source, Tensor):
            return source[indices.to(source.device), 0]
        return computer.plain(Subset(source, indices.tolist()))

    if fields is not None:  # without broken images
        source = fields
    kept, held = split(len(source), most)
    if other is None:
        held_out = plain_fields(held)
    else:
        held_out = other[:, 0] if isinstance(other, Tensor) else computer.plain(other)
    if teacher is not None:
        sample = held_out if len(held_out) else plain_fields(kept[:16])
        config = replace(config, teacher=replace(config.teacher, scale=scale_for(sample)))

    loader: FieldLoader
    if isinstance(source, Tensor):
        resident = to_device_if_fits(source, device)
        loader = CachedFieldLoader(resident, training, workers, device=device, kept=kept)
    else:
        loader = OnlineFieldLoader(
            Subset(source, kept.tolist()),
            compiled_teacher(
                computer.teacher,
                device.type == "cuda" and training.compile != "off",
                config.image_size,
            ),
            training,
            workers,
            size=config.image_size,
            fit=config.fit,
            device=device,
            loading_workers=loading_workers,
        )
    return RunData(
        loader,
        training,
        held_out.to(device),
        config,
        data_name(data),
        teacher_digest or computer.loaded_digest,
        data_digest,
    )


def fitting(
    training: TrainingConfig,
    images: int,
    workers: Workers,
    report: Callable[[str], None] | None = None,
) -> TrainingConfig:
    """`training` with a batch that `images` can fill; a smaller batch is reported."""
    if images >= training.batch:
        return training
    most = images // workers.world
    check_images(most, 1)
    batch = 2 ** (most.bit_length() - 1) * workers.world
    if report is not None:
        report(
            f"There are {images} training images, fewer than a batch of {training.batch}: batches "
            f"have {batch} images."
            + ("" if training.batch <= 32 else " For few images see the preset strop-s-few.")
        )
    return replace(training, batch=batch)


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
    name = data if isinstance(data, str) else data.name
    info = computer.info(name, identity.of_dataset(dataset))
    chunks = computer.chunks(dataset, training)
    return write_fields(path, chunks, info, images=len(dataset), progress=progress)


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

    def info(self, data: str, data_digest: str, *, need_teacher: bool = True) -> FieldInfo:
        """The identity of the fields of a dataset.

        Without `need_teacher`, the digest is empty if the teacher cannot be loaded.
        """
        try:
            teacher_digest = self.teacher.digest
        except TeacherError:
            if need_teacher:
                raise
            teacher_digest = ""
        return FieldInfo(
            teacher=self.config.teacher.name,
            data=data,
            teacher_digest=teacher_digest,
            data_digest=data_digest,
            image_size=self.config.image_size,
            fit=self.config.fit,
            versions=versions_of(self.training),
        )

    def chunks(self, dataset: Dataset, training: TrainingConfig) -> Iterator[Tensor]:
        """The fields of a dataset in chunks, in all versions of `training`."""
        config = self.config
        images = image_batches(
            dataset,
            size=config.image_size,
            fit=config.fit,
            device=self.device,
            workers=self.loading_workers,
            report=self.report,
        )
        return compute_fields(images, self.teacher, training)

    def plain(self, dataset: Dataset) -> Tensor:
        """(n, S, d_enc) bf16 on the device: the fields of the unchanged images."""
        return self.fields(dataset, replace(self.training, flip=False, views=0))[:, 0]

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


@torch.no_grad()
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


def check_held_out(data: object, validation: object) -> None:
    """Raise if training and validation images are the same."""
    if not (isinstance(data, str) and isinstance(validation, str)):
        return
    if parse_spec(data) == parse_spec(validation):
        raise TrainingError(
            f"{validation} is both the training and the validation data.",
            "Give other images with --val, or omit it: then part of --data is held out.",
        )


def data_name(data: str | Dataset | Tensor) -> str:
    """The name of the data for a model card, without its parent folders."""
    if isinstance(data, Tensor):
        return "images in memory" if data.dtype == torch.uint8 else "fields in memory"
    if not isinstance(data, str):
        return data.name
    spec = parse_spec(data)
    return str(replace(spec, path=Path(spec.path).name))


def _cached(
    path: Path,
    computer: FieldComputer,
    dataset: Dataset,
    name: str,
    data_digest: str,
    workers: Workers,
    progress: Progress,
) -> FieldCache:
    """The cache at `path`, written by the first process if it does not exist."""
    config = computer.config
    if workers.first:
        new = not path.exists()
        info = computer.info(name, data_digest, need_teacher=new)
        if new:
            chunks = computer.chunks(dataset, computer.training)
            write_fields(path, chunks, info, images=len(dataset), progress=progress)
        open_fields(path).check(info, (config.grid**2, config.teacher.width))
    distributed.wait_for_all()
    return open_fields(path)


def _opened(data: str | Dataset | Tensor, config: TokenizerConfig) -> Dataset | Tensor:
    """An open dataset, or fields of the shape that the model takes."""
    if not isinstance(data, Tensor):
        return open_dataset(data)
    expected = (config.grid**2, config.teacher.width)
    if data.ndim != 4 or tuple(data.shape[2:]) != expected:
        raise TrainingError(
            f"Fields of shape {tuple(data.shape)} do not fit the model.",
            f"Give (n, m, {expected[0]}, {expected[1]}), m versions of each image.",
        )
    return data
