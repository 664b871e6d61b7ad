"""Programs that spell their scenes: for each object a code of its place and one of its words."""

from __future__ import annotations

import numpy as np
import torch

from scene_objects import ATTRIBUTES, Objects, SceneObject
from scene_pairs import ScenePairs, program_of
from strop.analysis.subject import Subject
from strop.data.record import Batch

SIDE = 4  # places along each axis
PLACES = np.linspace(-2.25, 2.25, SIDE)
SHAPES, COLORS, SIZES, MATERIALS = ATTRIBUTES.values()
CODEBOOK = SIDE**2 + len(SHAPES) * len(COLORS)


def spell(scene: Objects) -> list[int]:
    """The codes of a scene whose objects stand on the grid."""
    codes = []
    for each in scene:
        column, row = (int(np.abs(PLACES - along).argmin()) for along in (each.x, each.y))
        codes.append(column * SIDE + row)
        codes.append(SIDE**2 + SHAPES.index(each.shape) * len(COLORS) + COLORS.index(each.color))
    return codes


def spelled_pairs(count: int, most: int = 3, seed: int = 0) -> ScenePairs:
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
            objects.append(SceneObject(*words, *map(float, place)))
        scenes.append(tuple(sorted(objects, key=lambda each: each.y - each.x)))
    return ScenePairs(program_of([spell(s) for s in scenes], CODEBOOK, 2 * most), scenes)


def subject_of(tokenizer: object, pairs: ScenePairs, **options: object) -> Subject:
    """A subject that has encoded the pairs; the images are blank."""
    scenes = tuple(
        {
            "objects": [
                {
                    **{name: getattr(each, name) for name in ATTRIBUTES},
                    "3d_coords": [*each[4:], 0],
                }
                for each in scene
            ]
        }
        for scene in pairs.scenes
    )
    records = Batch(
        images=torch.zeros(len(pairs), 3, 1, 1, dtype=torch.uint8),
        names=tuple(f"scene {row}" for row in range(len(pairs))),
        indices=torch.arange(len(pairs)),
        scenes=scenes,
    )
    subject = Subject(tokenizer=tokenizer, dataset=(), data="spelled:", **options)
    subject.__dict__["_encoded"] = records, pairs.program, None
    return subject
