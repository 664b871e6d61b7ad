"""Images encoded before anyone asks, to look a code up in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import torch
from torch import Tensor

from strop.data.layout import list_files
from strop.data.rendered import ScenesDataset
from strop.errors import DataError, ImageError
from strop.images import fit_square, read_square
from strop.inspector.engine import Engine
from strop.inspector.pictures import thumbnail
from strop.program import Program
from strop.structure.counterfactual import pair_erasure

SCENES = 32
SCENE_SIZE = 128  # larger ones would keep the processor from the first visitor
LARGEST = 1000
SHOWN = 24


@dataclass(frozen=True)
class Picture:
    """An image of the gallery: what it is called, how it looks, its program (a batch of one)."""

    name: str
    thumbnail: str
    program: Program


@dataclass(frozen=True)
class Place:
    """A code at work: in this picture, at this position, holding up `map` (h, w)."""

    picture: Picture
    position: int
    map: Tensor


class Gallery:
    """The pictures of a folder, or rendered scenes, encoded in the background."""

    def __init__(self, engine: Engine, folder: Path | None = None) -> None:
        self._engine = engine
        self.pictures: list[Picture] = []
        if folder is None:
            self.total = SCENES
            images = self._scenes()
        else:
            files = list_files(folder)[:LARGEST] if folder.is_dir() else []
            if not files:
                raise DataError(
                    f"The gallery {folder} holds no images.", "Name a folder with some."
                )
            self.total = len(files)
            images = self._files(folder, files)
        self._closed = Event()
        self._filling = Thread(target=self._fill, args=(images,), daemon=True)
        self._filling.start()

    def wait(self) -> None:
        """Return when all pictures are encoded."""
        self._filling.join()

    def close(self) -> None:
        """Encode no more. An interpreter that ends while a thread is inside torch is aborted."""
        self._closed.set()
        self._filling.join()

    def find(self, code: int) -> tuple[int, list[Place]]:
        """How often a code is active in the gallery, and the first places where it is."""
        found = [
            (picture, position)
            for picture in list(self.pictures)
            for position in _positions(picture.program, code)
        ]
        shown = found[:SHOWN]
        if not shown:
            return 0, []
        program = Program.cat([picture.program for picture, _ in shown])
        # A pair of a token and itself is that token alone.
        pairs = torch.tensor([(row, at, at) for row, (_, at) in enumerate(shown)])
        maps = torch.cat(
            [part for _, part in pair_erasure(self._engine.as_tokenizer, program, pairs)]
        )
        side = self._engine.config.grid
        return len(found), [
            Place(picture, position, each.view(side, side))
            for (picture, position), each in zip(shown, maps, strict=True)
        ]

    def _fill(self, images: Iterator[tuple[str, Tensor]]) -> None:
        for name, image in images:
            if self._closed.is_set():
                return
            square = fit_square(image, self._engine.config.image_size, self._engine.config.fit)
            program = self._engine.encode(square).program
            self.pictures.append(Picture(name, thumbnail(square), program))

    def _scenes(self) -> Iterator[tuple[str, Tensor]]:
        scenes = ScenesDataset(SCENES, size=min(SCENE_SIZE, self._engine.config.image_size))
        for number in range(SCENES):
            yield f"scene {number}", scenes.images([number])[0]

    def _files(self, folder: Path, files: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        config = self._engine.config
        for file in files:
            try:
                yield (
                    Path(file).name,
                    read_square(folder / file, config.image_size, config.fit),
                )
            except ImageError:
                self.total -= 1  # a broken file is no picture


def _positions(program: Program, code: int) -> list[int]:
    return ((program.codes == code) & program.active)[0].nonzero().flatten().tolist()
