"""CLEVR-style scenes, sampled and rendered in batched torch."""

from strop.scenes.describe import describe
from strop.scenes.render import render, truth
from strop.scenes.sampling import object_counts, sample_scenes
from strop.scenes.scene import Scenes, class_names, semantic_masks

__all__ = [
    "Scenes",
    "class_names",
    "describe",
    "object_counts",
    "render",
    "sample_scenes",
    "semantic_masks",
    "truth",
]
