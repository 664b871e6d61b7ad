"""The loaders on real samples, where there are any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from strop.data import (
    VOID,
    Loader,
    Record,
    check_dataset,
    fit_record,
    open_dataset,
)

pytestmark = pytest.mark.shared

CASES = [
    # spec, records, classes, labels, parts
    ("voc:{}/voc2012?split=trainaug", 700, 21, 20, {"semantic", "labels"}),
    ("voc:{}/voc2012?split=val", 445, 21, 20, {"semantic", "labels"}),
    ("cityscapes:{}/cityscapes?split=train", 400, 19, 19, {"semantic", "labels"}),
    ("cityscapes:{}/cityscapes?split=val", 150, 19, 19, {"semantic", "labels"}),
    ("nyuv2:{}/nyuv2?split=train", 320, 40, 40, {"semantic", "labels", "depth"}),
    ("nyuv2:{}/nyuv2?split=test", 160, 40, 40, {"semantic", "labels", "depth"}),
    ("clevr:{}/clevr?split=val", 180, 7, 6, {"semantic", "instance", "labels", "scene"}),
    ("cocostuff:{}/cocostuff?split=train", 13, 27, 27, {"semantic", "labels"}),
    ("cocostuff:{}/cocostuff?split=val", 8, 27, 27, {"semantic", "labels"}),
    ("ade20k:{}/ade20k", 3, 150, 150, {"semantic", "labels"}),
    ("shards:{}/coco-shards/*-train-*.tar", 14336, 0, 0, set()),
    ("shards:{}/coco-shards/*-val-*.tar", 1024, 0, 0, set()),
]
IDS = [case[0].partition("?")[0] + case[0][-6:] for case in CASES]


@pytest.mark.parametrize(("spec", "count", "classes", "labels", "parts"), CASES, ids=IDS)
def test_counts_ids_and_alignment(
    shared: Path, spec: str, count: int, classes: int, labels: int, parts: set[str]
) -> None:
    data = open_dataset(spec.format(shared / "data"))
    assert len(data) == count
    assert len(data.classes) == classes
    assert len(data.label_names) == labels
    for index in range(0, count, -(-count // 6)):
        record = data[index]
        present = {
            part
            for part in ("semantic", "instance", "labels", "depth", "scene")
            if getattr(record, part) is not None
        }
        assert present == parts
        height, width = record.image.shape[1:]
        assert record.image.dtype == torch.uint8
        assert record.image.float().std() > 5
        if record.semantic is not None:
            assert record.semantic.shape == (height, width)
            known = record.semantic[record.semantic != VOID]
            assert known.numel() > 0
            assert known.min() >= 0
            assert known.max() < classes
            assert_aligned(record)
        if record.depth is not None:
            assert record.depth.shape == (height, width)
            known = record.depth[record.depth > 0]
            assert known.numel() > 0.5 * height * width
            assert 0.4 < known.median() < 10  # metres, in rooms


def assert_aligned(record: Record) -> None:
    """Paint the mask, move picture and mask together, and read the mask back from the paint."""
    assert record.semantic is not None
    present = record.semantic.unique()
    order = torch.bucketize(record.semantic, present)
    # Ids apart by far in colour, so that mixtures at edges are few.
    paint = torch.stack([(torch.arange(len(present)) * step) % 256 for step in (37, 101, 173)])
    painted = replace(record, image=paint[:, order].to(torch.uint8), semantic=order)
    for moved in (
        fit_record(painted, 160),
        fit_record(painted, 160, "crop"),
        fit_record(painted, 160, "squash", "fast"),
    ):
        assert moved.semantic is not None
        inside = interior(moved.semantic)
        inside[:, ::3] = False  # a sample of pixels will do
        inside[::2] = False
        colours = moved.image.permute(1, 2, 0)[inside].float()
        read = torch.cdist(colours, paint.T.float()).argmin(1)
        assert (read == moved.semantic[inside]).float().mean() > 0.99


def interior(ids: torch.Tensor) -> torch.Tensor:
    """Where a pixel's 5x5 neighbours all have its id."""
    values = ids.float()[None, None]
    high = torch.nn.functional.max_pool2d(values, 5, 1, 2)
    low = -torch.nn.functional.max_pool2d(-values, 5, 1, 2)
    return (high == low)[0, 0]


def test_instances_of_clevr_are_where_the_scene_says(shared: Path) -> None:
    data = open_dataset(f"clevr:{shared}/data/clevr")
    for index in range(0, len(data), 30):
        record = fit_record(data[index], 128)
        assert record.scene is not None
        assert record.instance is not None
        hits = 0
        for number, thing in enumerate(record.scene["objects"], 1):
            x, y, _ = thing["pixel_coords"]
            hits += int(record.instance[round(y), round(x)]) == number
        # The centre of an object may be hidden behind another.
        assert hits >= 0.6 * len(record.scene["objects"])


def test_every_small_sample_reads_whole(shared: Path) -> None:
    for spec in ("cocostuff:{}/cocostuff", "ade20k:{}/ade20k", "cityscapes:{}/cityscapes?limit=24"):
        report = check_dataset(spec.format(shared / "data"))
        assert report.ok
        assert report.good == report.count
        assert report.void is not None
        assert report.void < 0.3


def test_batches_of_real_records(shared: Path) -> None:
    data = open_dataset(f"nyuv2:{shared}/data/nyuv2?split=train&limit=40")
    loader = Loader(data, batch_size=16, size=64, workers=2, shuffle=True, drop_last=True)
    batches = list(loader)
    assert len(batches) == 2
    assert not loader.broken
    for batch in batches:
        assert batch.images.shape == (16, 3, 64, 64)
        assert batch.depth is not None
        assert batch.depth.max() < 10.1


def test_real_shards_load(shared: Path) -> None:
    data = open_dataset(f"shards:{shared}/data/coco-shards/*-val-*.tar?limit=64")
    (batch,) = Loader(data, batch_size=64, size=256)
    assert batch.images.shape == (64, 3, 256, 256)
    assert len(set(batch.names)) == 64
