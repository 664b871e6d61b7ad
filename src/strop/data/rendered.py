"""Rendered scenes as a dataset, on the fly or written in the layout of CLEVR."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from strop.config import in_range
from strop.data.record import Record
from strop.errors import DataError, parsing
from strop.files import PathLike, atomic_path, exclusive, read_json, write_json, write_text
from strop.pool import Pool, default_context
from strop.progress import Progress, no_progress
from strop.scenes.describe import describe, image_name
from strop.scenes.render import RENDERER_VERSION, image_size, render, truth
from strop.scenes.sampling import object_counts, sample_scenes
from strop.scenes.scene import By, Scenes, class_names, object_classes, semantic_masks

MAX_SCENES = 10**9
MAX_START = 2**62
MAX_SIZE = 2048
_BLOCK = 8192
"""Scenes sampled at once on a GPU."""
_FORMAT = ("scenes", 1)
_INFO = {"version": "1.0", "license": "Apache-2.0", "source": "strop.scenes"}


class ScenesDataset:
    """`n` scenes of `seed`, rendered on the fly; a `strop.data.record.Dataset`.

    Record `i` is scene `start + i` of `seed`. `by` selects the classes of the semantic mask and of
    the labels: "shape" (shape and material) or "color".
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
        in_range(n, "scenes: n", 1, MAX_SCENES, DataError)
        in_range(start, "scenes: start", 0, MAX_START, DataError)
        for side in image_size(size):
            in_range(side, "scenes: size", 1, MAX_SIZE, DataError)
        if by not in get_args(By):
            raise DataError(f"scenes: by is {by!r}.", "Expected 'shape' or 'color'.")
        self.n, self.seed, self.size, self.by = n, seed, size, by
        self.start, self.split = start, split
        self.name = f"scenes:?n={n}&seed={seed}"
        self.classes = class_names(by)
        self.label_names = self.classes[1:]

    def __len__(self) -> int:
        return self.n

    def sources(self) -> Iterator[str]:
        """The parameters that determine every record."""
        yield f"seed={self.seed} start={self.start} size={self.size} by={self.by} {self.split}"

    def names(self) -> list[str]:
        """The name of each record."""
        return [self._name(index) for index in range(self.n)]

    def __getitem__(self, index: int) -> Record:
        return self.records([range(self.n)[index]])[0]

    def scenes(self, indices: list[int] | range, device: torch.device | str = "cpu") -> Scenes:
        """The scenes at `indices` as tensors."""
        return sample_scenes(self.seed, [self.start + i for i in indices], device)

    def object_counts(self) -> Tensor:
        """(n,) int64: number of objects in each scene, without placing them."""
        return object_counts(self.seed, range(self.start, self.start + self.n))

    def images(self, indices: list[int] | range, device: torch.device | str = "cpu") -> Tensor:
        """Images at `indices`: (B, 3, H, W) uint8 on `device`."""
        return render(self.scenes(indices, device), self.size)

    def records(
        self, indices: list[int] | range, device: torch.device | str = "cpu"
    ) -> list[Record]:
        """Records at `indices`, rendered together; their tensors are on `device`."""
        scenes = self.scenes(indices, device)
        images = render(scenes, self.size)
        instance, depth = truth(scenes, self.size)
        semantic = semantic_masks(scenes, instance, self.by)
        held = torch.zeros(len(scenes), len(self.classes), dtype=torch.bool, device=images.device)
        classes = torch.where(scenes.present, object_classes(scenes, self.by), 0)
        held.scatter_(1, classes, torch.ones_like(classes, dtype=torch.bool))
        numbers = [self.start + index for index in indices]
        return [
            Record(
                image=images[row],
                name=self._name(index),
                semantic=semantic[row],
                instance=instance[row],
                labels=held[row, 1:],
                depth=depth[row],
                scene=scene,
            )
            for row, (index, scene) in enumerate(
                zip(indices, describe(scenes, self.size, self.split, numbers), strict=True)
            )
        ]

    def _name(self, index: int) -> str:
        return Path(image_name(self.split, self.start + index)).stem

    def batches(self, batch_size: int, device: torch.device | str = "cpu") -> Iterator[Tensor]:
        """All images in order, (batch_size, 3, H, W) uint8 on `device`; the last batch is shorter.

        Scenes are sampled in large blocks, which is efficient on a GPU.
        """
        block = max(batch_size, (_BLOCK // batch_size) * batch_size)
        for begin in range(0, self.n, block):
            scenes = self.scenes(range(begin, min(begin + block, self.n)), device)
            for row in range(0, len(scenes), batch_size):
                yield render(scenes[row : row + batch_size], self.size)


def scenes(
    n: int = 10_000, seed: int = 0, size: int = 128, by: By = "shape", start: int = 0
) -> ScenesDataset:
    """Rendered scenes by the parameters of a spec."""
    return ScenesDataset(n, seed=seed, size=size, by=by, start=start)


def write_scenes(
    out: PathLike,
    n: int = 10_000,
    size: int | tuple[int, int] = 128,
    seed: int = 0,
    split: str = "train",
    *,
    start: int = 0,
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    workers: int = 0,
    progress: Progress = no_progress,
) -> Path:
    """Render `n` scenes into the folder `out` and return the path of the scenes file.

    images/<split>/CLEVR_<split>_000000.png   RGB
    masks/<split>/CLEVR_<split>_000000.png    8-bit instance ids, 0 for the background
    depth/<split>/CLEVR_<split>_000000.png    16-bit millimetres, 0 for the backdrop
    scenes/CLEVR_<split>_scenes.json          all descriptions, written last
    scenes/<split>/CLEVR_<split>_000000.json  description of one scene

    `workers` single-threaded processes share the work, which is faster on CPUs than threads. A
    second call resumes an interrupted one: a scene is complete if its own description exists. A
    folder written with another seed, size, start or renderer is refused. The scenes file lists all
    scenes in the folder, also those of an earlier, longer run.
    """
    folder = Path(out)
    height, width = image_size(size)
    dataset = ScenesDataset(n, seed=seed, size=size, start=start, split=split)
    settings = {"split": split, "seed": seed, "start": start}
    settings |= {"size": [height, width], "renderer": RENDERER_VERSION}
    job = partial(_write, folder=folder, dataset=dataset, device=device)
    with exclusive(folder / "scenes" / split):
        _claim(folder, split, settings)
        parts = (_part(folder, "scenes", split, start + i, ".json") for i in range(n))
        todo = [i for i, part in enumerate(parts) if not part.exists()]
        chunks = [todo[first : first + batch_size] for first in range(0, len(todo), batch_size)]
        done = n - len(todo)
        progress("rendering", done, n)
        with Pool(job, workers, default_context(device)) as pool:
            for written in pool.map(chunks, 2 * workers):
                done += written
                progress("rendering", done, n)
        return _collect(folder, split, {**_INFO, **settings})


def _part(folder: Path, kind: str, split: str, number: int, suffix: str = ".png") -> Path:
    return (folder / kind / split / image_name(split, number)).with_suffix(suffix)


def _claim(folder: Path, split: str, settings: dict[str, Any]) -> None:
    """Raise `DataError` if the folder holds other scenes; mark an empty folder."""
    marker = folder / "scenes" / split / "info.json"
    if marker.exists():
        held = read_json(marker, *_FORMAT)
        for name, value in settings.items():
            if held.get(name) != value:
                raise DataError(
                    f"{folder} holds scenes with {name} {held.get(name)}, not {value}.",
                    "Choose another folder or split, or remove this one.",
                )
    else:
        write_json(marker, *_FORMAT, settings)


def _write(
    indices: list[int], *, folder: Path, dataset: ScenesDataset, device: torch.device | str
) -> int:
    """Write records. A description is written last and marks its record as complete."""
    split = dataset.split
    for record in dataset.records(indices, device):
        assert record.scene is not None
        assert record.instance is not None
        assert record.depth is not None
        number = int(record.scene["image_index"])
        millimetres = (record.depth * 1000.0).round().clamp(0, 65535).cpu().numpy()
        for kind, pixels in (
            ("images", record.image.permute(1, 2, 0).cpu().numpy()),
            ("masks", record.instance.to(torch.uint8).cpu().numpy()),
            ("depth", millimetres.astype(np.uint16)),
        ):
            _save(pixels, _part(folder, kind, split, number))
        write_text(_part(folder, "scenes", split, number, ".json"), json.dumps(record.scene) + "\n")
    return len(indices)


def _save(pixels: np.ndarray[Any, Any], path: Path) -> None:
    with atomic_path(path) as temporary:
        Image.fromarray(np.ascontiguousarray(pixels)).save(temporary, format="PNG")


def _collect(folder: Path, split: str, info: dict[str, Any]) -> Path:
    """Collect all descriptions in the folder into one scenes file."""
    paths = {
        int(number): path
        for path in (folder / "scenes" / split).glob("*.json")
        if (number := path.stem.rpartition("_")[2]).isdecimal()
    }
    scenes = []
    for _, path in sorted(paths.items()):
        again = "Remove it; its scene is then rendered again."
        with parsing(DataError, f"{path} is not valid JSON", again):
            scenes.append(json.loads(path.read_text(encoding="utf-8")))
    path = folder / "scenes" / f"CLEVR_{split}_scenes.json"
    write_text(path, json.dumps({"info": info, "scenes": scenes}) + "\n")
    return path
