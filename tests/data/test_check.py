"""`strop data check`: what is in a dataset and what is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from strop.data import check_dataset, open_dataset

Write = Callable[..., Path]


@pytest.mark.parametrize("workers", [0, 2])
def test_counts(voc_root: Path, write_image: Write, write_ids: Write, workers: int) -> None:
    root = voc_root / "VOCdevkit/VOC2012"
    write_image(root / "JPEGImages/2007_000002.jpg", width=20, height=10)
    write_ids(root / "SegmentationClass/2007_000002.png", [20, 0], 20, 10)
    done: list[tuple[str, int, int]] = []
    report = check_dataset(f"voc:{voc_root}", workers, lambda *step: done.append(step))
    assert done[-1] == ("checking", 2, 2)
    assert report.ok
    assert (report.count, report.good) == (2, 2)
    assert dict(report.sizes) == {(40, 30): 1, (20, 10): 1}
    assert report.parts["semantic"] == report.parts["labels"] == 2
    assert report.labels["tvmonitor"] == 2
    assert report.labels["aeroplane"] == 1
    assert report.labels["dog"] == 0
    assert report.pixels["background"] == pytest.approx((300 + 100) / (900 + 200))
    assert sum(report.pixels.values()) == pytest.approx(1)
    assert report.void == pytest.approx(300 / 1400)
    json.dumps(report.as_dict())


def test_broken_files_are_named_and_reading_continues(voc_root: Path) -> None:
    (voc_root / "VOCdevkit/VOC2012/JPEGImages/2007_000001.jpg").unlink()
    report = check_dataset(open_dataset(f"voc:{voc_root}"))
    assert not report.ok
    assert report.good == 1
    assert "2007_000001.jpg" in report.broken[0]


def test_depth_and_scenes(clevr_root: Path) -> None:
    report = check_dataset(f"clevr:{clevr_root}")
    assert report.depth == pytest.approx((8.25, 9.5))  # zero means unknown
    assert report.parts["scene"] == report.parts["instance"] == 3
