"""The data of a run: loaders of fields, from memory or from the teacher, and held-out fields."""

from __future__ import annotations

import itertools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from strop import identity
from strop.data.loader import Loader
from strop.data.record import Dataset
from strop.data.spec import open_dataset, parse_spec
from strop.data.subset import Subset
from strop.device import to_device, to_device_if_fits
from strop.errors import TrainingError
from strop.files import PathLike
from strop.images import Fit
from strop.model.teacher import describe_teacher, scale_for
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.pool import map_ahead
from strop.progress import Progress, no_progress
from strop.training import distributed
from strop.training.distributed import Workers
from strop.training.draws import Order, generator, versions
from strop.training.field_cache import FieldComputer, compiled_teacher, open_fields, teacher_field
from strop.training.preset import Preset, TrainingConfig
from strop.training.views import draw_versions, version_images

Loaded = tuple[Tensor, ...]

AHEAD = 3
"""Number of batches that are read in advance."""


@dataclass(frozen=True)
class RunData:
    """The data of a run.

    preset                       with the teacher that was used, and a smaller batch for few images
    held_out                     (V, S, d_enc) bf16, in the teacher's scale
    name                         name of the data for a model card
    teacher_digest, data_digest  identities of teacher and data; empty if unknown
    """

    loader: FieldLoader
    preset: Preset
    held_out: Tensor
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

    teacher_digest = ""
    if isinstance(source, Tensor):
        data_digest = identity.digest(list(source.shape), identity.of_tensor(source[:8]))
    else:
        data_digest = identity.of_dataset(source)
        if cache == "memory":
            source = computer.fields(source, training, progress)  # without broken images
        elif cache is not None:
            if workers.first:
                name = data if isinstance(data, str) else source.name
                origin = computer.origin(name, data_digest)
                if not Path(cache).exists():
                    computer.write(cache, origin, source, progress)
                open_fields(cache).check(origin, (config.grid**2, config.teacher.width))
            distributed.wait_for_all()
            file = open_fields(cache)
            source, teacher_digest = file.fields, file.origin["teacher_digest"]
    kept, held = split(len(source), most)
    held_out = computer.plain(_rows(source, held) if other is None else other)
    if teacher is not None:
        sample = held_out if len(held_out) else computer.plain(_rows(source, kept[:16]))
        config = replace(config, teacher=replace(config.teacher, scale=scale_for(sample)))

    loader: FieldLoader
    if isinstance(source, Tensor):
        resident = to_device_if_fits(source, device)
        loader = CachedFieldLoader(resident, training, workers, device=device, kept=kept)
    else:
        compiled = device.type == "cuda" and training.compile != "off"
        loader = OnlineFieldLoader(
            Subset(source, kept.tolist()),
            compiled_teacher(computer.teacher, compiled, config.image_size),
            training,
            workers,
            size=config.image_size,
            fit=config.fit,
            device=device,
            loading_workers=loading_workers,
        )
    return RunData(
        loader,
        replace(preset, model=config, training=training),
        held_out.to(device),
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


def _rows(source: Dataset | Tensor, indices: Tensor) -> Dataset | Tensor:
    """Some records of a dataset, or some fields."""
    if isinstance(source, Tensor):
        return source[indices.to(source.device)]
    return Subset(source, indices.tolist())


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


class FieldLoader(ABC):
    """Endless batches of fields of `images` images, as a pure function of the step."""

    def __init__(
        self, images: int, training: TrainingConfig, workers: Workers, device: torch.device
    ) -> None:
        check_images(images, training.batch)
        self.images, self.training = images, training
        self.workers, self.device = workers, device
        self.order = Order(images, training.batch, seed=training.seed)

    @abstractmethod
    def batches(self, step: int) -> Iterator[Loaded]:
        """This process's part of the batches of `step`, `step + 1`, ..., on the device."""

    @abstractmethod
    def field_of(self, loaded: Loaded) -> Tensor:
        """The field (B, S, d_enc), in the teacher's scale, of one of those batches."""

    def report(self) -> str | None:
        """A message that names the broken images so far; None if there are none."""
        return None


class CachedFieldLoader(FieldLoader):
    """Batches of fields (n, m, S, d_enc) in memory or mapped, one random version of each image.

    The step gathers fields that are on its device. Otherwise a thread reads batches in advance.
    `kept` are the training images, by default all.
    """

    def __init__(
        self,
        fields: Tensor,
        training: TrainingConfig,
        workers: Workers,
        *,
        device: torch.device,
        kept: Tensor | None = None,
    ) -> None:
        self.kept = torch.arange(len(fields)) if kept is None else kept
        super().__init__(len(self.kept), training, workers, device)
        self.versions = fields.shape[1]
        self.fields = fields.flatten(0, 1)
        self.resident = fields.device.type == device.type

    def rows(self, step: int) -> Tensor:
        """(B,) int64: the rows of this process's batch in the flattened fields."""
        training = self.training
        rows = self.kept[self.order.rows(step)] * self.versions
        rows = rows + versions(training.seed, step, training.batch, self.versions)
        return rows[self.workers.share(training.batch)]

    def batches(self, step: int) -> Iterator[Loaded]:
        """See `FieldLoader`."""
        if self.resident:
            while True:
                yield (to_device(self.rows(step), self.device),)
                step += 1
        # The thread does no device work, which could interfere with the recording of a CUDA graph.
        read = map_ahead(
            lambda step: self.fields[self.rows(step)].pin_memory(), itertools.count(step), AHEAD
        )
        for fields in read:
            yield (fields.to(self.device, non_blocking=True),)

    def field_of(self, loaded: Loaded) -> Tensor:
        """See `FieldLoader`."""
        return self.fields[loaded[0]] if self.resident else loaded[0]


class OnlineFieldLoader(FieldLoader):
    """Batches of images; the teacher runs in the step."""

    def __init__(
        self,
        dataset: Dataset,
        teacher: Callable[[Tensor], Tensor],
        training: TrainingConfig,
        workers: Workers,
        *,
        size: int,
        fit: Fit,
        device: torch.device,
        loading_workers: int = 0,
    ) -> None:
        super().__init__(len(dataset), training, workers, device)
        self.teacher = teacher
        self.loader = Loader(
            dataset,
            batch_size=training.batch // workers.world,
            size=size,
            fit=fit,
            seed=training.seed,
            shuffle=True,
            drop_last=True,
            workers=loading_workers,
            rank=workers.rank,
            world=workers.world,
            pin_memory=device.type == "cuda",
        )

    def batches(self, step: int) -> Iterator[Loaded]:
        """See `FieldLoader`."""
        epoch, position = self.order.place(step)
        self.loader.restore({"epoch": epoch, "position": position, "records": self.images})
        share = self.workers.share(self.training.batch)
        for batch in self.loader.forever():
            drawn = draw_versions(self.training, step)[share]
            yield to_device(batch.images, self.device), to_device(drawn, self.device)
            step += 1

    def field_of(self, loaded: Loaded) -> Tensor:
        """See `FieldLoader`."""
        images, drawn = loaded
        return teacher_field(self.teacher, version_images(images, drawn, self.training))

    def report(self) -> str | None:
        """See `FieldLoader`."""
        return self.loader.report()


def split(images: int, held_out: int) -> tuple[Tensor, Tensor]:
    """Training indices, and up to `held_out` validation indices (at most a tenth of `images`).

    They do not depend on the seed, so that all runs of a sweep have the same validation images.
    """
    held_out = min(held_out, images // 10)
    order = torch.randperm(images, generator=generator(0, "held out", images))
    return order[held_out:].sort().values, order[:held_out].sort().values


def check_images(images: int, batch: int) -> None:
    """Raise if the images do not fill one batch."""
    if images < batch:
        raise TrainingError(
            f"There are {images} images to train on, fewer than one batch of {batch}.",
            "Use more data or a smaller batch.",
        )
