"""A batch of scenes as tensors of fixed shape, and the semantic classes of their objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from strop.scenes import vocabulary as words

By = Literal["shape", "color"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenes:
    """`B` scenes of up to `O = 10` objects. Slots where `present` is False are undefined.

    shape     (B, O) int64, index into `vocabulary.SHAPES`
    size      (B, O) int64, index into `vocabulary.SIZES`
    material  (B, O) int64, index into `vocabulary.MATERIALS`
    color     (B, O) int64, index into `vocabulary.COLORS`
    position  (B, O, 2) float, x and y of the centre in metres; objects stand on the ground
    rotation  (B, O) float, about the vertical, in radians, as Blender took it. It is the number in
              CLEVR's `rotation`, whose generator meant degrees
    present   (B, O) bool
    camera    (B, 3) float, position of the camera
    lights    (B, 3, 3) float, positions of the key, fill and back light
    """

    shape: Tensor
    size: Tensor
    material: Tensor
    color: Tensor
    position: Tensor
    rotation: Tensor
    present: Tensor
    camera: Tensor
    lights: Tensor

    def __len__(self) -> int:
        return self.shape.shape[0]

    def __getitem__(self, rows: slice | Tensor | Sequence[int]) -> Scenes:
        """The scenes at `rows`, as a batch."""
        index = rows if isinstance(rows, slice | Tensor) else torch.as_tensor(list(rows))
        return Scenes(**{name: value[index] for name, value in self._items()})

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Scenes:
        """The scenes on `device`; floating-point parts are converted to `dtype` if it is given."""
        return Scenes(
            **{
                name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
                for name, value in self._items()
            }
        )

    @property
    def radius(self) -> Tensor:
        """(B, O) half extent of each object, in metres."""
        return torch.where(self.size == 0, words.RADIUS[0], words.RADIUS[1]).to(self.position.dtype)

    @property
    def centre(self) -> Tensor:
        """(B, O, 3) centre of each object."""
        return torch.cat([self.position, self.radius.unsqueeze(-1)], dim=-1)

    def parts(self) -> list[Tensor]:
        """All tensors, in the order of the fields."""
        return [value for _, value in self._items()]

    def _items(self) -> list[tuple[str, Tensor]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


def class_names(by: By) -> tuple[str, ...]:
    """Names of the semantic ids, by shape and material or by colour; 0 is the background."""
    return words.CLASSES_BY_SHAPE if by == "shape" else words.CLASSES_BY_COLOR


def object_classes(scenes: Scenes, by: By) -> Tensor:
    """(B, O) int64: the class of each object, starting at 1."""
    if by == "color":
        return scenes.color + 1
    return scenes.shape * len(words.MATERIALS) + scenes.material + 1


def semantic_masks(scenes: Scenes, instance: Tensor, by: By) -> Tensor:
    """Convert instance masks (B, H, W) to semantic masks (B, H, W) int64."""
    classes = torch.nn.functional.pad(object_classes(scenes, by), (1, 0))
    return classes.gather(1, instance.flatten(1)).reshape(instance.shape)
