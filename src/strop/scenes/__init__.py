"""CLEVR-style scenes, sampled and rendered in batched torch: the data that needs no download."""

from strop.scenes.describe import describe, parse, read_scenes
from strop.scenes.render import Quality, render, truth
from strop.scenes.sampling import object_counts, sample_scenes
from strop.scenes.scene import Scenes, class_names, semantic_masks

__all__ = [
    "Quality",
    "Scenes",
    "class_names",
    "describe",
    "object_counts",
    "parse",
    "read_scenes",
    "render",
    "sample_scenes",
    "semantic_masks",
    "truth",
]
