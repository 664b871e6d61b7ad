"""A gallery: images that are encoded in the background, to look codes up in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import torch
from torch import Tensor

from strop.analysis.counterfactual import pair_erasure
from strop.data.rendered import ScenesDataset
from strop.data.samples import squares
from strop.errors import ImageError
from strop.images import fit_square, read_square
from strop.inspector.engine import Engine
from strop.inspector.image_io import thumbnail
from strop.inspector.messages import Appearance, CodePage, as_map
from strop.listing import find_images
from strop.program import Program

SCENES = 32
SCENE_SIZE = 128  # rendering larger scenes would delay the first request
MAX_FILES = 1000
MAX_APPEARANCES = 24


@dataclass(frozen=True)
class GalleryImage:
    """An image of the gallery: its name, its thumbnail and its program (a batch of one)."""

    name: str
    thumbnail: str
    program: Program


class Gallery:
    """Images of a folder, squares of the sample photographs, or rendered scenes.

    They are encoded in the background.
    """

    def __init__(self, engine: Engine, folder: Path | None = None) -> None:
        self._engine = engine
        self.images: list[GalleryImage] = []
        if folder is None and engine.sees_scenes:
            self.total, images = SCENES, self._scenes()
        elif folder is None:
            samples = squares(engine.config.image_size)
            self.total, images = len(samples), iter(samples.items())
        else:
            files = find_images([str(folder)])[:MAX_FILES]
            self.total, images = len(files), self._files(files)
        self._closed = Event()
        self._filling = Thread(target=self._fill, args=(images,), daemon=True)
        self._filling.start()

    def wait(self) -> None:
        """Return when all images are encoded."""
        self._filling.join()

    def close(self, timeout: float | None = None) -> None:
        """Stop encoding and wait for the current image: torch aborts if Python ends meanwhile."""
        self._closed.set()
        self._filling.join(timeout)

    def find(self, code: int) -> CodePage:
        """How often a code is active in the gallery, and its first appearances."""
        found = [
            (image, position)
            for image in list(self.images)
            for position in ((image.program.codes == code) & image.program.active)[0].nonzero()
        ]
        shown = found[:MAX_APPEARANCES]
        page = CodePage(
            code=code, count=len(found), encoded=len(self.images), total=self.total, appearances=[]
        )
        if not shown:
            return page
        program = Program.cat([image.program for image, _ in shown])
        # A pair of a token and itself is the erasure of that token.
        pairs = torch.tensor([(row, int(k), int(k)) for row, (_, k) in enumerate(shown)])
        parts = pair_erasure(self._engine.as_tokenizer, program, pairs)
        side = self._engine.config.grid
        maps = torch.cat([part for _, part in parts]).unflatten(1, (side, side))
        page.appearances += [
            Appearance(
                name=image.name,
                thumbnail=image.thumbnail,
                position=int(position),
                length=int(image.program.lengths),
                map=as_map(values),
            )
            for (image, position), values in zip(shown, maps, strict=True)
        ]
        return page

    def _fill(self, images: Iterator[tuple[str, Tensor]]) -> None:
        for name, square in images:
            if self._closed.is_set():
                return
            program = self._engine.analyse(square).program
            self.images.append(GalleryImage(name, thumbnail(square), program))

    def _scenes(self) -> Iterator[tuple[str, Tensor]]:
        size, fit = self._engine.config.image_size, self._engine.config.fit
        scenes = ScenesDataset(SCENES, size=min(SCENE_SIZE, size))
        for index in range(SCENES):
            yield f"scene {index}", fit_square(scenes.images([index])[0], size, fit)

    def _files(self, files: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        size, fit = self._engine.config.image_size, self._engine.config.fit
        for file in files:
            try:
                square = read_square(file, size, fit)
            except ImageError:
                self.total -= 1  # skip unreadable files
                continue
            # A file name may hold any bytes, but JSON is UTF-8.
            yield os.fsencode(Path(file).name).decode(errors="replace"), square
