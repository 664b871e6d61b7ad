"""Three square area lights that face the origin."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from strop.scenes.scene import Scenes
from strop.scenes.vectors import Vector, each, vector

# Power (red, green, blue) and edge length of the key, fill and back light.
_LIGHT_POWER = ((17.3, 16.1, 13.8), (4.2, 4.5, 5.45), (6.5, 6.45, 6.6))
_LIGHT_EDGE = (0.5, 0.5, 1.0)


class Lights(NamedTuple):
    """Square area lights. Each part is (B, L)."""

    position: Vector
    across: Vector  # along one edge, with its length
    up: Vector  # along the other edge
    facing: Vector  # unit normal
    power: Vector  # red, green, blue


def lights(scenes: Scenes) -> Lights:
    """The area lights of `scenes`."""
    position = scenes.lights
    facing = torch.nn.functional.normalize(-position, dim=-1)
    level = torch.stack([facing[..., 1], -facing[..., 0], torch.zeros_like(facing[..., 0])], dim=-1)
    level = torch.nn.functional.normalize(level, dim=-1)
    edge = position.new_tensor(_LIGHT_EDGE)[:, None]
    upright = torch.linalg.cross(level, facing)
    power = position.new_tensor(_LIGHT_POWER)
    return Lights(
        vector(position),
        vector(level * edge),
        vector(upright * edge),
        vector(facing),
        vector(power.expand_as(position)),
    )


def light_samples(lamp: Lights, across: Tensor, up: Tensor) -> Vector:
    """Points on the lamps: `across` and `up` are (S, N) in [-1/2, 1/2]; gives (B, L, S, N)."""
    position, side, rise = (
        each(lambda part: part[:, :, None, None], value)
        for value in (lamp.position, lamp.across, lamp.up)
    )
    return each(lambda centre, s, r: centre + s * across + r * up, position, side, rise)
