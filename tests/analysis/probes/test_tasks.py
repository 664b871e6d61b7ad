"""Probes on cached features, perfect ones and hopeless ones, and the truth on a grid."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from strop.analysis.probes.depth import DepthTask, pooled_depth
from strop.analysis.probes.heads import Tokens
from strop.analysis.probes.multilabel import MultilabelTask
from strop.analysis.probes.probe import run_probe
from strop.analysis.probes.protocol import PAPER
from strop.analysis.probes.segmentation import SegmentationTask, class_shares, class_weights
from strop.data.record import VOID

CLASSES, SIDE, SIZE = 4, 4, 32


SHORT = replace(PAPER, steps=120, weight_decays=(1e-3,))


def whole_images(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """One class for the whole image: fields (N, S, C), one-hot, and masks (N, H, H)."""
    classes = torch.randint(0, CLASSES, (count,), generator=torch.Generator().manual_seed(seed))
    fields = torch.eye(CLASSES)[classes][:, None].repeat(1, SIDE**2, 1)
    return fields, classes.view(-1, 1, 1).expand(-1, SIZE, SIZE).to(torch.uint8)


def segmentation(train: Tensor, val: Tensor) -> SegmentationTask:
    return SegmentationTask(train, val, CLASSES, SIDE**2, SHORT)


def depth_task(train: Tensor, val: Tensor) -> DepthTask:
    return DepthTask(train, val, SIDE**2, SHORT)


def labels_task(train: Tensor, val: Tensor) -> MultilabelTask:
    return MultilabelTask(train, val, SHORT)


# Perfect features.


def test_one_hot_fields_give_all_classes_right():
    (train, seen), (val, held) = whole_images(0, 60), whole_images(1, 20)
    scores, _ = run_probe(segmentation(seen, held), train, val)
    assert scores["values"] == {"miou": 100, "pixel_accuracy": 100, "class_accuracy": 100}


def test_one_hot_tokens_too_by_every_reader():
    (train, seen), (val, held) = whole_images(0, 60), whole_images(1, 20)
    some = [
        Tokens(each[:, :3], torch.ones(len(each), 3, dtype=torch.bool)) for each in (train, val)
    ]
    for sequence in (False, True):
        scores, _ = run_probe(segmentation(seen, held), *some, sequence=sequence)
        assert scores["values"]["miou"] == 100


def test_one_hot_fields_of_stripes_are_right_but_for_what_bilinear_upsampling_costs():
    random = torch.Generator().manual_seed(0)
    columns = torch.randint(0, CLASSES, (80, SIDE), generator=random)
    grid = columns[:, None].expand(-1, SIDE, -1)
    fields = torch.eye(CLASSES)[grid].flatten(1, 2)
    masks = grid.repeat_interleave(SIZE // SIDE, 1).repeat_interleave(SIZE // SIDE, 2)
    masks = masks.to(torch.uint8)
    scores, _ = run_probe(segmentation(masks[:60], masks[60:]), fields[:60], fields[60:])
    assert scores["values"]["miou"] > 97


def test_pooled_fields_that_hold_the_labels_give_all_labels():
    labels = torch.rand(80, 5, generator=torch.Generator().manual_seed(0)) < 0.4
    fields = labels.float()[:, None].repeat(1, SIDE**2, 1)
    scores, _ = run_probe(labels_task(labels[:60], labels[60:]), fields[:60], fields[60:])
    assert scores["values"]["map"] == pytest.approx(100)
    assert scores["classes"] == 5


def test_fields_that_hold_the_depth_give_the_depth():
    metres = 20 + 30 * torch.rand(80, generator=torch.Generator().manual_seed(0))
    fields = metres.view(-1, 1, 1).repeat(1, SIDE**2, 2)
    depth = metres.view(-1, 1, 1).expand(-1, SIZE, SIZE)
    scores, _ = run_probe(depth_task(depth[:60], depth[60:]), fields[:60], fields[60:])
    assert scores["values"]["depth_rmse"] < 0.5
    assert scores["values"]["delta1"] == 100


def test_what_only_the_order_tells_is_reported_by_the_sequence_reader_alone():
    # Every image has the same four codes; its class is the code that comes first.
    random = torch.Generator().manual_seed(0)
    order = torch.stack([torch.randperm(CLASSES, generator=random) for _ in range(400)])
    codes = Tokens(torch.eye(CLASSES)[order], torch.ones(400, CLASSES, dtype=torch.bool))
    labels = torch.eye(CLASSES)[order[:, 0]] > 0
    task = labels_task(labels[:300], labels[300:])
    found = {
        name: run_probe(task, tokens[:300], tokens[300:], sequence=sequence)[0]["values"]["map"]
        for name, tokens, sequence in (
            ("set", codes, False),
            ("sequence", codes, True),
            ("shuffled", codes.shuffled(1), True),
        )
    }
    assert found["sequence"] > 95
    assert found["set"] == pytest.approx(25, abs=10)
    assert found["shuffled"] == pytest.approx(25, abs=10)


# Hopeless features.


def test_random_labels_are_told_by_chance():
    random = torch.Generator().manual_seed(0)
    fields = torch.randn(320, SIDE**2, 8, generator=random)
    _, masks = whole_images(1, 320)
    scores, _ = run_probe(segmentation(masks[:160], masks[160:]), fields[:160], fields[160:])
    assert scores["values"]["pixel_accuracy"] == pytest.approx(100 / CLASSES, abs=8)
    labels = torch.rand(320, 4, generator=random) < 0.3
    scores, _ = run_probe(labels_task(labels[:160], labels[160:]), fields[:160], fields[160:])
    assert scores["values"]["map"] == pytest.approx(30, abs=8)


def test_images_shuffled_against_their_masks_are_told_by_chance():
    (train, seen), (val, held) = whole_images(0, 200), whole_images(1, 100)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(3))
    scores, _ = run_probe(segmentation(seen[order], held), train, val)
    assert scores["values"]["pixel_accuracy"] == pytest.approx(100 / CLASSES, abs=10)


def test_a_constant_field_tells_the_commonest_class_and_the_mean_depth():
    fields = torch.ones(40, SIDE**2, 3)
    masks = torch.zeros(40, SIZE, SIZE, dtype=torch.uint8)
    masks[:, :8] = 1
    scores, _ = run_probe(segmentation(masks[:30], masks[30:]), fields[:30], fields[30:])
    assert scores["values"]["pixel_accuracy"] == 75
    assert scores["values"]["miou"] == pytest.approx(37.5)
    depth = torch.where(masks == 1, 1.0, 5.0)
    scores, _ = run_probe(depth_task(depth[:30], depth[30:]), fields[:30], fields[30:])
    assert scores["values"]["depth_rmse"] == pytest.approx((0.25 * 9 + 0.75) ** 0.5, abs=0.02)


# Truth on the grid.


def test_shares_count_pixels_and_leave_void_out():
    mask = torch.zeros(1, 4, 4, dtype=torch.uint8)
    mask[0, :2, 2:] = torch.tensor([[1, 1], [VOID, 2]])
    mask[0, 2:, 2:] = VOID
    shares = class_shares(mask, 3, 4)[0].float()
    expected = [[1, 0, 0], [0, 0.5, 0.25], [1, 0, 0], [0, 0, 0]]
    assert shares.tolist() == expected


def test_the_loss_on_shares_is_that_of_logits_repeated_over_pixels():
    random = torch.Generator().manual_seed(0)
    mask = torch.randint(0, CLASSES, (2, SIZE, SIZE), generator=random)
    mask[torch.rand(mask.shape, generator=random) < 0.3] = VOID
    logits = torch.randn(2, SIDE**2, CLASSES, generator=random)
    task = segmentation(mask.to(torch.uint8), mask.to(torch.uint8))
    maps = logits.transpose(1, 2).unflatten(-1, (SIDE, SIDE))
    maps = maps.repeat_interleave(SIZE // SIDE, 2).repeat_interleave(SIZE // SIDE, 3)
    expected = torch.nn.functional.cross_entropy(maps, mask, ignore_index=VOID)
    found = task.loss(logits, torch.arange(2))
    assert found.item() == pytest.approx(expected.item(), rel=1e-3)  # shares are in halves


def test_weights_of_classes_by_hand():
    shares = torch.tensor([[[0.75, 0.25, 0.0], [0.25, 0.0, 0.0]]])  # of 1.25 labelled locations
    assert class_weights(shares, 0.0).tolist() == [1, 1, 0]
    weights = class_weights(shares, 0.5)
    assert float(weights[1] / weights[0]) == pytest.approx(2), "a quarter of the pixels, 4^0.5"
    assert float(weights[0] * 0.8 + weights[1] * 0.2) == pytest.approx(1)


def test_empty_masks_cost_nothing_and_break_nothing():
    empty = torch.full((2, SIZE, SIZE), VOID, dtype=torch.uint8)
    task = segmentation(empty, empty)
    assert task.loss(torch.randn(2, SIDE**2, CLASSES), torch.arange(2)).item() == 0


def test_depth_is_pooled_over_known_pixels():
    depth = torch.tensor([[[2.0, 0.0, 1.0, 1.0], [4.0, 0.0, 1.0, 1.0]]]).repeat(1, 2, 1)
    depth[0, 2:, 2:] = 0
    mean, known = pooled_depth(depth, 4)
    assert known.tolist() == [[0.5, 1, 0.5, 0]]
    assert mean.tolist() == [[3, 1, 3, 0]]


# Seeds.


def test_a_seed_decides_all_figures():
    (train, seen), (val, held) = whole_images(0, 40), whole_images(1, 10)
    noisy = train + torch.randn(train.shape, generator=torch.Generator().manual_seed(0))
    task = segmentation(seen, held)
    first, probe = run_probe(task, noisy, val, seed=4)
    again, other = run_probe(task, noisy, val, seed=4)
    assert first == again
    assert torch.equal(probe.readout.linear.weight, other.readout.linear.weight)
