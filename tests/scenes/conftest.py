"""Scenes put together by hand, for the renderer's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from strop.scenes import Scenes
from strop.scenes import vocabulary as words

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

Thing = tuple[str, str, str, str, float, float, float]
"""shape, size, material, colour, x, y, rotation."""


def build(
    things: Sequence[Thing],
    camera: Sequence[float] = words.CAMERA,
    lights: Sequence[Sequence[float]] = words.LIGHT_POSITIONS,
) -> Scenes:
    padding: Thing = ("cube", "large", "rubber", "gray", 0.0, 0.0, 0.0)
    rows = [*things, *[padding] * (words.MAX_OBJECTS - len(things))]
    return Scenes(
        shape=torch.tensor([[words.SHAPES.index(r[0]) for r in rows]]),
        size=torch.tensor([[words.SIZES.index(r[1]) for r in rows]]),
        material=torch.tensor([[words.MATERIALS.index(r[2]) for r in rows]]),
        color=torch.tensor([[words.COLORS.index(r[3]) for r in rows]]),
        position=torch.tensor([[[r[4], r[5]] for r in rows]]),
        rotation=torch.tensor([[r[6] for r in rows]]),
        present=torch.arange(words.MAX_OBJECTS)[None] < len(things),
        camera=torch.tensor([list(camera)]),
        lights=torch.tensor([[list(light) for light in lights]]),
    )


@pytest.fixture(scope="session")
def scene_of() -> Callable[..., Scenes]:
    return build
