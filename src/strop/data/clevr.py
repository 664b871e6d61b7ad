"""CLEVR v1.0: images and scenes, with masks and depth if a renderer wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from strop.data.filelist import FileDataset, Files
from strop.data.layout import Layout, load_json
from strop.data.record import Record
from strop.errors import DataError
from strop.files import PathLike
from strop.listing import list_files
from strop.scenes.describe import check_scene, field
from strop.scenes.scene import By, class_names


class ClevrDataset(FileDataset):
    """Records of CLEVR, with semantic masks and labels derived from the scene.

    A scene is checked when its record is read, so a bad scene costs one record.
    """

    def __init__(self, *, source: Path, by: By, **arguments: Any) -> None:
        classes = class_names(by)
        super().__init__(classes=classes, label_names=classes[1:], **arguments)
        self._source = str(source)
        self._by = by

    def __getitem__(self, index: int) -> Record:
        record = super().__getitem__(index)
        if record.scene is None:
            return record
        source = f"{self._source} ({record.name})"
        check_scene(record.scene, source)
        objects = record.scene["objects"]
        kinds = torch.tensor([0, *(self._class(entry, source) for entry in objects)])
        labels = torch.zeros(len(self.label_names), dtype=torch.bool)
        labels[kinds[1:] - 1] = True
        semantic = None
        if record.instance is not None:
            if int(record.instance.max()) > len(objects):
                raise DataError(
                    f"The mask of {record.name} has object {int(record.instance.max())}, "
                    f"but its scene in {self._source} has {len(objects)}.",
                    "Ids in a mask are 0 for background, then 1, 2, ... in the order of the scene.",
                )
            semantic = kinds[record.instance]
        return replace(record, labels=labels, semantic=semantic)

    def sources(self) -> Iterator[Path | str]:
        """The files of all records, and that of their scenes."""
        yield Path(self._source)
        yield from super().sources()

    def _class(self, entry: Mapping[str, Any], source: str) -> int:
        name = entry["color"] if self._by == "color" else f"{entry['material']} {entry['shape']}"
        if name not in self.label_names:
            raise DataError(
                f"The scene in {source} has a {name!r}.",
                f"CLEVR has {', '.join(self.label_names)}.",
            )
        return self.classes.index(name)


def clevr(path: PathLike, split: str = "val", by: By = "shape") -> ClevrDataset:
    """CLEVR v1.0's `split` (train, val, test; test has no scenes).

    Instance masks are read from `masks/SPLIT` and depth (16 bit, millimetres) from `depth/SPLIT` if
    these folders exist. `by` selects the classes of labels and semantic masks: `shape` (shape and
    material) or `color`.
    """
    tree = "images/SPLIT/ and scenes/CLEVR_SPLIT_scenes.json"
    layout = Layout.open(path, "CLEVR", tree, "CLEVR_v1.0")
    root, folder = layout.root, layout.folder(f"images/{split}")
    images = layout.images(folder, f"CLEVR_{split}_000000.png and so on")
    source = root / "scenes" / f"CLEVR_{split}_scenes.json"
    scenes: dict[str, Mapping[str, Any]] = {}
    if source.is_file():
        listed = field(load_json(source, ["scenes"]), "scenes", list, str(source))
        for number, scene in enumerate(listed):
            scenes[field(scene, "image_filename", str, f"{source}, scene {number}")] = scene
    elif split != "test":
        raise DataError(f"The scenes {source} are missing.", f"CLEVR has {tree}.")
    masks = frozenset(list_files(root / "masks" / split))
    depths = frozenset(list_files(root / "depth" / split))

    def beside(kind: str, names: frozenset[str], image: str) -> str | None:
        png = Path(image).with_suffix(".png").name
        return f"{kind}/{split}/{png}" if png in names else None

    items = [
        Files(
            Path(image).stem,
            f"{folder}/{image}",
            instance=beside("masks", masks, image),
            depth=beside("depth", depths, image),
            # An empty scene represents a missing one, which the check then reports.
            scene=scenes.get(image, {}) if scenes else None,
        )
        for image in images
    ]
    return ClevrDataset(name=f"clevr-{split}", root=root, items=items, source=source, by=by)
