"""Rendered scenes as a dataset: nothing on disk, every record made when asked for."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from strop.data.record import Record
from strop.data.scenes.describe import describe, image_name
from strop.data.scenes.masks import By, class_names, object_classes, semantic_masks
from strop.data.scenes.render import render, truth
from strop.data.scenes.sampling import object_counts, sample_scenes
from strop.data.scenes.scene import Scenes
from strop.errors import DataError

_BLOCK = 2048
"""Scenes sampled ahead at once on a GPU."""


class ScenesDataset:
    """`n` scenes of `seed`, rendered on the fly; a `strop.data.record.Dataset`.

    Record `i` is scene `start + i` and depends on nothing else. `by` chooses the classes of the
    semantic mask and of the labels: "shape" (shape and material) or "color".
    """

    def __init__(
        self,
        n: int = 10_000,
        *,
        seed: int = 0,
        size: int | tuple[int, int] = 128,
        by: By = "shape",
        start: int = 0,
        split: str = "new",
    ) -> None:
        if n < 1 or start < 0:
            raise DataError(
                f"scenes: n is {n} and start is {start}.", "n is at least 1 and start at least 0."
            )
        if by not in ("shape", "color"):
            raise DataError(f"scenes: by is {by!r}.", "Expected 'shape' or 'color'.")
        if min(size if isinstance(size, tuple) else (size,)) < 1:
            raise DataError(f"scenes: size is {size}.", "Expected at least one pixel.")
        self.n, self.seed, self.size, self.by = n, seed, size, by
        self.start, self.split = start, split
        self.name = f"scenes:?n={n}&seed={seed}"
        self.classes = class_names(by)
        self.label_names = self.classes[1:]

    def __len__(self) -> int:
        return self.n

    def sources(self) -> Iterator[str]:
        """The parameters that fix every record."""
        yield f"seed={self.seed} start={self.start} size={self.size} by={self.by} {self.split}"

    def __getitem__(self, index: int) -> Record:
        if not -self.n <= index < self.n:
            raise IndexError(f"scene {index} of {self.n}")
        return self.records([index % self.n])[0]

    def scenes(self, indices: list[int] | range, device: torch.device | str = "cpu") -> Scenes:
        """The scenes at `indices` as tensors."""
        return sample_scenes(self.seed, [self.start + i for i in indices], device)

    def object_counts(self) -> Tensor:
        """(n,) int64: objects in each scene, without making any."""
        return object_counts(self.seed, range(self.start, self.start + self.n))

    def images(self, indices: list[int] | range, device: torch.device | str = "cpu") -> Tensor:
        """Images at `indices`: (B, 3, H, W) uint8 on `device`."""
        return render(self.scenes(indices, device), self.size)

    def records(
        self, indices: list[int] | range, device: torch.device | str = "cpu"
    ) -> list[Record]:
        """Whole records at `indices`, rendered together; their tensors are on `device`."""
        scenes = self.scenes(indices, device)
        images = render(scenes, self.size)
        instance, depth = truth(scenes, self.size)
        semantic = semantic_masks(scenes, instance, self.by)
        held = torch.zeros(len(scenes), len(self.classes), dtype=torch.bool, device=images.device)
        classes = torch.where(scenes.present, object_classes(scenes, self.by), 0)
        held.scatter_(1, classes, torch.ones_like(classes, dtype=torch.bool))
        records = []
        for row, (index, scene) in enumerate(
            zip(indices, describe(scenes, self.size, self.split), strict=True)
        ):
            number = self.start + index
            scene |= {
                "image_index": number,
                "image_filename": image_name(self.split, number),
            }
            records.append(
                Record(
                    image=images[row],
                    name=f"CLEVR_{self.split}_{number:06d}",
                    semantic=semantic[row],
                    instance=instance[row],
                    labels=held[row, 1:],
                    depth=depth[row],
                    scene=scene,
                )
            )
        return records

    def batches(
        self,
        batch_size: int,
        device: torch.device | str = "cpu",
        first: int = 0,
        drop_last: bool = True,
    ) -> Iterator[Tensor]:
        """Images in order from record `first`, (batch_size, 3, H, W) uint8 on `device`.

        Scenes are sampled a block ahead, so that a GPU is asked seldom and with much at once.
        """
        block = max(batch_size, (_BLOCK // batch_size) * batch_size)
        for begin in range(first, self.n, block):
            scenes = self.scenes(range(begin, min(begin + block, self.n)), device)
            for row in range(0, len(scenes), batch_size):
                part = scenes[row : row + batch_size]
                if len(part) < batch_size and drop_last:
                    return
                yield render(part, self.size)
