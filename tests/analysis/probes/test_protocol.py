"""The protocols: the published numbers one by one, and the head and schedule they make."""

from __future__ import annotations

import math

import pytest
import torch

from strop.analysis.probes.depth import CroppedDepth
from strop.analysis.probes.heads import Readout
from strop.analysis.probes.protocol import DINOV3, PAPER, find_protocol
from strop.errors import ConfigError
from strop.training.fit import rate_factor


def test_dinov3_segmentation():
    task = DINOV3.segmentation
    schedule, crops = task.schedule, task.crops
    assert schedule.steps == 40_000
    assert schedule.batch == 16  # 2 on each of 8 GPUs
    assert schedule.learning_rate == 1e-3
    assert schedule.betas == (0.9, 0.999)
    assert schedule.weight_decays == (1e-3,)
    assert schedule.warmup == 1500
    assert schedule.clip == 35
    assert crops.short_side == 512
    assert crops.ratios == (0.5, 2)
    assert crops.crop == 512
    assert crops.flip == 0.5
    assert crops.stride == 341


def test_dinov3_depth():
    task = DINOV3.depth
    schedule, crops = task.schedule, task.crops
    assert schedule.steps == 38_400
    assert schedule.batch == 16
    assert schedule.learning_rate == 3e-4
    assert schedule.betas == (0.9, 0.99)
    assert schedule.weight_decays == (1e-4,)
    assert schedule.warmup == 12_800
    assert schedule.clip == 35
    assert (task.bins, task.least, task.most, task.floor) == (256, 0.001, 10, 0.1)
    assert (task.sig_mean_weight, task.sig_epsilon, task.sig_warmup) == (0.15, 0.001, 100)
    assert task.average == "images"
    assert crops.crop == (416, 544)
    assert crops.brightness == (0.75, 1.25)
    assert crops.rotation == 2.5
    assert crops.size == (480, 640)
    assert crops.scored == (45, 471, 41, 601)


def test_dinov3_head():
    torch.manual_seed(0)
    head = DINOV3.segmentation.head
    readout = Readout(384, 150, head)
    assert readout.dropout == 0.1
    assert isinstance(readout.norm, torch.nn.BatchNorm1d)
    assert readout.norm.affine
    assert readout.linear.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert readout.linear.bias.count_nonzero() == 0
    assert DINOV3.depth.head.dropout == 0


def test_the_learning_rate_rises_linearly_then_falls_to_zero_as_a_cosine():
    schedule = DINOV3.segmentation.schedule
    rates = [rate_factor(step, schedule.steps, schedule.warmup) for step in range(schedule.steps)]
    assert rates[0] < 1e-3
    assert rates[749] == pytest.approx(0.5, abs=1e-3)
    assert rates[1500] == 1
    middle = 1500 + (40_000 - 1500) // 2
    assert rates[middle] == pytest.approx(0.5)
    assert rates[middle // 2 + 750] == pytest.approx((1 + math.cos(math.pi / 4)) / 2, abs=1e-3)
    assert 0 < rates[-1] < 1e-6


def test_bins_are_even_and_rectified():
    task = CroppedDepth(DINOV3.depth, DINOV3.depth.crops)
    nothing = task.finish(torch.full((1, 2, 256), -3.0))
    torch.testing.assert_close(nothing, torch.full((1, 2, 1), (0.001 + 10) / 2))
    sure = torch.zeros(1, 1, 256)
    sure[..., 51] = 1e6
    assert task.finish(sure).item() == pytest.approx(0.001 + 51 * 9.999 / 255, abs=1e-3)


def test_sig_loss_by_hand():
    task = CroppedDepth(DINOV3.depth, DINOV3.depth.crops)
    truth = torch.tensor([[[1.0, 2.0], [0.0, 11.0]]])  # two unknown or out of reach
    predicted = torch.tensor([[[[2.0, 1.0], [5.0, 5.0]]]])
    gaps = torch.tensor([math.log(2.001 / 1.001), math.log(1.001 / 2.001)])
    early = task.loss(predicted, truth, step=99)
    late = task.loss(predicted, truth, step=100)
    assert early.item() == pytest.approx(0.0, abs=1e-5)
    assert late.item() == pytest.approx(math.sqrt(gaps.var().item()), rel=1e-5)
    shifted = task.loss(2 * predicted, truth, step=5)
    mean = (torch.log(torch.tensor([4.001 / 1.001, 2.001 / 2.001]))).mean().item()
    assert shifted.item() == pytest.approx(math.sqrt(0.15) * mean, rel=1e-5)


def test_the_papers_protocol_is_short_and_on_cached_features():
    for task in (PAPER.segmentation, PAPER.multilabel, PAPER.depth):
        assert task.schedule.steps <= 1000
        assert getattr(task, "crops", None) is None


def test_protocols_are_found_by_name():
    assert find_protocol("paper") is PAPER
    assert find_protocol("dinov3") is DINOV3
    with pytest.raises(ConfigError, match="Did you mean 'dinov3'"):
        find_protocol("dino3")
