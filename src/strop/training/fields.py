"""From what a user names as data to a source of fields and a held-out slice."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from strop.data.record import Dataset
from strop.data.spec import open_dataset, parse_spec
from strop.data.subset import subset
from strop.device import to_device_if_fits
from strop.errors import TrainingError
from strop.files import PathLike
from strop.model.teacher import Teacher, describe_teacher, load_teacher, scale_for
from strop.model.tokenizer import TokenizerConfig
from strop.training import distributed
from strop.training.config import TrainingConfig
from strop.training.distributed import Workers
from strop.training.features import (
    FieldCache,
    Progress,
    compute_fields,
    open_fields,
    write_fields,
)
from strop.training.preset import Preset
from strop.training.sources import FieldSource, ImageSource, Source, compiled_teacher, split


@dataclass(frozen=True)
class Fields:
    """A run's data, and the model's config with the teacher that was used.

    held_out  (V, S, d_enc) bf16, in the teacher's scale
    name      what a card calls the data
    """

    source: Source
    held_out: Tensor
    config: TokenizerConfig
    name: str


def open_data(
    preset: Preset,
    data: str | Dataset | Tensor,
    *,
    validation: str | Dataset | Tensor | None = None,
    cache: PathLike | None = None,
    teacher: str | None = None,
    workers: Workers,
    device: torch.device,
    loading_workers: int = 0,
    progress: Progress | None = None,
) -> Fields:
    """Open what `strop.train` was given; see there for the arguments."""
    check_held_out(data, validation)
    config, training = preset.model, preset.training
    if teacher is not None:
        config = replace(config, teacher=describe_teacher(teacher))
    # Where all processes compute the same fields, one of them tells.
    report = warnings.warn if workers.first else None
    maker = _Maker(config, training, device, loading_workers, report)
    dataset: Dataset | None = None
    cached: Tensor | None
    if isinstance(data, Tensor):
        cached = _checked(data, config)
    else:
        dataset = _dataset(data)
        name = data if isinstance(data, str) else dataset.name
        cached = _cached_fields(cache, maker, dataset, name, workers, progress)

    def some(indices: Tensor) -> Tensor:
        """The fields of some images as they are, (n, S, d_enc)."""
        if cached is not None:
            return cached[indices.to(cached.device), 0]
        assert dataset is not None
        return maker.plain(subset(dataset, indices.tolist()))

    images = len(cached if cached is not None else dataset or ())
    kept, held = split(images, 0 if validation is not None else training.held_out)
    if validation is None:
        held_out = some(held)
    elif isinstance(validation, Tensor):
        held_out = _checked(validation, config)[:, 0]
    else:
        held_out = maker.plain(_dataset(validation))
    if teacher is not None:
        sample = held_out if len(held_out) else some(kept[:16])
        config = replace(config, teacher=replace(config.teacher, scale=scale_for(sample)))

    source: Source
    if cached is not None:
        fields = to_device_if_fits(cached, device)
        source = FieldSource(fields, training, workers, device=device, kept=kept)
    else:
        assert dataset is not None
        source = ImageSource(
            subset(dataset, kept.tolist()),
            compiled_teacher(maker.teacher, device.type == "cuda" and training.compile != "off"),
            training,
            workers,
            size=config.image_size,
            fit=config.fit,
            device=device,
            loading_workers=loading_workers,
        )
    return Fields(source, held_out.to(device), config, data_name(data))


def check_held_out(data: object, validation: object) -> None:
    """Refuse to measure on the very images that are learnt from."""
    if not (isinstance(data, str) and isinstance(validation, str)):
        return
    if parse_spec(data) == parse_spec(validation):
        raise TrainingError(
            f"{validation} would be learnt from and measured on.",
            "Give --val other images; without it, some of --data are kept back.",
        )


def data_name(data: str | Dataset | Tensor) -> str:
    """What a card calls the data: where it lay is nobody's business."""
    if isinstance(data, Tensor):
        return "images in memory" if data.dtype == torch.uint8 else "fields in memory"
    if not isinstance(data, str):
        return data.name
    spec = parse_spec(data)
    return str(replace(spec, path=Path(spec.path).name))


def _cached_fields(
    cache: PathLike | None,
    maker: _Maker,
    dataset: Dataset,
    name: str,
    workers: Workers,
    progress: Progress | None,
) -> Tensor | None:
    """The fields of a dataset, if they are to be computed once rather than in every step."""
    if cache is None:
        return None
    if cache == "memory":
        return maker.all(dataset, progress)
    return _cached(Path(cache), maker, dataset, name, workers, progress).fields


class _Maker:
    """Computes fields with the model's teacher, which is loaded only if it is needed.

    `report` is told of broken images.
    """

    def __init__(
        self,
        config: TokenizerConfig,
        training: TrainingConfig,
        device: torch.device,
        loading: int,
        report: Callable[[str], None] | None,
    ) -> None:
        self.config, self.training = config, training
        self.device, self.loading, self.report = device, loading, report
        self._teacher: Teacher | None = None

    @property
    def teacher(self) -> Teacher:
        if self._teacher is None:
            self._teacher = load_teacher(self.config.teacher.name).to(self.device)
            if self._teacher.width != self.config.teacher.width:
                raise TrainingError(
                    f"The teacher {self.config.teacher.name} has fields of width "
                    f"{self._teacher.width}, the model expects {self.config.teacher.width}.",
                    "Set model.teacher.width to the teacher's.",
                )
        return self._teacher

    def chunks(self, dataset: Dataset, training: TrainingConfig | None = None) -> Iterator[Tensor]:
        """A dataset in order, a few images at a time, in all versions of the training config."""
        return compute_fields(
            dataset,
            self.teacher,
            size=self.config.image_size,
            fit=self.config.fit,
            training=training or self.training,
            workers=self.loading,
            report=self.report,
        )

    def plain(self, dataset: Dataset) -> Tensor:
        """(n, S, d_enc) bf16 on the device: the fields of the images as they are."""
        if not len(dataset):
            return self._room(0)
        once = replace(self.training, flip=False, views=0)
        return torch.cat([fields[:, 0] for fields in self.chunks(dataset, once)])

    def all(self, dataset: Dataset, progress: Progress | None = None) -> Tensor:
        """All of a dataset, on the device."""
        # Into place, because the fields of a dataset may fill more than half of a GPU.
        fields = self._room(len(dataset), self.training.versions)
        done = 0
        for chunk in self.chunks(dataset):
            fields[done : done + len(chunk)] = chunk
            done += len(chunk)
            if progress is not None:
                progress(done, len(dataset))
        return fields[:done]

    def _room(self, *images: int) -> Tensor:
        config = self.config
        shape = (*images, config.grid**2, config.teacher.width)
        return torch.empty(shape, dtype=torch.bfloat16, device=self.device)


def cache_fields(
    path: PathLike,
    data: str | Dataset,
    config: TokenizerConfig,
    training: TrainingConfig,
    *,
    device: str | torch.device = "cpu",
    loading_workers: int = 0,
    progress: Progress | None = None,
) -> FieldCache:
    """Write the fields of a dataset, as a run with these settings sees it, to a cache file."""
    maker = _Maker(config, training, torch.device(device), loading_workers, warnings.warn)
    dataset = _dataset(data)
    name = data if isinstance(data, str) else data.name
    return _written(Path(path), maker, dataset, name, progress)


def _written(
    path: Path, maker: _Maker, dataset: Dataset, name: str, progress: Progress | None
) -> FieldCache:
    config = maker.config
    return write_fields(
        path,
        maker.chunks(dataset),
        images=len(dataset),
        teacher=config.teacher.name,
        data=name,
        size=config.image_size,
        fit=config.fit,
        training=maker.training,
        progress=progress,
    )


def _cached(
    path: Path,
    maker: _Maker,
    dataset: Dataset,
    name: str,
    workers: Workers,
    progress: Progress | None,
) -> FieldCache:
    """The cache at `path`; the first process writes it if it is not there."""
    if not path.exists() and workers.first:
        _written(path, maker, dataset, name, progress)
    distributed.wait_for_all()
    cache = open_fields(path)
    cache.check(maker.config, maker.training)
    if cache.data != name:
        raise TrainingError(
            f"The cache {path} is of {cache.data}, not of {name}.",
            "Name another file with --cache, or the data it is of.",
        )
    return cache


def _dataset(data: str | Dataset) -> Dataset:
    return open_dataset(data) if isinstance(data, str) else data


def _checked(fields: Tensor, config: TokenizerConfig) -> Tensor:
    expected = (config.grid**2, config.teacher.width)
    if fields.ndim != 4 or tuple(fields.shape[2:]) != expected:
        raise TrainingError(
            f"Fields of shape {tuple(fields.shape)} do not fit the model.",
            f"Give (n, m, {expected[0]}, {expected[1]}), m versions of each image.",
        )
    return fields
