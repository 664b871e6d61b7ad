"""Refusals of data that a probe cannot be trained or scored on."""

from __future__ import annotations

from torch import Tensor

from strop.analysis.probes.fitting import LEAST_IMAGES
from strop.analysis.probes.protocol import find_protocol
from strop.analysis.subject import Subject
from strop.data.record import Dataset
from strop.errors import DataError


def check_splits(subject: Subject, protocol: str, names: str = "") -> None:
    """Refuse an unknown protocol, and datasets that `check_classes` refuses."""
    find_protocol(protocol)
    train = subject if subject.train is None else subject.train
    check_classes(train.dataset, subject.dataset, names)


def check_classes(train: Dataset, measured: Dataset, names: str) -> None:
    """Refuse two datasets with different classes (`names` is their attribute), and few images."""
    if names and getattr(train, names) != getattr(measured, names):
        raise DataError(
            f"{train.name} and {measured.name} have different {names.replace('_', ' ')}.",
            "Train and score a probe on two splits of one dataset.",
        )
    if len(train) < LEAST_IMAGES:
        raise DataError(
            f"{train.name} has {len(train)} images.",
            f"A probe is trained on at least {LEAST_IMAGES}.",
        )


def required(part: Tensor | None) -> Tensor:
    """A part of the records, which `check_needs` found in the first record only."""
    if part is None:
        raise DataError(
            "Some records lack the annotations of this analysis.",
            "Run `strop data check` on the data.",
        )
    return part
