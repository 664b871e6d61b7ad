"""Semantic masks from instance masks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from strop.data.scenes import vocabulary as words
from strop.data.scenes.scene import Scenes

By = Literal["shape", "color"]


def class_names(by: By) -> tuple[str, ...]:
    """Names of the semantic ids: by shape and material, or by colour; 0 is the background."""
    return words.CLASSES_BY_SHAPE if by == "shape" else words.CLASSES_BY_COLOR


def object_classes(scenes: Scenes, by: By) -> Tensor:
    """(B, O) int64: the class of each object, from 1."""
    if by == "color":
        return scenes.color + 1
    return scenes.shape * len(words.MATERIALS) + scenes.material + 1


def semantic_masks(scenes: Scenes, instance: Tensor, by: By) -> Tensor:
    """The instance masks (B, H, W) as classes, (B, H, W) int64."""
    classes = torch.nn.functional.pad(object_classes(scenes, by), (1, 0))
    return classes.gather(1, instance.flatten(1)).reshape(instance.shape)
