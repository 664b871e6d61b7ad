"""CLEVR-style scenes, sampled and rendered in batched torch: the data that needs no download."""

from strop.data.scenes.dataset import ScenesDataset
from strop.data.scenes.describe import describe, parse, read_scenes
from strop.data.scenes.masks import class_names, semantic_masks
from strop.data.scenes.render import Quality, render, truth
from strop.data.scenes.sampling import object_counts, sample_scenes
from strop.data.scenes.scene import Scenes
from strop.data.scenes.write import write_scenes

__all__ = [
    "Quality",
    "Scenes",
    "ScenesDataset",
    "class_names",
    "describe",
    "object_counts",
    "parse",
    "read_scenes",
    "render",
    "sample_scenes",
    "semantic_masks",
    "truth",
    "write_scenes",
]
