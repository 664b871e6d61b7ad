"""Nearest hits of rays, and visibility of lights.

Each has two implementations that agree up to rounding. The dense one intersects every ray with
every object. Its shapes do not depend on the data, so it compiles to a few kernels on a GPU. The
sparse one first discards pairs that cannot intersect, which is fast on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from strop.scenes import vocabulary as words
from strop.scenes.camera import basis
from strop.scenes.geometry import (
    Solids,
    Vector,
    dot,
    each,
    interval,
    round_edges,
    vector,
)
from strop.scenes.shading import Lights

_START = 1e-4
"""Intersections closer to the origin of a ray are ignored."""


def nearest(
    solid: Solids, origin: Vector, direction: Vector, skip: Tensor, rounded: bool
) -> tuple[Tensor, Tensor]:
    """The first object along each ray, by intersection with every object.

    `solid` is (B, O), rays are (B, N), `skip` (B, N) int64 is an object to ignore (-1 for none),
    `rounded` selects rounded edges. Returns the parameter of the ray (B, N), infinite for a miss,
    and the index of the object (B, N) int64, -1 for a miss.
    """
    # A reduction over objects instead of a loop keeps the compiled kernel small.
    every = solid.spread()
    start, way = (each(lambda part: part[:, None], ray) for ray in (origin, direction))
    enter, leave = interval(every, start, way)
    index = torch.arange(solid.x.shape[1], device=skip.device)[:, None]
    hit = (enter < leave) & (enter > _START) & every.present & (skip[:, None] != index)
    if rounded:
        enter, inside = round_edges(every, start, way, enter)
        hit = hit & inside
    best, which = torch.where(hit, enter, torch.inf).min(dim=1)
    return best, torch.where(torch.isfinite(best), which, -1)


def nearest_of_camera(
    solid: Solids, camera: Tensor, height: int, width: int, samples: int = 1
) -> tuple[Tensor, Tensor]:
    """Sparse `nearest` for camera rays through the points of `camera.image_plane`.

    Each object is intersected only in the rectangle of the image that its bounding sphere covers.
    Returns depth and index as `nearest` does, each (B, height * samples * width * samples).
    """
    batch, count = solid.x.shape
    rows, columns = height * samples, width * samples
    pairs, row, column = _covered(solid, camera, rows, columns)
    owner = torch.div(pairs, count, rounding_mode="floor")
    focal = words.FOCAL * max(rows, columns)
    down = (row.to(camera.dtype) + (0.5 - rows / 2)) / focal
    across = (column.to(camera.dtype) + (0.5 - columns / 2)) / focal
    direction = each(
        lambda right, up, forward: forward + right * across - up * down,
        *(vector(axis[owner]) for axis in basis(camera)),
    )
    eye = vector(camera[owner])
    enter, leave = interval(solid.take(pairs), eye, direction)
    # Rounding costs more than intersection, so it is computed for hits only.
    met = torch.nonzero((enter < leave) & (enter > _START)).squeeze(-1)
    eye, direction = (each(lambda part: part[met], ray) for ray in (eye, direction))
    enter, inside = round_edges(solid.take(pairs[met]), eye, direction, enter[met])
    hit, enter = met[inside], enter[inside]
    flat = (owner[hit] * rows + row[hit]) * columns + column[hit]
    index = pairs[hit] % count
    best = torch.full((batch * rows * columns,), torch.inf, device=flat.device, dtype=enter.dtype)
    best.scatter_reduce_(0, flat, enter, "amin")
    won = enter == best[flat]
    which = torch.full_like(best, -1, dtype=torch.int64)
    which[flat[won]] = index[won]
    return best.reshape(batch, rows * columns), which.reshape(batch, rows * columns)


def _covered(
    solid: Solids, camera: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """All pairs of an object and a grid point that it may cover, as three tensors of one length.

    They are the index of the object in the flattened (B, O), the row and the column of the grid.
    """
    focal = words.FOCAL * max(height, width)
    offset = torch.stack([solid.x, solid.y, solid.z], dim=-1) - camera[:, None]
    across, up, depth = (torch.einsum("bok,bk->bo", offset, axis) for axis in basis(camera))
    first_column, last_column = _extent(across, depth, solid.bound, focal, width)
    first_row, last_row = _extent(-up, depth, solid.bound, focal, height)
    columns = (last_column - first_column).clamp(min=0).reshape(-1)
    rows = (last_row - first_row).clamp(min=0).reshape(-1)
    sizes = columns * rows * solid.present.reshape(-1)
    pairs = torch.repeat_interleave(sizes)
    start = torch.cumsum(sizes, 0) - sizes
    within = torch.arange(pairs.shape[0], device=pairs.device) - start[pairs]
    row = torch.div(within, columns[pairs], rounding_mode="floor")
    column = within - row * columns[pairs] + first_column.reshape(-1)[pairs]
    return pairs, row + first_row.reshape(-1)[pairs], column


def _extent(
    side: Tensor, depth: Tensor, bound: Tensor, focal: float, size: int
) -> tuple[Tensor, Tensor]:
    """The range of grid lines that the image of a sphere can cover along one axis, (B, O) int64."""
    # The tangents from the pinhole to the circle in the plane of this axis and the depth.
    room = (depth * depth - bound * bound).clamp(min=1e-6)
    swing = bound * torch.sqrt((side * side + room).clamp(min=0.0))
    low = size / 2 + focal * (side * depth - swing) / room
    high = size / 2 + focal * (side * depth + swing) / room
    first = (low - 1.0).floor().clamp(0, size).to(torch.int64)
    return first, (high + 1.0).ceil().clamp(0, size).to(torch.int64)


def visible(solid: Solids, point: Vector, samples: Vector, own: Tensor) -> Tensor:
    """The share of the samples of each light that each point sees, tested against every object.

    `point` is (B, N), `samples` are positions on the lights (B, L, S, N), `own` (B, N) is the
    object of a point (-1 for the ground). An object does not shade itself, because it is convex and
    surfaces that face away are dark. Returns (B, L, N).
    """
    start = each(lambda part: part[:, None, None, None], point)
    way = each(lambda part, origin: part[:, :, :, None] - origin, samples, start)
    every = Solids(*(value[:, None, None, :, None] for value in solid))
    enter, leave = interval(every, start, way)
    index = torch.arange(solid.x.shape[1], device=own.device)[:, None]
    hit = (enter < leave) & (leave > _START) & (enter < 1.0)
    hit = hit & every.present & (own[:, None, None, None] != index)
    return (~hit.any(dim=3)).to(point[0].dtype).mean(dim=2)


def visible_sparse(
    solid: Solids,
    point: Vector,
    facing: Vector,
    lamp: Lights,
    place: tuple[Tensor, Tensor],
    own: Tensor,
) -> Tensor:
    """`visible`, tested only against objects near the segment from a point to a light.

    `facing` is the normal of the points and `place` the positions of the samples on the lights,
    (S, N) each. The result is arbitrary for points that face away from a light, where it has no
    effect. Returns (B, L, N).
    """
    start = each(lambda part: part[:, None], point)
    offset = each(lambda part, begin: part[:, :, None] - begin, solid[:3], start)
    square = dot(offset, offset)
    index = torch.arange(solid.x.shape[1], device=own.device)[:, None]
    other = (own[:, None] != index) & solid.present[:, :, None]

    def seen(light: int) -> Tensor:
        centre, across, up = (
            each(lambda part: part[:, light, None], vectors)
            for vectors in (lamp.position, lamp.across, lamp.up)
        )
        way = each(torch.sub, centre, point)
        length = dot(way, way)[:, None]
        along = dot(offset, each(lambda part: part[:, None], way))
        share = (along / length).clamp(0.0, 1.0)
        # All samples are within half the diagonal of the centre of the light.
        reach = solid.bound + 0.5 * torch.sqrt(dot(across, across) + dot(up, up))
        near = square - share * (2.0 * along - share * length) < reach[:, :, None] ** 2
        lit = dot(way, facing)[:, None] > 0.0
        row, which, ray = (near & lit & other).nonzero(as_tuple=True)
        samples = each(
            lambda part, side, rise: (
                part[row, ray] + side[row, 0] * place[0][:, ray] + rise[row, 0] * place[1][:, ray]
            ),
            way,
            across,
            up,
        )
        origin = each(lambda part: part[row, ray], point)
        enter, leave = interval(solid.take(row * len(index) + which), origin, samples)
        hit = (enter < leave) & (leave > _START) & (enter < 1.0)
        sample, pair = hit.nonzero(as_tuple=True)
        free = torch.ones(len(own), *place[0].shape, device=own.device)
        free[row[pair], sample, ray[pair]] = 0.0
        return free.mean(dim=1)

    return torch.stack([seen(light) for light in range(lamp.power[0].shape[1])], dim=1)
