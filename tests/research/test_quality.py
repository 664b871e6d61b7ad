"""The quality of a teacher's field: the figures of its card."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import quality as module
from quality import grouping_auc, teacher_quality
from strop.analysis.probes.protocol import PAPER
from strop.data import ScenesDataset
from strop.data.record import VOID, Record
from strop.data.spec import open_dataset
from strop.errors import DataError


def two_halves(count: int = 3) -> torch.Tensor:
    """Masks (N, 64, 64): class 0 on the left, 1 on the right, a column of void between."""
    masks = torch.zeros(count, 64, 64, dtype=torch.uint8)
    masks[:, :, 32:] = 1
    masks[:, :, 31:33] = VOID
    return masks


def test_fields_equal_to_the_masks_group_perfectly_and_constant_ones_not_at_all():
    columns = torch.arange(16) % 4
    ideal = torch.eye(2)[(columns >= 2).long()].expand(3, -1, -1)
    assert grouping_auc(ideal, two_halves(), 2) == (1.0, 3)
    constant = torch.full((3, 16, 5), 0.3)
    assert grouping_auc(constant, two_halves(), 2) == (0.5, 3)


def test_grouping_agrees_with_scikit_learn():
    from sklearn.metrics import roc_auc_score

    random = torch.Generator().manual_seed(0)
    field = torch.randn(1, 16, 4, generator=random)
    label = (torch.arange(16) % 4 >= 2).long()
    unit = torch.nn.functional.normalize(field[0], dim=-1)
    first, second = torch.triu_indices(16, 16, offset=1)
    expected = roc_auc_score(label[first] == label[second], (unit @ unit.T)[first, second])
    assert grouping_auc(field, two_halves(1), 2)[0] == pytest.approx(expected, abs=1e-6)


def test_unclear_locations_and_images_without_pairs_are_left_out():
    field = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(0))
    masks = two_halves(2)
    masks[1] = 0  # one class only: there is no different pair
    auc, images = grouping_auc(field, masks, 2)
    assert images == 1
    unclear = masks.clone()
    unclear[0, :16, :8] = 1  # half of the first location
    noisy = field.clone()
    noisy[0, 0] = 100 * torch.randn(4)
    assert grouping_auc(noisy, unclear, 2)[0] == grouping_auc(field, unclear, 2)[0] != auc
    nothing, images = grouping_auc(field[1:], masks[1:], 2)
    assert np.isnan(nothing)
    assert images == 0


@pytest.fixture
def short(monkeypatch):
    few = replace(PAPER, steps=30, batch=8, weight_decays=(1e-3,))
    monkeypatch.setattr(module, "PAPER", few)


class Halves:
    """Two colours side by side, one class per colour."""

    name = "halves"
    classes = label_names = ("red", "green", "blue")

    def __init__(self, count: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.pairs = torch.randint(0, 3, (count, 2), generator=random)
        self.light = torch.randint(100, 256, (count,), generator=random)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, row: int) -> Record:
        semantic = self.pairs[row].repeat_interleave(32).expand(64, 64)
        image = torch.stack([(semantic == each) * self.light[row] for each in range(3)])
        labels = torch.zeros(3, dtype=torch.bool)
        labels[self.pairs[row]] = True
        return Record(image=image.to(torch.uint8), name=str(row), semantic=semantic, labels=labels)


@pytest.mark.slow
def test_all_figures_are_measured_and_repeatable(tiny_teacher, short):
    train, val = Halves(24, seed=0), Halves(12, seed=1)
    reports: list[tuple[int, int]] = []
    found = teacher_quality(
        tiny_teacher,
        train,
        val,
        size=64,
        progress=lambda task, done, total: reports.append((done, total)),
    )
    assert reports[-1] == (12, 12)
    assert (24, 24) in reports
    assert found["miou"] > 60  # colours survive a random teacher
    assert found["map"] > 60
    assert 0.6 < found["grouping_auc"] <= 1
    assert 1 < found["effective_rank"] < 192
    assert (found["train_images"], found["val_images"], found["width"]) == (24, 12, 192)
    assert teacher_quality(tiny_teacher, train, val, size=64) == found


def test_data_without_masks_is_refused_early(tiny_teacher, tmp_path):
    from PIL import Image

    for number in range(12):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    with pytest.raises(DataError, match="needs semantic"):
        teacher_quality(tiny_teacher, open_dataset(str(tmp_path)), ScenesDataset(n=4, size=64))
