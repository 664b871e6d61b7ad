"""Lamps, and the shading of surfaces: materials, ground and backdrop.

The constants are fitted to images of the CLEVR generator; `benchmarks/render_match.py` measures the
difference.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from strop.scenes import vocabulary as words
from strop.scenes.geometry import Solids, Vector, dot, each, vector
from strop.scenes.scene import Scenes

GROUND_ALBEDO = 0.826
AMBIENT = 0.165
"""Ambient radiance that diffuse surfaces receive from every direction."""
BLEED = 0.4
"""Radiance that objects reflect onto their neighbours, per unit of albedo."""
METAL_TINT = 0.9
"""Share of the mirrored radiance that metal reflects, per unit of albedo."""
MIRROR_BLUR = 0.1
"""Width of the cone of mirror rays of a pixel, in radians."""

# Roughness and strength of the glossy lobes. The lobe of rubber is so wide that it brightens the
# rim, as on a rough surface.
_METAL_ALPHA, _RUBBER_ALPHA, _GROUND_ALPHA = 0.048, 2.0, 0.28
_METAL_GLOSS, _RUBBER_GLOSS, _GROUND_GLOSS = 0.4, 0.05, 0.042

# Power (red, green, blue) and edge length of the key, fill and back light.
_LAMP_POWER = ((17.3, 16.1, 13.8), (4.2, 4.5, 5.45), (6.5, 6.45, 6.6))
_LAMP_EDGE = (0.5, 0.5, 1.0)

# The environment in mirrors: near black, with a lit wall behind the scene, and a soft lamp with a
# glow above the camera. Fitted to reflections in CLEVR's large metal spheres.
_WORLD_DARK = 0.04
_WALL_RADIANCE, _WALL_SIDE, _WALL_TOP = 0.13, (0.70, 0.15), (0.87, 0.15)
_WALL_DIRECTION = (-0.857, 0.515)
_GLOW_DIRECTION = (0.5164, -0.1483, 0.8434)
_GLOW_LOBES = ((0.33, 10.0), (3.0, 220.0))
_GROUND_RADIANCE = 0.23
GROUND_END = (8.0, 24.0)
"""In mirrors, the ground fades into the environment between these distances from the centre."""


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
    edge = position.new_tensor(_LAMP_EDGE)[:, None]
    upright = torch.linalg.cross(level, facing)
    power = position.new_tensor(_LAMP_POWER)
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


class Surface(NamedTuple):
    """Surface points for shading. Each part is (B, N)."""

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
    return vector(table[scenes.color])


def direct(surface: Surface, lamp: Lights, seen: Tensor) -> Vector:
    """Direct light of the lamps; `seen` (B, L, N) is the visible share of each lamp."""
    way = each(
        lambda position, part: position[..., None] - part[:, None], lamp.position, surface.point
    )
    inverse = torch.rsqrt(dot(way, way))
    to = each(lambda part: part * inverse, way)
    normal = each(lambda part: part[:, None], surface.normal)
    view = each(lambda part: part[:, None], surface.view)
    cosine = dot(normal, to).clamp(min=0.0)
    leaving = -dot(each(lambda part: part[..., None], lamp.facing), to)
    strength = seen * leaving.clamp(min=0.0) * inverse * inverse
    # Glossy part: the microfacet lobe around the half vector.
    half = each(torch.add, to, view)
    facing = dot(normal, half).clamp(min=0.0)
    facing = facing * facing / dot(half, half).clamp(min=1e-9)
    alpha = torch.where(surface.metal, _METAL_ALPHA, _RUBBER_ALPHA)
    square = torch.where(surface.ground, _GROUND_ALPHA, alpha)[:, None] ** 2
    spread = facing * (square - 1.0) + 1.0
    gloss = torch.where(surface.metal, _METAL_GLOSS, _RUBBER_GLOSS)
    gloss = torch.where(surface.ground, _GROUND_GLOSS, gloss)[:, None]
    # The lobe fades out smoothly as the lamp reaches the horizon.
    risen = (5.0 * cosine).clamp(max=1.0)
    shine = gloss * square / math.pi * strength * risen / (spread * spread)
    matte = cosine * strength
    # The lamps are summed first, because the other factors do not depend on their colour.
    return each(
        lambda power, albedo: (
            (power[..., None] * matte).sum(1) * torch.where(surface.metal, 0.0, albedo / math.pi)
            + (power[..., None] * shine).sum(1) * torch.where(surface.metal, albedo, 1.0)
        ),
        lamp.power,
        surface.albedo,
    )


def surroundings(surface: Surface, solid: Solids, albedo: Vector) -> tuple[Tensor, Vector]:
    """The share of the environment that each point sees, and the light reflected from objects.

    Objects are approximated by spheres, for which both have a closed form. `albedo` is (B, O).
    Returns (B, N) and red, green, blue (B, N).
    """
    every = solid.spread()
    way = each(lambda o, part: o - part[:, None], (every.x, every.y, every.z), surface.point)
    facing = each(lambda part: part[:, None], surface.normal)
    inverse = torch.rsqrt(dot(way, way).clamp(min=1e-6))
    ratio = (inverse / every.scale).clamp(max=1.0)
    # The part of the sphere below the horizon of the point does not count.
    lift = (dot(way, facing) * inverse + ratio) / (1.0 + ratio)
    index = torch.arange(solid.x.shape[1], device=ratio.device)[:, None]
    counts = every.present & (surface.own[:, None] != index)
    share = torch.where(counts, lift.clamp(min=0.0) * ratio * ratio, 0.0)
    reflected = each(lambda part: (share * part[..., None]).sum(dim=1), albedo)
    return (1.0 - share).prod(dim=1), reflected


def world_radiance(direction: Vector) -> Tensor:
    """Radiance of the environment and the ground along unit vectors (B, N)."""
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
