"""How surfaces look: lights, materials, and the grey of ground and backdrop.

The constants are fitted to images of the CLEVR generator; `benchmarks/render_match.py` says how
close they come.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from strop.scenes import vocabulary as words
from strop.scenes.camera import Vector
from strop.scenes.geometry import Solids
from strop.scenes.lights import Lights
from strop.scenes.scene import Scenes

GROUND_ALBEDO = 0.826
AMBIENT = 0.165
"""Radiance of the world around the scene as diffuse surfaces see it, from every side."""
BLEED = 0.4
"""Radiance objects throw on their neighbours, per unit of albedo."""
METAL_TINT = 0.9
"""How much of what it mirrors metal sends on, per unit of albedo."""
MIRROR_BLUR = 0.1
"""Width of the cone of a pixel's mirror rays, in radians."""

# Roughness and strength of the glossy lobes. Rubber's is wider than any gloss and brightens the
# rim instead, as a rough surface does.
_METAL_ALPHA, _RUBBER_ALPHA, _GROUND_ALPHA = 0.048, 2.0, 0.28
_METAL_GLOSS, _RUBBER_GLOSS, _GROUND_GLOSS = 0.4, 0.05, 0.042

# What mirrors see of the world: near black, a lit wall behind the scene, and a soft lamp above
# the camera with a glow around it. Fitted to what CLEVR's large metal spheres reflect.
_WORLD_DARK = 0.04
_WALL_RADIANCE, _WALL_SIDE, _WALL_TOP = 0.13, (0.70, 0.15), (0.87, 0.15)
_WALL_DIRECTION = (-0.857, 0.515)
_GLOW_DIRECTION = (0.5164, -0.1483, 0.8434)
_GLOW_LOBES = ((0.33, 10.0), (3.0, 220.0))
_GROUND_RADIANCE = 0.23
GROUND_END = (8.0, 24.0)
"""Mirrors see the ground fade into the world between these distances from the centre."""


class Surface(NamedTuple):
    """What shading needs to know of the points hit. Each part is (B, N)."""

    point: Vector
    normal: Vector
    view: Vector  # unit vector towards the eye
    albedo: Vector
    metal: Tensor  # bool
    ground: Tensor  # bool
    own: Tensor  # int64, index of the object, -1 for the ground


def albedos(scenes: Scenes) -> Vector:
    """Linear red, green and blue of the objects, each (B, O)."""
    table = scenes.position.new_tensor(words.RGB) / 255.0
    return _split(table[scenes.color])


def direct(surface: Surface, lamp: Lights, seen: Tensor) -> Vector:
    """Light that comes straight from the lamps, of which `seen` (B, L, N) reaches the point."""
    way = [
        position[..., None] - part[:, None]
        for position, part in zip(lamp.position, surface.point, strict=True)
    ]
    inverse = torch.rsqrt(_dot(way, way))
    to = [part * inverse for part in way]
    normal = [part[:, None] for part in surface.normal]
    view = [part[:, None] for part in surface.view]
    cosine = _dot(normal, to).clamp(min=0.0)
    leaving = -_dot([part[..., None] for part in lamp.facing], to)
    strength = seen * leaving.clamp(min=0.0) * inverse * inverse
    # Glossy part: the microfacet lobe around the half vector.
    half = [a + b for a, b in zip(to, view, strict=True)]
    facing = _dot(normal, half).clamp(min=0.0)
    facing = facing * facing / _dot(half, half).clamp(min=1e-9)
    alpha = torch.where(surface.metal, _METAL_ALPHA, _RUBBER_ALPHA)
    square = torch.where(surface.ground, _GROUND_ALPHA, alpha)[:, None] ** 2
    spread = facing * (square - 1.0) + 1.0
    gloss = torch.where(surface.metal, _METAL_GLOSS, _RUBBER_GLOSS)
    gloss = torch.where(surface.ground, _GROUND_GLOSS, gloss)[:, None]
    # The lobe ends where the lamp sets, not at a line.
    risen = (5.0 * cosine).clamp(max=1.0)
    shine = gloss * square / math.pi * strength * risen / (spread * spread)
    matte = cosine * strength
    # What the lamps' colours multiply is the same for all: sum over the lamps first.
    red, green, blue = (
        _over_lamps(power, matte) * torch.where(surface.metal, 0.0, albedo / math.pi)
        + _over_lamps(power, shine) * torch.where(surface.metal, albedo, 1.0)
        for power, albedo in zip(lamp.power, surface.albedo, strict=True)
    )
    return red, green, blue


def _over_lamps(power: Tensor, amount: Tensor) -> Tensor:
    """(B, L) and (B, L, N) to (B, N)."""
    total = power[:, :1] * amount[:, 0]
    for index in range(1, amount.shape[1]):
        total = total + power[:, index : index + 1] * amount[:, index]
    return total


def surroundings(surface: Surface, solid: Solids, albedo: Vector) -> tuple[Tensor, Vector]:
    """How much of the world each point sees past the objects, and the light objects throw on it.

    Objects count as spheres, for which both have a closed form. `albedo` is (B, O). Returns
    (B, N) and red, green, blue (B, N).
    """
    px, py, pz = (part[:, None] for part in surface.point)
    nx, ny, nz = (part[:, None] for part in surface.normal)
    every = solid.spread()
    dx, dy, dz = every.x - px, every.y - py, every.z - pz
    inverse = torch.rsqrt((dx * dx + dy * dy + dz * dz).clamp(min=1e-6))
    ratio = (inverse / every.scale).clamp(max=1.0)
    # Tilted half space: the part of the sphere under the point's horizon does not count.
    lift = ((dx * nx + dy * ny + dz * nz) * inverse + ratio) / (1.0 + ratio)
    index = torch.arange(solid.x.shape[1], device=px.device)[:, None]
    counts = every.present & (surface.own[:, None] != index)
    share = torch.where(counts, lift.clamp(min=0.0) * ratio * ratio, 0.0)
    red, green, blue = ((share * part[..., None]).sum(dim=1) for part in albedo)
    return (1.0 - share).prod(dim=1), (red, green, blue)


def world_radiance(direction: Vector) -> Tensor:
    """Radiance of the world without objects along unit vectors (B, N), the ground included."""
    x, y, z = direction
    level = torch.rsqrt((x * x + y * y).clamp(min=1e-9))
    side = (x * _WALL_DIRECTION[0] + y * _WALL_DIRECTION[1]) * level
    wall = torch.sigmoid((side - _WALL_SIDE[0]) / _WALL_SIDE[1])
    wall = wall * torch.sigmoid((_WALL_TOP[0] - z) / _WALL_TOP[1])
    cosine = x * _GLOW_DIRECTION[0] + y * _GLOW_DIRECTION[1] + z * _GLOW_DIRECTION[2]
    sky = _WORLD_DARK + _WALL_RADIANCE * wall
    for strength, sharpness in _GLOW_LOBES:
        sky = sky + strength * torch.exp(sharpness * (cosine - 1.0))
    return torch.where(z < 0.0, _GROUND_RADIANCE, sky)


def to_srgb(linear: Tensor) -> Tensor:
    """Linear radiance to uint8 sRGB."""
    value = linear.clamp(0.0, 1.0)
    curve = torch.where(
        value <= 0.0031308, 12.92 * value, 1.055 * value.clamp(min=1e-8) ** (1 / 2.4) - 0.055
    )
    return (curve * 255.0 + 0.5).to(torch.uint8)


def _dot(a: list[Tensor], b: list[Tensor]) -> Tensor:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _split(value: Tensor) -> Vector:
    x, y, z = value.unbind(-1)
    return x, y, z
