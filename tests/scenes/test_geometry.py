"""Intersections against rays worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from strop.scenes import vocabulary as words
from strop.scenes.geometry import (
    BEVEL,
    Solids,
    interval,
    normal,
    round_edges,
    solids,
    to_local,
)


def ray(*numbers):
    return tuple(torch.tensor([[float(n)]]) for n in numbers)


def solid_of(scene_of, shape, rotation=0.0, x=0.0, y=0.0):
    every = solids(scene_of([(shape, "large", "rubber", "red", x, y, rotation)]))
    return Solids(*(value[:, :1] for value in every))


# Every object is 1.4 m across and stands on the ground: its centre is at height 0.7.
@pytest.mark.parametrize(
    ("shape", "origin", "direction", "enter", "leave"),
    [
        ("sphere", (-10, 0, 0.7), (1, 0, 0), 9.3, 10.7),
        ("sphere", (0, 0, 5), (0, 0, -1), 3.6, 5.0),
        (
            "sphere",
            (-10, 0.35, 0.7),
            (1, 0, 0),
            10 - 0.7 * math.sqrt(0.75),
            10 + 0.7 * math.sqrt(0.75),
        ),
        ("cube", (-10, 0.2, 0.3), (1, 0, 0), 9.3, 10.7),
        ("cube", (-10, 0.2, 0.3), (2, 0, 0), 4.65, 5.35),
        ("cube", (0.1, 0.2, 9), (0, 0, -1), 7.6, 9.0),
        ("cylinder", (-10, 0.0, 1.0), (1, 0, 0), 9.3, 10.7),
        ("cylinder", (0.3, 0.3, 9), (0, 0, -1), 7.6, 9.0),
        ("cylinder", (0, -10, 0.7), (0, 1, 0), 9.3, 10.7),
    ],
)
def test_rays_that_hit(scene_of, shape, origin, direction, enter, leave):
    solid = solid_of(scene_of, shape)
    found = interval(solid, ray(*origin), ray(*direction))
    assert found[0].item() == pytest.approx(enter, abs=2e-5)
    assert found[1].item() == pytest.approx(leave, abs=2e-5)


@pytest.mark.parametrize(
    ("shape", "origin", "direction"),
    [
        ("sphere", (-10, 0.71, 0.7), (1, 0, 0)),
        ("cube", (-10, 0.71, 0.7), (1, 0, 0)),
        ("cube", (-10, 0.0, 1.41), (1, 0, 0)),
        ("cylinder", (-10, 0.0, 1.41), (1, 0, 0)),
        ("cylinder", (0.6, 0.6, 9), (0, 0, -1)),  # within the square, outside the circle
    ],
)
def test_rays_that_miss(scene_of, shape, origin, direction):
    enter, leave = interval(solid_of(scene_of, shape), ray(*origin), ray(*direction))
    assert enter.item() > leave.item()


def test_a_cube_turned_by_an_eighth_shows_its_edge(scene_of):
    solid = solid_of(scene_of, "cube", rotation=math.pi / 4)
    enter, leave = interval(solid, ray(-10, 0, 0.7), ray(1, 0, 0))
    assert enter.item() == pytest.approx(10 - 0.7 * math.sqrt(2), abs=1e-4)
    assert leave.item() == pytest.approx(10 + 0.7 * math.sqrt(2), abs=1e-4)


def test_the_round_edge_of_a_cube_is_a_quarter_circle(scene_of):
    # Seen along the diagonal, the edge lies back by (sqrt(2) - 1) times the bevel.
    solid = solid_of(scene_of, "cube", rotation=math.pi / 4)
    origin, direction = ray(-10, 0, 0.7), ray(1, 0, 0)
    enter, _ = interval(solid, origin, direction)
    rounded, inside = round_edges(solid, origin, direction, enter)
    back = 0.7 * BEVEL[words.CUBE] * (math.sqrt(2) - 1)
    assert inside.item()
    assert rounded.item() - enter.item() == pytest.approx(back, abs=0.01)
    # A ray that grazes the sharp corner misses the rounded one.
    origin = ray(-10, 0.7 * math.sqrt(2) - 0.01, 0.7)
    enter, leave = interval(solid, origin, direction)
    assert enter.item() < leave.item()
    assert not round_edges(solid, origin, direction, enter)[1].item()


@pytest.mark.parametrize(
    ("shape", "point", "expected"),
    [
        ("sphere", (0.7, 0, 0.7), (1, 0, 0)),
        (
            "sphere",
            (0, 0.7 * math.sqrt(0.5), 0.7 + 0.7 * math.sqrt(0.5)),
            (0, math.sqrt(0.5), math.sqrt(0.5)),
        ),
        ("cube", (0.7, 0.1, 0.8), (1, 0, 0)),
        ("cube", (0.7, 0.7, 0.7), (math.sqrt(0.5), math.sqrt(0.5), 0)),
        ("cube", (0.1, -0.2, 1.4), (0, 0, 1)),
        ("cylinder", (0, -0.7, 0.7), (0, -1, 0)),
        ("cylinder", (0.2, 0.2, 1.4), (0, 0, 1)),
    ],
)
def test_normals(scene_of, shape, point, expected):
    solid = solid_of(scene_of, shape)
    found = normal(solid, to_local(solid, ray(*point)))
    assert [part.item() for part in found] == pytest.approx(expected, abs=1e-5)


def test_normals_turn_with_the_object(scene_of):
    solid = solid_of(scene_of, "cube", rotation=math.pi / 6, x=1.0, y=2.0)
    front = (1.0 + 0.7 * math.cos(math.pi / 6), 2.0 + 0.7 * math.sin(math.pi / 6), 0.7)
    found = normal(solid, to_local(solid, ray(*front)))
    expected = (math.cos(math.pi / 6), math.sin(math.pi / 6), 0)
    assert [part.item() for part in found] == pytest.approx(expected, abs=1e-5)
