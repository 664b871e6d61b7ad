"""A pinhole camera with a fixed target and the z axis of the world pointing up."""

from __future__ import annotations

import torch
from torch import Tensor

from strop.scenes import vocabulary as words
from strop.scenes.geometry import Vector, each, vector


def basis(camera: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Right, up and forward unit vectors of cameras at `camera` (B, 3), each (B, 3)."""
    target = camera.new_tensor(words.CAMERA_TARGET)
    forward = torch.nn.functional.normalize(target - camera, dim=-1)
    right = torch.stack([forward[:, 1], -forward[:, 0], torch.zeros_like(forward[:, 0])], dim=-1)
    right = torch.nn.functional.normalize(right, dim=-1)
    return right, torch.linalg.cross(right, forward), forward


def directions(camera: Tensor, across: Tensor, down: Tensor) -> Vector:
    """Rays through points of the image plane.

    `across` and `down` (N,) come from `image_plane`. Each of the returned x, y, z is (B, N). The
    parameter of a ray is its depth in metres.
    """
    return each(
        lambda right, up, forward: forward[:, None] + right[:, None] * across - up[:, None] * down,
        *map(vector, basis(camera)),
    )


def image_plane(
    height: int, width: int, samples: int, device: torch.device | str, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Positions of `samples` x `samples` points per pixel on the plane at a depth of one metre.

    Returns `across` and `down`, each (height * samples * width * samples,), row by row.
    """
    focal = words.FOCAL * max(height, width)
    rows = (torch.arange(height * samples, device=device, dtype=dtype) + 0.5) / samples
    columns = (torch.arange(width * samples, device=device, dtype=dtype) + 0.5) / samples
    down = ((rows - height / 2) / focal)[:, None].expand(-1, width * samples)
    across = ((columns - width / 2) / focal)[None, :].expand(height * samples, -1)
    return across.reshape(-1), down.reshape(-1)


def project(camera: Tensor, points: Tensor, height: int, width: int) -> Tensor:
    """Project `points` (B, M, 3) into `camera` (B, 3): (B, M, 3) as (column, row, depth).

    Columns and rows are continuous, with 0 at the left and top border of the image.
    """
    right, up, forward = basis(camera)
    offset = points - camera[:, None]
    depth = torch.einsum("bmk,bk->bm", offset, forward)
    focal = words.FOCAL * max(height, width)
    column = width / 2 + focal * torch.einsum("bmk,bk->bm", offset, right) / depth
    row = height / 2 - focal * torch.einsum("bmk,bk->bm", offset, up) / depth
    return torch.stack([column, row, depth], dim=-1)


def ground_directions() -> dict[str, tuple[float, float, float]]:
    """CLEVR's six directions. Like the generator, they ignore the jitter of the camera."""
    camera = torch.tensor([words.CAMERA], dtype=torch.float64)
    x, y, _ = (camera / camera[:, :2].norm())[0].tolist()
    behind = (-x, -y, 0.0)
    left = (y, -x, 0.0)
    return {
        "behind": behind,
        "front": (x, y, 0.0),
        "left": left,
        "right": (-y, x, 0.0),
        "above": (0.0, 0.0, 1.0),
        "below": (0.0, 0.0, -1.0),
    }
