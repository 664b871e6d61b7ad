"""Programs that spell their scenes: two codes for each object, its place and its words."""

from __future__ import annotations

import numpy as np
import torch

from strop.data.record import Batch
from strop.structure.pairs import Pairs, program_of
from strop.structure.study import Encoded
from strop.structure.things import ATTRIBUTES, Thing, Things

SIDE = 4  # places along each axis
PLACES = np.linspace(-2.25, 2.25, SIDE)
SHAPES, COLORS, SIZES, MATERIALS = ATTRIBUTES.values()
CODEBOOK = SIDE**2 + len(SHAPES) * len(COLORS)


def spell(things: Things) -> list[int]:
    """The codes of a scene whose objects stand on the grid."""
    codes = []
    for thing in things:
        column, row = (int(np.abs(PLACES - along).argmin()) for along in (thing.x, thing.y))
        codes.append(column * SIDE + row)
        codes.append(SIDE**2 + SHAPES.index(thing.shape) * len(COLORS) + COLORS.index(thing.color))
    return codes


def spelled_pairs(count: int, most: int = 3, seed: int = 0) -> Pairs:
    """Pairs of 1 to `most` objects, nearest first; size follows shape, material follows color."""
    random = np.random.default_rng(seed)
    scenes = []
    for _ in range(count):
        cells = random.choice(SIDE**2, random.integers(1, most + 1), replace=False)
        objects = []
        for cell in cells:
            shape, color = random.integers(len(SHAPES)), random.integers(len(COLORS))
            place = PLACES[cell // SIDE], PLACES[cell % SIDE]
            words = SHAPES[shape], COLORS[color], SIZES[shape % 2], MATERIALS[color % 2]
            objects.append(Thing(*words, *map(float, place)))
        scenes.append(tuple(sorted(objects, key=lambda thing: thing.y - thing.x)))
    return Pairs(program_of([spell(s) for s in scenes], CODEBOOK, 2 * most), scenes)


def encoded_of(pairs: Pairs) -> Encoded:
    """Pairs as a study gets them; the images are blank."""
    scenes = tuple(
        {
            "objects": [
                {
                    **{name: getattr(thing, name) for name in ATTRIBUTES},
                    "3d_coords": [*thing[4:], 0],
                }
                for thing in things
            ]
        }
        for things in pairs.scenes
    )
    records = Batch(
        images=torch.zeros(len(pairs), 3, 1, 1, dtype=torch.uint8),
        names=tuple(f"scene {row}" for row in range(len(pairs))),
        indices=torch.arange(len(pairs)),
        scenes=scenes,
    )
    return Encoded(data="spelled:", records=records, program=pairs.program)
