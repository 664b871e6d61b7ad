"""How good a teacher's field is: what its card says, by the same probe for every teacher.

miou            mean IoU of a linear layer on each location of the frozen field
map             mAP of a linear layer on the mean-pooled field
grouping_auc    how often, within an image, two locations of the same mask are nearer in cosine than
                two of different masks: the mean over images. Only locations whose labelled pixels
                are of one class for at least three quarters count
effective_rank  exp of the entropy of the normalised singular values of the field about its mean,
                over all locations of all validation images

The probes are those of the protocol `paper`, at one size for all teachers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from strop.analysis.frame import check_needs
from strop.analysis.probes.multilabel import MultilabelTask
from strop.analysis.probes.probe import run_probe
from strop.analysis.probes.protocol import PAPER
from strop.analysis.probes.segmentation import SegmentationTask, class_shares
from strop.analysis.probes.splits import check_classes
from strop.data.record import VOID, Dataset, first_readable
from strop.data.stream import record_batches
from strop.metrics import effective_rank
from strop.model.teacher import Teacher
from strop.statistics import ranks

CLEAR = 0.75
"""The share of a location's pixels that must be of one class for it to be of that class."""

Progress = Callable[[int, int], None]
"""Called with how many images are done and how many there are."""


@dataclass(frozen=True, eq=False)
class LabelledFields:
    """Fields (N, S, d) float16, masks (N, H, H) uint8 and labels (N, C) bool of a dataset."""

    fields: Tensor
    semantic: Tensor
    labels: Tensor


def teacher_quality(
    teacher: Teacher,
    train: Dataset,
    val: Dataset,
    *,
    size: int = 256,
    seed: int = 0,
    workers: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """All figures of a teacher, on the device it is on. The datasets have masks and labels."""
    for dataset in (train, val):
        check_needs(
            ("semantic", "labels"), first_readable(dataset), "teacher quality", dataset.name
        )
    for names in ("classes", "label_names"):
        check_classes(train, val, names)
    device = teacher.mean.device
    total = len(train) + len(val)

    def compute(dataset: Dataset, done: int) -> LabelledFields:
        told = None if progress is None else lambda n: progress(done + n, total)
        return _compute(teacher, dataset, size, workers, told)

    seen, held = compute(train, 0), compute(val, len(train))
    locations, classes = seen.fields.shape[1], len(train.classes)
    protocol = PAPER.multilabel
    assert protocol is not None
    segmentation, _ = run_probe(
        SegmentationTask(seen.semantic, held.semantic, classes, locations, PAPER.segmentation),
        seen.fields,
        held.fields,
        seed=seed,
        device=device,
    )
    multilabel, _ = run_probe(
        MultilabelTask(seen.labels, held.labels, protocol),
        seen.fields,
        held.fields,
        seed=seed,
        device=device,
    )
    auc, images = grouping_auc(held.fields, held.semantic, classes)
    return {
        "width": teacher.width,
        "size": size,
        "train_images": len(seen.fields),
        "val_images": len(held.fields),
        "miou": segmentation["values"]["miou"],
        "map": multilabel["values"]["map"],
        "grouping_auc": auc,
        "grouping_images": images,
        "effective_rank": effective_rank(held.fields),
        "segmentation": segmentation,
        "multilabel": multilabel,
    }


def grouping_auc(fields: Tensor, masks: Tensor, classes: int) -> tuple[float, int]:
    """Mean AUC of cosines, same mask against different, and over how many images it is.

    fields (N, S, d), masks (N, H, H). Images without both kinds of pair are left out.
    """
    areas = []
    for field, mask in zip(fields, masks, strict=True):
        share, label = class_shares(mask[None], classes, len(field))[0].float().max(dim=-1)
        clear = share >= CLEAR
        label = label[clear]
        unit = F.normalize(field[clear].float(), dim=-1)
        first, second = torch.triu_indices(len(label), len(label), offset=1)
        same = (label[first] == label[second]).numpy()
        if not 0 < same.sum() < len(same):
            continue
        # Rounded, so that equal vectors are equally near whatever the order of summation.
        cosine = (unit @ unit.T)[first, second].double().numpy().round(6)
        areas.append(_auc(cosine, same))
    return (float(np.mean(areas)) if areas else float("nan")), len(areas)


@torch.no_grad()
def _compute(
    teacher: Teacher,
    dataset: Dataset,
    size: int,
    workers: int,
    progress: Callable[[int], None] | None,
) -> LabelledFields:
    device = teacher.mean.device
    fields, semantic, labels = [], [], []
    for batch in record_batches(dataset, size=size, fit="squash", device=device, workers=workers):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            fields.append(teacher(batch.images.to(device)).half().cpu())
        assert batch.semantic is not None
        assert batch.labels is not None
        semantic.append(batch.semantic.clamp(max=VOID).to(torch.uint8))
        labels.append(batch.labels)
        if progress is not None:
            progress(sum(map(len, fields)))
    return LabelledFields(torch.cat(fields), torch.cat(semantic), torch.cat(labels))


def _auc(score: np.ndarray, positive: np.ndarray) -> float:
    """Area under the ROC curve: how often a positive outranks a negative, ties by half."""
    positives = int(positive.sum())
    above = ranks(score)[positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(positive) - positives)))
