"""Vectors, and the intersection of rays with convex solids, which a ray enters and leaves once.

A vector is three tensors, which are contiguous on a CPU and fused on a GPU.

Objects are intersected in their own frame, where each fills [-1, 1] along every axis: the unit
sphere, the cube of side two, the cylinder of radius one and height two. Rays are transformed
without normalisation, so their parameter does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from strop.scenes import vocabulary as words
from strop.scenes.scene import Scenes

BEVEL = {words.CUBE: 0.2, words.SPHERE: 1.0, words.CYLINDER: 0.07}
"""Radius of the rounded edges relative to the object; fitted to masks of the generator."""
_ROUNDING_STEPS = 4
_ROUNDING_GAP = 0.01
_BOUND = {words.CUBE: 3**0.5, words.SPHERE: 1.0, words.CYLINDER: 2**0.5}
_TINY = 1e-12


Vector = tuple[Tensor, Tensor, Tensor]
"""x, y and z (or red, green and blue) as separate tensors of one shape."""


def vector(value: Tensor) -> Vector:
    """A tensor (..., 3) as a vector of tensors (...)."""
    x, y, z = value.unbind(-1)
    return x, y, z


def each(function: Callable[..., Tensor], *vectors: Vector) -> Vector:
    """`function` of the x, of the y and of the z parts of `vectors`."""
    x, y, z = (function(*parts) for parts in zip(*vectors, strict=True))
    return x, y, z


def dot(a: Vector, b: Vector) -> Tensor:
    """The inner product."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


class Solids(NamedTuple):
    """The objects for intersection. All parts have one shape: (B, O), or gathered."""

    x: Tensor
    y: Tensor
    z: Tensor
    scale: Tensor  # 1 / radius
    cos: Tensor
    sin: Tensor
    cube: Tensor  # bool
    sphere: Tensor  # bool
    present: Tensor  # bool
    bound: Tensor  # radius of the bounding sphere
    bevel: Tensor  # radius of the rounded edges in the object's frame

    def take(self, index: Tensor) -> Solids:
        """The objects at `index` of the flattened leading dimensions."""
        return Solids(*(value.reshape(-1)[index] for value in self))

    def spread(self) -> Solids:
        """(B, O) to (B, O, 1), to broadcast against rays."""
        return Solids(*(value.unsqueeze(-1) for value in self))


def solids(scenes: Scenes) -> Solids:
    """The objects of `scenes` for intersection, each part (B, O)."""
    radius = scenes.radius
    cube, sphere = scenes.shape == words.CUBE, scenes.shape == words.SPHERE
    return Solids(
        x=scenes.position[..., 0].contiguous(),
        y=scenes.position[..., 1].contiguous(),
        z=radius,
        scale=1.0 / radius,
        cos=torch.cos(scenes.rotation),
        sin=torch.sin(scenes.rotation),
        cube=cube,
        sphere=sphere,
        present=scenes.present,
        bound=radius * _by_shape(_BOUND, cube, sphere),
        bevel=_by_shape(BEVEL, cube, sphere).to(radius.dtype),
    )


def _by_shape(table: dict[int, float], cube: Tensor, sphere: Tensor) -> Tensor:
    round_or_not = torch.where(sphere, table[words.SPHERE], table[words.CYLINDER])
    return torch.where(cube, table[words.CUBE], round_or_not)


def to_local(solid: Solids, point: Vector) -> Vector:
    """Transform a point from the world to the object frame."""
    return rotate_in(solid, each(torch.sub, point, (solid.x, solid.y, solid.z)))


def rotate_in(solid: Solids, vector: Vector) -> Vector:
    """Transform a direction from the world to the object frame, with scaling."""
    x, y, z = vector
    return (
        (solid.cos * x + solid.sin * y) * solid.scale,
        (solid.cos * y - solid.sin * x) * solid.scale,
        z * solid.scale,
    )


def rotate_out(solid: Solids, vector: Vector) -> Vector:
    """Transform a direction from the object frame to the world, without scaling."""
    x, y, z = vector
    return solid.cos * x - solid.sin * y, solid.cos * y + solid.sin * x, z


def interval(solid: Solids, origin: Vector, direction: Vector) -> tuple[Tensor, Tensor]:
    """Parameters t at which the ray `origin + t * direction` enters and leaves the object.

    All arguments broadcast. A ray that misses has `enter > leave`. Intersections behind the origin
    (t < 0) are included.
    """
    start, way = to_local(solid, origin), rotate_in(solid, direction)
    enter_round, leave_round = _round(start, way, solid.sphere.to(way[0].dtype))
    (enter_x, leave_x), (enter_y, leave_y), (enter_z, leave_z) = map(_slab, start, way)
    enter = torch.where(solid.cube, torch.maximum(enter_x, enter_y), enter_round)
    leave = torch.where(solid.cube, torch.minimum(leave_x, leave_y), leave_round)
    enter = torch.where(solid.sphere, enter, torch.maximum(enter, enter_z))
    leave = torch.where(solid.sphere, leave, torch.minimum(leave, leave_z))
    return enter, leave


def _round(start: Vector, way: Vector, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The interval of a ray in x² + y² + weight z² <= 1; weight 1 for spheres, 0 for cylinders."""
    (ox, oy, oz), (dx, dy, dz) = start, way
    upward = weight * dz
    a = (dx * dx + dy * dy + upward * dz).clamp(min=_TINY)
    b = ox * dx + oy * dy + oz * upward
    c = ox * ox + oy * oy + weight * (oz * oz) - 1.0
    discriminant = b * b - a * c
    root = discriminant.clamp(min=0.0).sqrt()
    inverse = 1.0 / a
    enter = torch.where(discriminant < 0.0, torch.inf, (-b - root) * inverse)
    return enter, (root - b) * inverse


def _slab(origin: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """The interval of a ray in [-1, 1] along one axis."""
    tiny = torch.where(direction < 0.0, -_TINY, _TINY).to(direction.dtype)
    inverse = 1.0 / torch.where(direction.abs() < _TINY, tiny, direction)
    middle, half = -origin * inverse, inverse.abs()
    return middle - half, middle + half


def round_edges(
    solid: Solids, origin: Vector, direction: Vector, enter: Tensor
) -> tuple[Tensor, Tensor]:
    """Move the hit at `enter` from the sharp hull to the object with rounded edges.

    Returns the parameter of the ray and whether it hits the rounded object. A few steps of sphere
    tracing suffice, because hull and object are close.
    """
    start, way = to_local(solid, origin), rotate_in(solid, direction)
    speed = torch.rsqrt(dot(way, way))
    finite = torch.where(torch.isfinite(enter), enter, 0.0)
    gap = torch.zeros_like(finite)
    for step in range(_ROUNDING_STEPS + 1):
        excess = _excess(solid, each(lambda o, d, t=finite: o + t * d, start, way))
        gap = torch.sqrt(dot(excess, excess)) - solid.bevel
        if step < _ROUNDING_STEPS:
            finite = finite + gap * speed
    return torch.where(solid.sphere, enter, finite), solid.sphere | (gap < _ROUNDING_GAP)


def normal(solid: Solids, local: Vector) -> Vector:
    """Outward unit normal in the world at `local`, a surface point in the object frame.

    Near an edge it follows the rounded edge, which gives metal edges their highlights.
    """
    excess = _excess(solid, local)
    length = torch.rsqrt(dot(excess, excess).clamp(min=_TINY))
    return rotate_out(solid, each(lambda part: part * length, excess))


def _excess(solid: Solids, local: Vector) -> Vector:
    """The vector from the core of an object (its inside without the bevel) to a point outside.

    The core of a sphere is its centre. On the surface, this vector is as long as the bevel.
    """
    x, y, z = local
    edge = 1.0 - solid.bevel
    across = torch.sqrt((x * x + y * y).clamp(min=_TINY))
    rim = (across - edge).clamp(min=0.0) / across
    boxed = solid.cube | solid.sphere
    return (
        torch.where(boxed, _beyond(x, edge), x * rim),
        torch.where(boxed, _beyond(y, edge), y * rim),
        _beyond(z, edge),
    )


def _beyond(value: Tensor, edge: Tensor) -> Tensor:
    """The signed excess of `value` over [-edge, edge]."""
    return value - torch.minimum(torch.maximum(value, -edge), edge)
