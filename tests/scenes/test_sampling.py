from __future__ import annotations

import pytest
import torch

from strop.scenes import sample_scenes, truth
from strop.scenes import vocabulary as words
from strop.scenes.camera import ground_directions
from strop.scenes.sampling import visible_pixels


@pytest.fixture(scope="module")
def scenes():
    return sample_scenes(11, range(200))


def test_every_placement_rule_holds(scenes):
    ways = ground_directions()
    axes = torch.tensor([ways["behind"][:2], ways["left"][:2]], dtype=torch.float32)
    assert (scenes.position.abs()[scenes.present] <= words.EXTENT).all()
    for row in range(len(scenes)):
        keep = scenes.present[row]
        place, radius = scenes.position[row][keep], scenes.radius[row][keep]
        apart = place[:, None] - place[None]
        upper = torch.triu(torch.ones(len(place), len(place), dtype=torch.bool), 1)
        gap = apart.norm(dim=-1) - radius[:, None] - radius[None]
        assert (gap[upper] >= words.MIN_DISTANCE - 1e-5).all()
        assert ((apart @ axes.T).abs()[upper] >= words.MARGIN - 1e-5).all()


def test_every_object_shows_enough_pixels(scenes):
    pixels = visible_pixels(scenes.to("cpu", torch.float64))
    assert (pixels[scenes.present] >= words.MIN_PIXELS - 2).all()  # float32 moves an edge pixel
    mask, _ = truth(scenes[:20], words.REFERENCE_SIZE)
    for row in range(20):
        counts = torch.bincount(mask[row].reshape(-1), minlength=11)[1:]
        assert (counts - pixels[row]).abs().max() <= 3


def test_counts_and_choices_cover_their_range(scenes):
    number = scenes.present.sum(dim=1)
    assert set(number.tolist()) == set(range(words.MIN_OBJECTS, words.MAX_OBJECTS + 1))
    for part, table in (
        (scenes.shape, words.SHAPES),
        (scenes.size, words.SIZES),
        (scenes.material, words.MATERIALS),
        (scenes.color, words.COLORS),
    ):
        share = torch.bincount(part[scenes.present], minlength=len(table)) / scenes.present.sum()
        assert (share - 1 / len(table)).abs().max() < 0.35 / len(table)
    assert (scenes.rotation >= 0).all()
    assert (scenes.rotation < 360).all()


def test_camera_and_lights_are_jittered_within_bounds(scenes):
    camera = scenes.camera - torch.tensor(words.CAMERA)
    assert (camera.abs() <= words.CAMERA_JITTER + 1e-5).all()
    assert (camera.abs().amax(dim=0) > 0.9 * words.CAMERA_JITTER).all()
    lights = scenes.lights - torch.tensor(words.LIGHT_POSITIONS)
    assert (lights.abs() <= words.LIGHT_JITTER + 1e-5).all()
    assert (lights.abs().amax(dim=0) > 0.9 * words.LIGHT_JITTER).all()


@pytest.mark.parametrize("indices", [[7], [199, 7, 7, 0], list(range(5, 90))])
def test_a_scene_does_not_depend_on_its_batch(scenes, indices):
    found = sample_scenes(11, indices)
    for part, whole in zip(found.parts(), scenes.parts(), strict=True):
        assert torch.equal(part, whole[indices])


def test_other_seeds_give_other_scenes(scenes):
    assert not torch.equal(sample_scenes(12, [0]).position, scenes[:1].position)


def test_no_scenes_is_an_empty_batch():
    assert len(sample_scenes(0, [])) == 0
