"""The three lamps: square areas that face the origin."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from strop.scenes.camera import Vector
from strop.scenes.scene import Scenes

# Power (red, green, blue) and edge length of the key, fill and back light.
_LIGHT_POWER = ((17.3, 16.1, 13.8), (4.2, 4.5, 5.45), (6.5, 6.45, 6.6))
_LIGHT_EDGE = (0.5, 0.5, 1.0)


class Lights(NamedTuple):
    """Square lamps that face the origin. Each part is (B, L)."""

    position: Vector
    across: Vector  # along one edge, as long as the edge
    up: Vector  # along the other
    facing: Vector  # unit normal
    power: Vector  # red, green, blue


def lights(scenes: Scenes) -> Lights:
    """The lamps of `scenes`."""
    position = scenes.lights
    facing = torch.nn.functional.normalize(-position, dim=-1)
    level = torch.stack([facing[..., 1], -facing[..., 0], torch.zeros_like(facing[..., 0])], dim=-1)
    level = torch.nn.functional.normalize(level, dim=-1)
    edge = position.new_tensor(_LIGHT_EDGE)[:, None]
    upright = torch.linalg.cross(level, facing)
    power = position.new_tensor(_LIGHT_POWER)
    return Lights(
        _split(position),
        _split(level * edge),
        _split(upright * edge),
        _split(facing),
        _split(power.expand_as(position)),
    )


def light_samples(lamp: Lights, across: Tensor, up: Tensor) -> Vector:
    """Points on the lamps: `across` and `up` are (S, N) in [-1/2, 1/2]; gives (B, L, S, N)."""
    x, y, z = (
        position[:, :, None, None] + side[:, :, None, None] * across + rise[:, :, None, None] * up
        for position, side, rise in zip(lamp.position, lamp.across, lamp.up, strict=True)
    )
    return x, y, z


def _split(value: Tensor) -> Vector:
    x, y, z = value.unbind(-1)
    return x, y, z
