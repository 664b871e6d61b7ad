"""How good a teacher's field is: four figures, measured in the same way for every teacher.

    python research/distil/quality.py tiny /nets/vits14-focus \
        --train "voc:/data/voc2012?split=trainaug" --val "voc:/data/voc2012?split=val"

miou            mean IoU of a linear layer on each location of the frozen field
map             mAP of a linear layer on the mean-pooled field
grouping_auc    AUC of the cosine between two locations of an image as a predictor of whether they
                have the same class, averaged over images. Only locations with a clear class count:
                three quarters of their labelled pixels
effective_rank  exponential of the entropy of the normalised singular values of the centred field,
                over all locations of all validation images

The probes follow the protocol `paper`, at one image size for all teachers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from card import add_metrics
from networks import load_network
from strop.analysis.frame import check_needs
from strop.analysis.probes.multilabel import MultilabelTask
from strop.analysis.probes.probe import check_classes, run_probe
from strop.analysis.probes.protocol import PAPER
from strop.analysis.probes.segmentation import SegmentationTask, class_shares
from strop.cli.console import progress_bars
from strop.data.loader import record_batches
from strop.data.record import VOID, Dataset, first_readable
from strop.data.spec import open_dataset
from strop.device import choose_device, describe_machine
from strop.files import write_json
from strop.metrics import effective_rank
from strop.model.teacher import Teacher
from strop.progress import Progress, no_progress
from strop.statistics import ranks
from student import grouped

COLUMNS = ("miou", "map", "grouping_auc", "effective_rank")
OUT = Path(__file__).parents[2] / "benchmarks" / "results" / "teacher_quality.json"
TEMPERATURE = 0.1

CLEAR = 0.75
"""Share of a location's pixels that must have one class for the location to have it."""


def teacher_quality(
    teacher: Teacher,
    train: Dataset,
    val: Dataset,
    *,
    size: int = 256,
    seed: int = 0,
    workers: int = 0,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """All figures of a teacher, on its device. Both datasets need masks and labels."""
    for dataset in (train, val):
        check_needs(
            ("semantic", "labels"), first_readable(dataset), "teacher quality", dataset.name
        )
    check_classes(train, val, "classes")
    check_classes(train, val, "label_names")
    device = teacher.mean.device
    train_fields, train_masks, train_labels = _compute(teacher, train, size, workers, progress)
    val_fields, val_masks, val_labels = _compute(teacher, val, size, workers, progress)
    locations, classes = train_fields.shape[1], len(train.classes)
    fields = (train_fields, val_fields)
    task = SegmentationTask(train_masks, val_masks, classes, locations, PAPER)
    segmentation, _ = run_probe(task, *fields, seed=seed, device=device)
    labels = MultilabelTask(train_labels, val_labels, PAPER)
    multilabel, _ = run_probe(labels, *fields, seed=seed, device=device)
    auc, images = grouping_auc(val_fields, val_masks, classes)
    return {
        "width": teacher.width,
        "size": size,
        "train_images": len(train_fields),
        "val_images": len(val_fields),
        "miou": segmentation["values"]["miou"],
        "map": multilabel["values"]["map"],
        "grouping_auc": auc,
        "grouping_images": images,
        "effective_rank": effective_rank(val_fields),
        "segmentation": segmentation,
        "multilabel": multilabel,
    }


def grouping_auc(fields: Tensor, masks: Tensor, classes: int) -> tuple[float, int]:
    """Mean AUC of cosines as predictors of "same class", and the number of images it covers.

    fields (N, S, d), masks (N, H, H). Images without both kinds of pairs are left out.
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
        # Rounded, so that ties do not depend on the order of summation.
        cosine = (unit @ unit.T)[first, second].double().numpy().round(6)
        areas.append(_auc(cosine, same))
    return (float(np.mean(areas)) if areas else float("nan")), len(areas)


@torch.no_grad()
def _compute(
    teacher: Teacher, dataset: Dataset, size: int, workers: int, progress: Progress
) -> tuple[Tensor, Tensor, Tensor]:
    """Fields (N, S, d) float16, masks (N, H, H) uint8 and labels (N, C) bool of a dataset."""
    device = teacher.mean.device
    fields, semantic, labels = [], [], []
    for batch in record_batches(dataset, size=size, fit="squash", device=device, workers=workers):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            fields.append(teacher(batch.images.to(device)).half().cpu())
        assert batch.semantic is not None
        assert batch.labels is not None
        semantic.append(batch.semantic.clamp(max=VOID).to(torch.uint8))
        labels.append(batch.labels)
        progress(dataset.name, sum(map(len, fields)), len(dataset))
    return torch.cat(fields), torch.cat(semantic), torch.cat(labels)


def _auc(score: np.ndarray, positive: np.ndarray) -> float:
    """Area under the ROC curve; ties count half."""
    positives = int(positive.sum())
    above = ranks(score)[positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(positive) - positives)))


class GroupedTeacher(nn.Module):
    """A network whose field is averaged over similar locations of another, as in `distil.py`."""

    def __init__(self, network: Teacher, by: Teacher) -> None:
        super().__init__()
        self.backbone, self.network, self.by = network.backbone, network, by
        self.mean, self.width = network.mean, network.width

    def forward(self, images: Tensor) -> Tensor:
        """uint8 images (B, 3, H, H) to the field (B, S, d)."""
        return grouped(self.network(images), self.by(images), TEMPERATURE)


def load_networks(names: list[str], by: str | None) -> Iterator[tuple[str, Any]]:
    """The networks, and with `by` each other network averaged by it, with their names in tables."""
    device = choose_device(None)
    for name in names:
        yield Path(name).name, load_network(name).to(device)
    for name in names if by else ():
        if name != by:
            pair = [load_network(each).to(device) for each in (name, by)]
            yield f"{Path(name).name} over the groups of {Path(by).name}", GroupedTeacher(*pair)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("teachers", nargs="+", help="networks, as in `distil.py --from`")
    parser.add_argument("--train", required=True, help="spec with masks and labels")
    parser.add_argument("--val", required=True)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grouped-by", help="also average the other networks' fields by this one")
    parser.add_argument("--card", help="folder of a distilled teacher; its card gets all rows")
    arguments = parser.parse_args()

    train, val = open_dataset(arguments.train), open_dataset(arguments.val)
    rows = []
    for name, teacher in load_networks(arguments.teachers, arguments.grouped_by):
        start = time.perf_counter()
        with progress_bars() as bars:
            found = teacher_quality(
                teacher, train, val, size=arguments.size, seed=arguments.seed, progress=bars
            )
        parameters = sum(each.numel() for each in teacher.backbone.parameters())
        seconds = time.perf_counter() - start
        rows.append({"teacher": name, "parameters": parameters, **found, "seconds": seconds})

    table = Table("teacher", "M", "width", *COLUMNS, title=f"{train.name} and {val.name}")
    for row in rows:
        figures = [f"{row[column]:.3f}" for column in COLUMNS]
        millions = f"{row['parameters'] / 1e6:.1f}"
        table.add_row(row["teacher"], millions, str(row["width"]), *figures)
    Console().print(table)
    results = {
        "machine": describe_machine(choose_device(None)),
        "data": {"train": train.name, "val": val.name},
        "size": arguments.size,
        "seed": arguments.seed,
        "rows": rows,
    }
    write_json(OUT, "benchmark", 1, results)
    if arguments.card:
        where = f"{train.name} and {val.name}, {arguments.size} px"
        add_metrics(
            arguments.card,
            {f"{row['teacher']}, {name} on {where}": row[name] for row in rows for name in COLUMNS},
        )


if __name__ == "__main__":
    main()
