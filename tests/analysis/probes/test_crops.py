"""Crops, windows and turns of DINOv3's evaluation, and a few steps of the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from strop.analysis.probes.crops import (
    output_grid,
    represent,
    scale_short_side,
    slide,
    window_starts,
)
from strop.analysis.probes.depth import CroppedDepth, rotate
from strop.analysis.probes.heads import Tokens
from strop.analysis.probes.protocol import DINOV3
from strop.analysis.probes.representations import FLOORS, NAMES
from strop.analysis.probes.segmentation import CroppedSegmentation
from strop.data.record import VOID, Record

CROPS = replace(DINOV3.segmentation.crops, short_side=64, crop=64, stride=43)


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
    task = CroppedSegmentation(3, DINOV3.segmentation, CROPS)
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
    task = CroppedSegmentation(3, DINOV3.segmentation, replace(CROPS, ratios=(1.0, 1.0)))
    record = striped(64, 64)
    first = [int(task.draw(record, chance(seed))[1][0, 0]) for seed in range(200)]
    assert first.count(2) == pytest.approx(100, abs=25)


def test_segmentation_is_measured_at_the_masks_own_size():
    task = CroppedSegmentation(3, DINOV3.segmentation, CROPS)
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
    crops = DINOV3.depth.crops
    task = CroppedDepth(DINOV3.depth, crops)
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
    task = CroppedDepth(DINOV3.depth, DINOV3.depth.crops)
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
