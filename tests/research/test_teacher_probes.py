"""Crops, windows and turns of DINOv3's evaluation, its numbers, and a few steps of the whole."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from strop.analysis.probes.fitting import CLIP
from strop.analysis.probes.heads import Tokens
from strop.analysis.probes.representations import FLOORS, NAMES
from strop.analysis.probes.scores import depth_errors
from strop.analysis.subject import Subject
from strop.data import ScenesDataset
from strop.data.record import VOID, Record
from strop.data.subset import Subset
from strop.errors import DataError
from strop.training.fit import rate_factor
from teacher_probes import (
    DEPTHS,
    SEGMENTATION,
    ChannelDropout,
    CroppedDepth,
    CroppedSegmentation,
    Options,
    check,
    new_probe,
    output_grid,
    represent,
    rotate,
    run,
    scale_short_side,
    slide,
    window_starts,
)

pytestmark = pytest.mark.slow
CROPS = CroppedSegmentation(outputs=3, short_side=64, crop=64, stride=43)
FIGURES = (
    {"miou", "pixel_accuracy", "class_accuracy"},
    {"depth_rmse", "abs_rel", "delta1", "delta2", "delta3"},
)


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def striped(height: int, width: int) -> Record:
    """Columns left of the middle are class 1 and bright, the others class 2 and dark."""
    left = torch.arange(width) < width // 2
    mask = torch.where(left, 1, 2).expand(height, width)
    image = torch.where(mask == 1, 200, 50).to(torch.uint8).expand(3, -1, -1)
    depth = torch.where(mask == 1, 2.0, 5.0)
    return Record(image=image.contiguous(), name="striped", semantic=mask, depth=depth)


def test_windows_cover_everything_and_the_last_ends_with_the_image():
    assert window_starts(512, 512, 341) == [0]
    assert window_starts(513, 512, 341) == [0, 1]
    assert window_starts(853, 512, 341) == [0, 341]
    assert window_starts(1024, 512, 341) == [0, 341, 512]


def test_sliding_is_the_mean_over_windows():
    image = torch.rand(1, 3, 64, 100)
    result = slide(lambda window: window * 2, image, 64, 43)
    torch.testing.assert_close(result, image * 2)
    seen: list[tuple[int, ...]] = []
    slide(lambda window: seen.append(tuple(window.shape)) or window, image, 64, 43)
    assert seen == [(1, 3, 64, 64)] * 2


def test_the_short_side_is_scaled_and_the_aspect_kept():
    assert scale_short_side(torch.zeros(3, 50, 80, dtype=torch.uint8), 64).shape == (3, 64, 102)
    assert scale_short_side(torch.zeros(3, 90, 60, dtype=torch.uint8), 20).shape == (3, 30, 20)


def test_crops_keep_image_and_mask_together_and_are_void_beyond_the_image():
    task = CROPS
    record = striped(48, 80)
    padded = 0
    for seed in range(20):
        image, mask = task.draw(record, chance(seed))
        assert image.shape == (3, 64, 64)
        assert mask.shape == (64, 64)
        assert image[0][mask == VOID].eq(0).all()
        padded += bool((mask == VOID).any())
        # Away from the edge between the stripes, where pixels are mixed and masks are not.
        wrong = ((mask == 1) & (image[0] < 100)) | ((mask == 2) & (image[0] > 150))
        assert wrong.float().mean() < 0.05
    assert 0 < padded < 20
    again = task.draw(record, chance(3))
    assert all(torch.equal(a, b) for a, b in zip(again, task.draw(record, chance(3)), strict=True))


def test_half_of_the_crops_are_mirrored():
    task = replace(CROPS, ratios=(1.0, 1.0))
    record = striped(64, 64)
    first = [int(task.draw(record, chance(seed))[1][0, 0]) for seed in range(200)]
    assert first.count(2) == pytest.approx(100, abs=25)


def test_segmentation_is_measured_at_the_masks_own_size():
    task = CROPS
    record = striped(100, 150)

    def predict(images):
        bright = images[:, 0].float() > 125
        return torch.stack([torch.zeros_like(bright), bright, ~bright], dim=1).float()

    counts = task.measure(predict, record)
    hit, truth, _ = counts.sum(axis=(0, 2))
    assert truth == 100 * 150
    assert hit / truth > 0.98


def test_rotation_moves_image_and_depth_alike_and_marks_what_comes_in():
    depth = torch.zeros(40, 60)
    depth[10:14, 40:44] = 3.0
    image = (depth * 80).to(torch.uint8).expand(3, -1, -1)
    same, still = rotate(image, depth, 0.0)
    assert torch.equal(still, depth)
    assert torch.equal(same, image)
    turned, moved = rotate(image, depth, 90.0)
    rows, columns = moved.nonzero(as_tuple=True)
    # A quarter turn takes (right 12, up 8 of the centre) to (8, -12) or its opposite.
    assert abs(abs(rows.float().mean() - 19.5) - 12) < 1
    assert abs(abs(columns.float().mean() - 29.5) - 8) < 1
    assert torch.equal(turned[0] > 120, moved > 0)
    full, _ = rotate(torch.full((3, 40, 60), 9, dtype=torch.uint8), torch.ones(40, 60), 2.5)
    assert (full == 0).any()


def test_rooms_are_cropped_within_the_frame_and_scored_within_eigens():
    task = CroppedDepth()
    record = striped(120, 160)
    for seed in range(4):
        image, depth = task.draw(record, chance(seed))
        assert image.shape == (3, 416, 544)
        assert depth.shape == (416, 544)
        assert image.dtype == torch.uint8
        known = depth > 0
        agree = (image[0].float() > 110) == (depth == 2.0)
        assert agree[known].float().mean() > 0.97
    errors = task.measure(lambda images: torch.full((2, 1, 480, 640), 2.0), record)
    assert errors[:, 0].tolist() == [(471 - 45) * (601 - 41)]
    assert errors[0, 1] == pytest.approx(9 * (471 - 45) * (601 - 320))


def test_rooms_are_told_mirrored_too():
    task = CroppedDepth()
    ramp = torch.linspace(1, 3, 640).expand(1, 480, 640)
    errors = task.measure(lambda images: torch.stack([ramp, ramp]), striped(480, 640))
    # The ramp and its mirror image average to 2 everywhere: right on the left, 3 m off elsewhere.
    assert errors[0, 1] == pytest.approx(9 * (471 - 45) * (601 - 320), rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_representations_of_images_are_those_of_the_model(tokenizer, name):
    images = torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8, generator=chance())
    found = represent(tokenizer, name, images, seed=0)
    grid = output_grid(tokenizer, name, images)
    square = torch.nn.functional.interpolate(
        images.float(), (64, 64), mode="bicubic", antialias=True
    )
    program = tokenizer.encode(square.round().clamp(0, 255).to(torch.uint8))
    if name == "teacher":
        assert grid == (4, 6)
        assert found.shape == (2, 24, 192)
        return
    assert grid == (4, 4)
    if name in FLOORS:
        assert torch.equal(found[0], found[1]), "the same for every image"
        assert found.shape == (2, 16, {"constant": 1, "place": 16}[name])
    elif name == "latent":
        torch.testing.assert_close(found, tokenizer.interpret(program), atol=1e-4, rtol=1e-3)
    else:
        assert isinstance(found, Tokens)
        assert torch.equal(found.active, program.active)
    if name in ("program", "program-sequence"):
        torch.testing.assert_close(found.vectors, tokenizer.quantizer.vectors(program.codes))


# The numbers.


def test_segmentation_has_dinov3s_numbers():
    task = CroppedSegmentation(outputs=150)
    schedule = task.schedule
    assert schedule.steps == 40_000
    assert schedule.batch == 16  # 2 on each of 8 GPUs
    assert schedule.learning_rate == 1e-3
    assert schedule.betas == (0.9, 0.999)
    assert schedule.weight_decay == 1e-3
    assert schedule.warmup == 1500
    assert CLIP == 35
    assert task.short_side == 512
    assert task.ratios == (0.5, 2)
    assert task.crop == 512
    assert task.flip == 0.5
    assert task.stride == 341


def test_depth_has_dinov3s_numbers():
    task = CroppedDepth()
    schedule = task.schedule
    assert schedule.steps == 38_400
    assert schedule.batch == 16
    assert schedule.learning_rate == 3e-4
    assert schedule.betas == (0.9, 0.99)
    assert schedule.weight_decay == 1e-4
    assert schedule.warmup == 12_800
    assert (task.outputs, task.least, task.most, task.floor) == (256, 0.001, 10, 0.1)
    assert (task.sig_mean_weight, task.sig_epsilon, task.sig_warmup) == (0.15, 0.001, 100)
    assert task.crop == (416, 544)
    assert task.brightness == (0.75, 1.25)
    assert task.rotation == 2.5
    assert task.size == (480, 640)
    assert task.scored == (45, 471, 41, 601)


def test_the_head_is_dinov3s(tokenizer):
    torch.manual_seed(0)
    task = CroppedSegmentation(outputs=150)
    probe = new_probe(tokenizer, task, torch.zeros(1, 16, 384), "teacher")
    dropout, readout = probe.readout
    assert dropout.share == 0.1
    assert isinstance(readout.norm, torch.nn.BatchNorm1d)
    assert readout.norm.affine
    assert readout.linear.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert readout.linear.bias.count_nonzero() == 0
    assert CroppedDepth().dropout == 0


def test_whole_channels_are_dropped_in_training_only():
    torch.manual_seed(0)
    dropout = ChannelDropout(0.5)
    dropped = dropout(torch.ones(2, 7, 200))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert not torch.equal(dropped[0], dropped[1])
    assert torch.equal(dropout.eval()(torch.ones(2, 7, 200)), torch.ones(2, 7, 200))


def test_the_learning_rate_rises_linearly_then_falls_to_zero_as_a_cosine():
    schedule = CroppedSegmentation(outputs=1).schedule
    rates = [rate_factor(step, schedule.steps, schedule.warmup) for step in range(schedule.steps)]
    assert rates[0] < 1e-3
    assert rates[749] == pytest.approx(0.5, abs=1e-3)
    assert rates[1500] == 1
    middle = 1500 + (40_000 - 1500) // 2
    assert rates[middle] == pytest.approx(0.5)
    assert rates[middle // 2 + 750] == pytest.approx((1 + math.cos(math.pi / 4)) / 2, abs=1e-3)
    assert 0 < rates[-1] < 1e-6


def test_bins_are_even_and_rectified():
    task = CroppedDepth()
    nothing = task.finish(torch.full((1, 2, 256), -3.0))
    torch.testing.assert_close(nothing, torch.full((1, 2, 1), (0.001 + 10) / 2))
    sure = torch.zeros(1, 1, 256)
    sure[..., 51] = 1e6
    assert task.finish(sure).item() == pytest.approx(0.001 + 51 * 9.999 / 255, abs=1e-3)


def test_sig_loss_by_hand():
    task = CroppedDepth()
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


def test_depth_is_averaged_over_images():
    truth = torch.ones(2, 1, 4)
    truth[1, 0, 1:] = 0
    predicted = torch.full((2, 1, 4), 2.0)
    predicted[0] = 1.0
    by_image = CroppedDepth().scores(depth_errors(predicted, truth), seed=0)
    assert by_image["values"]["depth_rmse"] == pytest.approx(0.5)
    truth[0] = 0
    assert CroppedDepth().scores(depth_errors(truth, truth), seed=0)["images"] == 1


# The whole.


def subject_of(tokenizer, train, scored):
    train = Subject(tokenizer=tokenizer, dataset=train, data="train")
    return Subject(tokenizer=tokenizer, dataset=scored, data="scored", train=train)


def digest(tokenizer) -> str:
    content = b"".join(value.numpy().tobytes() for value in tokenizer.state_dict().values())
    return hashlib.sha256(content).hexdigest()


def test_a_few_steps_from_images(tokenizer):
    train, scored = (ScenesDataset(n=n, seed=n, size=64) for n in (20, 2))
    subject, before = subject_of(tokenizer, train, scored), digest(tokenizer)
    square = replace(CROPS, outputs=7)
    room = CroppedDepth(size=(64, 96), border=(2, 62, 2, 94), crop=(48, 64), scored=(4, 60, 4, 90))
    for task, figures in zip((square, room), FIGURES, strict=True):
        few = replace(task.schedule, steps=2, batch=4, warmup=1)
        short = replace(task, schedule=few)
        numbers = run(lambda subject, short=short: short, subject, Options()).numbers
        assert set(numbers["representations"]) == set(NAMES)
        for scores in numbers["representations"].values():
            assert set(scores["values"]) == figures
            assert all(np.isfinite(value) for value in scores["values"].values())
        json.dumps(numbers)
    assert digest(tokenizer) == before


def test_data_that_does_not_match_is_refused(tokenizer):
    train, other = ScenesDataset(n=20, seed=1, size=64), ScenesDataset(n=20, seed=2, size=64)
    by_color = ScenesDataset(n=8, seed=2, size=64, by="color")
    with pytest.raises(DataError, match="also trained on"):
        SEGMENTATION.run(subject_of(tokenizer, train, Subset(train, [1])), Options())
    with pytest.raises(DataError, match="different classes"):
        SEGMENTATION.check(subject_of(tokenizer, train, by_color), Options())
    with pytest.raises(DataError, match="at least 10"):
        check("", subject_of(tokenizer, Subset(train, range(9)), other), Options())
    DEPTHS.check(subject_of(tokenizer, train, by_color), Options())
