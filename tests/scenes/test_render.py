from __future__ import annotations

import dataclasses

import pytest
import torch

from strop.scenes import camera as cameras
from strop.scenes import render, sample_scenes, semantic_masks, truth
from strop.scenes.render import camera_rays, render_dense, world


def alone(scenes, slot):
    keep = torch.zeros_like(scenes.present)
    keep[:, slot] = scenes.present[:, slot]
    return dataclasses.replace(scenes, present=keep)


def test_masks_equal_a_render_of_each_object_alone():
    scenes = sample_scenes(5, range(12))
    mask, depth = truth(scenes, (96, 128))
    # The nearest of ten separate renders, put together without the renderer's own comparison.
    best = torch.full(depth.shape, torch.inf)
    expected = torch.zeros_like(mask)
    for slot in range(10):
        there, far = truth(alone(scenes, slot), (96, 128))
        closer = (there > 0) & (far < best)
        best = torch.where(closer, far, best)
        expected = torch.where(closer, slot + 1, expected)
        assert ((there == 0) | (there == slot + 1)).all()
    assert torch.equal(mask, expected)
    assert torch.allclose(depth[mask > 0], best[mask > 0])


def test_depth_agrees_with_the_camera(scene_of):
    scenes = scene_of([("sphere", "large", "rubber", "red", 0.5, -0.4, 0.0)])
    mask, depth = truth(scenes, (240, 320))
    column, row, centre = cameras.project(scenes.camera, scenes.centre, 240, 320)[0, 0].tolist()
    assert mask[0, int(row), int(column)] == 1
    # At its centre the sphere is nearer by its radius, along the ray.
    distance = (scenes.centre[0, 0] - scenes.camera[0]).norm().item()
    expected = centre * (distance - 0.7) / distance
    assert depth[0, int(row), int(column)].item() == pytest.approx(expected, abs=0.01)


def test_depth_of_the_ground_is_where_the_ray_meets_it(scene_of):
    scenes = scene_of([])
    _, depth = truth(scenes, (60, 80))
    across, down = cameras.image_plane(60, 80, 1, "cpu", torch.float32)
    ray = torch.stack(cameras.directions(scenes.camera, across, down), dim=-1)
    point = scenes.camera[:, None] + depth.reshape(1, -1, 1) * ray
    assert point[..., 2].abs().max() < 1e-3
    assert depth.min() > 4


@pytest.mark.parametrize(("material", "mirrors"), [("metal", True), ("rubber", False)])
def test_metal_shows_its_neighbour(scene_of, material, mirrors):
    # A gray cube faces the camera, a red ball lies in front of it.
    def pixels(*things):
        scenes = scene_of([("cube", "large", material, "gray", -1.2, 1.0, 0.854), *things])
        mask, _ = truth(scenes, (120, 160))
        return render(scenes, (120, 160))[0].float(), mask[0] == 1

    bare, where = pixels()
    red, still = pixels(("sphere", "large", "rubber", "red", 0.6, -0.6, 0.0))
    both = where & still
    redder = (red[0] - red[1])[both] - (bare[0] - bare[1])[both]
    # Rubber takes a faint red from the light the ball throws; the mirror image is far redder.
    assert ((redder > 30).sum() > 20) == mirrors


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_shadows_fall_away_from_the_light(scene_of, side):
    # All lamps on one side, in a plane with the ball: its shadow lies on the other.
    lamp = (6.0 * side, 0.0, 6.0)
    thing = ("sphere", "large", "rubber", "gray", 0.0, 0.0, 0.0)
    lights = [lamp, lamp, lamp]
    size = (120, 160)
    with_ball = scene_of([thing], lights=lights)
    without = render(scene_of([], lights=lights), size)[0].float().mean(0)
    darker = without - render(with_ball, size)[0].float().mean(0)

    def at(x):
        point = torch.tensor([[[x, 0.0, 0.0]]])
        column, row, _ = cameras.project(with_ball.camera, point, *size)[0, 0].tolist()
        return darker[int(row) - 1 : int(row) + 2, int(column) - 1 : int(column) + 2].mean()

    assert at(-1.3 * side) > 12
    assert at(1.6 * side) < 0.3 * at(-1.3 * side)


def test_shadows_are_soft(scene_of):
    scenes = scene_of([("sphere", "large", "rubber", "gray", 0.0, 0.0, 0.0)])
    samples = camera_rays(8, 8, "cpu")
    assert samples.shadow_across.shape == (4, 256)
    assert samples.shadow_across.min() >= -0.5
    assert samples.shadow_across.max() <= 0.5
    # A pixel's sixteen samples lie in sixteen different cells of the lamp.
    first = torch.stack([samples.shadow_across[:, r * 16 + c] for r in (0, 1) for c in (0, 1)])
    second = torch.stack([samples.shadow_up[:, r * 16 + c] for r in (0, 1) for c in (0, 1)])
    cells = {
        (int((a + 0.5) * 4), int((b + 0.5) * 4))
        for a, b in zip(first.reshape(-1).tolist(), second.reshape(-1).tolist(), strict=True)
    }
    assert len(cells) == 16
    image = render(scenes, 64)[0].float().mean(0)
    assert image.unique().numel() > 50


def test_edges_are_antialiased(scene_of):
    scenes = scene_of([("cube", "large", "rubber", "yellow", 0.0, 0.0, 0.3)])
    image = render(scenes, 64)[0]
    mask, _ = truth(scenes, 64)
    inside = image[2][mask[0] == 1].float().max()
    outside = image[2][mask[0] == 0].float()
    between = (image[2].float() > inside + 8) & (image[2].float() < outside.median() - 8)
    assert between.sum() > 10


def test_sparse_and_dense_render_the_same_image():
    scenes = sample_scenes(2, range(3))
    sparse = render(scenes, (40, 56)).int()
    with torch.no_grad():
        dense = render_dense(world(scenes), camera_rays(40, 56, "cpu"), (40, 56)).int()
    assert (sparse - dense).abs().max() <= 1


def test_an_image_does_not_depend_on_the_batch():
    scenes = sample_scenes(2, range(4))
    together = render(scenes, 48)
    again = render(sample_scenes(2, [3, 1]), 48)
    assert torch.equal(again[0], together[3])
    assert torch.equal(again[1], together[1])
    assert torch.equal(render(scenes[1:2], 48), together[1:2])


def test_semantic_masks_follow_the_objects(scene_of):
    scenes = scene_of(
        [
            ("cube", "large", "metal", "cyan", -1.5, 0.0, 0.0),
            ("sphere", "large", "rubber", "gray", 1.5, 1.0, 0.0),
        ]
    )
    mask, _ = truth(scenes, 64)
    shape = semantic_masks(scenes, mask, "shape")
    color = semantic_masks(scenes, mask, "color")
    assert shape[mask == 1].unique().tolist() == [2]
    assert shape[mask == 2].unique().tolist() == [3]
    assert color[mask == 1].unique().tolist() == [7]
    assert color[mask == 2].unique().tolist() == [1]
    assert (shape[mask == 0] == 0).all()


def test_any_size_and_no_scenes(scene_of):
    scenes = scene_of([("cylinder", "small", "metal", "blue", 0.0, 0.0, 0.0)])
    for size in ((17, 40), (40, 17), (1, 1)):
        assert render(scenes, size).shape == (1, 3, *size)
        assert truth(scenes, size)[1].shape == (1, *size)
    assert render(scenes[:0], 32).shape == (0, 3, 32, 32)


@pytest.mark.slow
def test_the_dense_renderer_compiles_into_one_graph():
    scenes = sample_scenes(0, range(2))
    eager = render(scenes, 16).int()
    assert (render(scenes, 16, compiled=True).int() - eager).abs().max() <= 1


@pytest.mark.gpu
def test_a_gpu_gives_the_same_scenes_and_images():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    here, there = sample_scenes(3, range(64)), sample_scenes(3, range(64), "cuda")
    for a, b in zip(here.parts(), there.parts(), strict=True):
        assert torch.allclose(a, b.cpu(), atol=1e-6)
    difference = (render(here[:8], 64).int() - render(there[:8], 64).cpu().int()).abs()
    assert (difference > 1).float().mean() < 1e-3
