"""Refusals before any work: data that a task cannot be asked on, images on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from torch import Tensor

from strop.data.record import Dataset, first_readable
from strop.errors import DataError
from strop.evaluation.probes.fitting import LEAST_IMAGES

_NEEDS = {
    "semantic": ("masks", "VOC, Cityscapes, ADE20K, COCO-Stuff, NYUv2, CLEVR or scenes:"),
    "labels": ("labels", "VOC, COCO, a packed set with labels, or scenes:"),
    "depth": ("depth", "NYUv2 or scenes:"),
}


def check_datasets(train: Dataset, val: Dataset, part: str) -> None:
    """Refuse datasets whose records lack a part, or whose classes are not the same."""
    what, examples = _NEEDS[part]
    for dataset in (train, val):
        if getattr(first_readable(dataset), part) is None:
            raise DataError(f"{dataset.name} has no {what}.", f"Use data that has: {examples}.")
    for names in ("classes", "label_names"):
        if part != "depth" and getattr(train, names) != getattr(val, names):
            raise DataError(
                f"{train.name} and {val.name} have different {names.replace('_', ' ')}.",
                "Train and score a probe on two splits of one dataset.",
            )
    if len(train) < LEAST_IMAGES:
        raise DataError(
            f"{train.name} has {len(train)} images.",
            f"A probe is trained on at least {LEAST_IMAGES}.",
        )


def check_apart(
    train: Tensor, train_names: tuple[str, ...], val: Tensor, val_names: tuple[str, ...]
) -> None:
    """Refuse images (N, 3, H, H) uint8 of which one is on both sides, pixel by pixel."""
    _check_apart(zip(train, train_names, strict=True), zip(val, val_names, strict=True))


def check_records_apart(train: Dataset, val: Dataset) -> None:
    """The same for whole datasets, read once for it."""

    def images(dataset: Dataset) -> Iterator[tuple[Tensor, str]]:
        for row in range(len(dataset)):
            record = dataset[row]
            yield record.image, record.name

    _check_apart(images(train), images(val))


def _check_apart(train: Iterable[tuple[Tensor, str]], val: Iterable[tuple[Tensor, str]]) -> None:
    seen = {_digest(image): name for image, name in train}
    for image, name in val:
        twin = seen.get(_digest(image))
        if twin is not None:
            raise DataError(
                f"The image {name} to be scored is also trained on, as {twin}.",
                "Choose splits that share no image: another split, seed, skip or limit.",
            )


def _digest(image: Tensor) -> bytes:
    return hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest()
