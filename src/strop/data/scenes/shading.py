"""How surfaces look: lights, materials, and the grey of ground and backdrop.

The constants are fitted to images of the CLEVR generator; `benchmarks/render_match.py` says how
close they come.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from strop.data.scenes import vocabulary as words
from strop.data.scenes.camera import Vector
from strop.data.scenes.geometry import Solids
from strop.data.scenes.scene import Scenes

GROUND_ALBEDO = 0.8
GROUND_ROUGHNESS = 0.6
AMBIENT = 0.17
"""Radiance of the world around the scene as diffuse surfaces see it."""
BLEED = 0.1
"""Radiance objects throw on their neighbours, per unit of albedo."""
SKY = 0.07
"""Radiance of the world as mirrors see it."""

# Colour, power and edge length of the lights: key, fill, back, and a sun.
_LIGHT_COLOR = ((1.0, 0.85, 0.63), (0.54, 0.63, 1.0), (1.0, 1.0, 1.0))
_LIGHT_POWER = (22.0, 8.0, 12.0)
_LIGHT_EDGE = (0.5, 0.5, 1.0)


class Lights(NamedTuple):
    """Square lamps that face the origin. Each part is (B, L)."""

    position: Vector
    across: Vector  # along one edge, as long as the edge
    up: Vector  # along the other
    facing: Vector  # unit normal
    power: Vector  # red, green, blue


class Surface(NamedTuple):
    """What shading needs to know of the points hit. Each part is (B, N)."""

    point: Vector
    normal: Vector
    view: Vector  # unit vector towards the eye
    albedo: Vector
    metal: Tensor  # bool
    ground: Tensor  # bool
    own: Tensor  # int64, index of the object, -1 for the ground


def lights(scenes: Scenes) -> Lights:
    """The lamps of `scenes`."""
    position = scenes.lights
    facing = torch.nn.functional.normalize(-position, dim=-1)
    level = torch.stack([facing[..., 1], -facing[..., 0], torch.zeros_like(facing[..., 0])], dim=-1)
    level = torch.nn.functional.normalize(level, dim=-1)
    edge = position.new_tensor(_LIGHT_EDGE)[:, None]
    upright = torch.linalg.cross(level, facing)
    power = position.new_tensor(_LIGHT_COLOR) * position.new_tensor(_LIGHT_POWER)[:, None]
    return Lights(
        _split(position),
        _split(level * edge),
        _split(upright * edge),
        _split(facing),
        _split(power.expand_as(position)),
    )


def albedos(scenes: Scenes) -> Vector:
    """Linear red, green and blue of the objects, each (B, O)."""
    table = scenes.position.new_tensor(words.RGB) / 255.0
    return _split(table[scenes.color])


def light_samples(lamp: Lights, across: Tensor, up: Tensor) -> Vector:
    """Points on the lamps: `across` and `up` are (N, S) in [-1/2, 1/2]; gives (B, N, L, S)."""
    x, y, z = (
        position[:, None, :, None]
        + side[:, None, :, None] * across[None, :, None]
        + rise[:, None, :, None] * up[None, :, None]
        for position, side, rise in zip(lamp.position, lamp.across, lamp.up, strict=True)
    )
    return x, y, z


def direct(surface: Surface, lamp: Lights, seen: Tensor) -> Vector:
    """Light that comes straight from the lamps, of which `seen` (B, N, L) reaches the point."""
    px, py, pz = surface.point
    way = [
        position[:, None] - part[..., None]
        for position, part in zip(lamp.position, (px, py, pz), strict=True)
    ]
    inverse = torch.rsqrt(way[0] ** 2 + way[1] ** 2 + way[2] ** 2)
    to = [part * inverse for part in way]
    normal = [part[..., None] for part in surface.normal]
    view = [part[..., None] for part in surface.view]
    cosine = _dot(normal, to).clamp(min=0.0)
    leaving = -_dot([part[:, None] for part in lamp.facing], to)
    strength = seen * leaving.clamp(min=0.0) * inverse * inverse
    # Glossy part: the microfacet lobe, as broad as the lamp and the roughness make it.
    half = [a + b for a, b in zip(to, view, strict=True)]
    half_length = torch.rsqrt(_dot(half, half).clamp(min=1e-9))
    facing = (_dot(normal, half) * half_length).clamp(0.0, 1.0)
    alpha = torch.where(surface.metal, METAL_ALPHA, RUBBER_ALPHA)
    alpha = torch.where(surface.ground, GROUND_ALPHA, alpha)[..., None]
    square = alpha * alpha
    spread = facing * facing * (square - 1.0) + 1.0
    lobe = square / (math.pi * spread * spread)
    gloss = torch.where(surface.metal, METAL_GLOSS, RUBBER_GLOSS)
    gloss = torch.where(surface.ground, GROUND_GLOSS, gloss)[..., None]
    shine = gloss * lobe * strength * (cosine > 0.0)
    matte = torch.where(surface.metal, METAL_DIFFUSE, 1.0)[..., None] / math.pi
    matte = matte * cosine * strength
    tint = surface.metal[..., None]
    red, green, blue = (
        (
            power[:, None]
            * (albedo[..., None] * matte + torch.where(tint, albedo[..., None], 1.0) * shine)
        ).sum(-1)
        for power, albedo in zip(lamp.power, surface.albedo, strict=True)
    )
    return red, green, blue


METAL_ALPHA, RUBBER_ALPHA, GROUND_ALPHA = 0.12, 0.5, 0.6
METAL_GLOSS, RUBBER_GLOSS, GROUND_GLOSS = 0.25, 0.02, 0.0
METAL_DIFFUSE = 0.15
METAL_TINT = 0.8


def surroundings(surface: Surface, solid: Solids, albedo: Vector) -> tuple[Tensor, Vector]:
    """How much of the world each point sees past the objects, and the light objects throw on it.

    Objects count as spheres, for which both have a closed form. `albedo` is (B, O). Returns
    (B, N) and red, green, blue (B, N).
    """
    px, py, pz = surface.point
    nx, ny, nz = surface.normal
    open_sky = torch.ones_like(px)
    glow = [torch.zeros_like(px) for _ in range(3)]
    for index in range(solid.x.shape[1]):
        one = solid.column(index)
        dx, dy, dz = one.x - px, one.y - py, one.z - pz
        inverse = torch.rsqrt((dx * dx + dy * dy + dz * dz).clamp(min=1e-6))
        radius = 1.0 / one.scale
        ratio = (radius * inverse).clamp(max=1.0)
        # Tilted half space: the part of the sphere under the point's horizon does not count.
        lift = ((dx * nx + dy * ny + dz * nz) * inverse + ratio) / (1.0 + ratio)
        share = lift.clamp(min=0.0) * ratio * ratio
        share = torch.where(one.present & (surface.own != index), share, 0.0)
        open_sky = open_sky * (1.0 - share)
        for channel in range(3):
            glow[channel] = glow[channel] + share * albedo[channel][:, index : index + 1]
    return open_sky, (glow[0], glow[1], glow[2])


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
