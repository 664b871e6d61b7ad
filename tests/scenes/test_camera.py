from __future__ import annotations

import pytest
import torch

from clevr_scenes import fit_camera
from strop.scenes import camera as cameras
from strop.scenes import vocabulary as words


def test_the_target_is_in_the_middle():
    camera = torch.tensor([words.CAMERA, (7.0, -6.0, 5.0)], dtype=torch.float64)
    target = torch.tensor(words.CAMERA_TARGET, dtype=torch.float64).expand(2, 1, 3)
    pixels = cameras.project(camera, target, 240, 320)
    assert torch.allclose(pixels[..., 0], torch.tensor(160.0, dtype=torch.float64))
    assert torch.allclose(pixels[..., 1], torch.tensor(120.0, dtype=torch.float64))
    assert torch.allclose(pixels[:, 0, 2], (camera - target[:, 0]).norm(dim=-1))


def test_rays_and_projection_are_inverse():
    camera = torch.tensor([words.CAMERA], dtype=torch.float64)
    across, down = cameras.image_plane(30, 40, 1, "cpu", torch.float64)
    x, y, z = cameras.directions(camera, across, down)
    depth = torch.linspace(3, 20, x.shape[1], dtype=torch.float64)
    points = camera[:, None] + depth[None, :, None] * torch.stack([x, y, z], dim=-1)
    pixels = cameras.project(camera, points, 30, 40)[0]
    rows, columns = torch.meshgrid(torch.arange(30), torch.arange(40), indexing="ij")
    assert torch.allclose(pixels[:, 0], columns.reshape(-1).double() + 0.5)
    assert torch.allclose(pixels[:, 1], rows.reshape(-1).double() + 0.5)
    assert torch.allclose(pixels[:, 2], depth)


def test_up_is_up_and_left_is_left():
    camera = torch.tensor([words.CAMERA], dtype=torch.float64)
    left = torch.tensor(cameras.ground_directions()["left"], dtype=torch.float64)
    behind = torch.tensor(cameras.ground_directions()["behind"], dtype=torch.float64)
    points = torch.stack([torch.zeros(3, dtype=torch.float64), left, behind, behind * 0 + left * 0])
    points[3, 2] = 1.0
    middle, leftwards, back, above = cameras.project(camera, points[None], 100, 100)[0]
    assert leftwards[0] < middle[0] - 5
    assert back[1] < middle[1] - 2
    assert back[2] > middle[2]
    assert above[1] < middle[1] - 5


def test_the_directions_are_those_of_clevr():
    ways = cameras.ground_directions()
    assert ways["behind"] == pytest.approx((-0.754490315914154, 0.6563112735748291, 0.0), abs=1e-6)
    assert ways["left"] == pytest.approx((-0.6563112735748291, -0.7544902563095093, 0.0), abs=1e-6)
    assert set(ways) == set(words.DIRECTIONS)


def test_a_camera_is_found_again_from_rounded_pixels():
    camera = torch.tensor([[7.9, -6.1, 5.7]], dtype=torch.float64)
    points = torch.tensor(
        [[1.0, 2.0, 0.7], [-2.0, 0.5, 0.35], [0.3, -2.5, 0.7]], dtype=torch.float64
    )
    pixels = cameras.project(camera, points[None], 240, 320)[0]
    pixels[:, :2] = pixels[:, :2].round()
    found = fit_camera(points, pixels, 240, 320)
    assert (found - camera[0]).abs().max() < 0.05
