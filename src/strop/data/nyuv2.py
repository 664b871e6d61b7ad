"""The labelled set of NYU Depth v2, with depth in metres and 40 classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from strop.data.decode import make_table
from strop.data.filelist import FileDataset, Files
from strop.data.layout import Layout, found, load_mat, split_names
from strop.data.record import VOID, Record
from strop.errors import DataError, parsing
from strop.files import PathLike
from strop.listing import expand, list_files
from strop.optional import require

CLASSES = split_names("""
wall; floor; cabinet; bed; chair; sofa; table; door; window; bookshelf; picture; counter; blinds;
desk; shelves; curtain; dresser; pillow; mirror; floor mat; clothes; ceiling; books; refrigerator;
television; paper; towel; shower curtain; box; whiteboard; person; night stand; toilet; sink; lamp;
bathtub; bag; other structure; other furniture; other prop
""")
MAT = "nyu_depth_v2_labeled.mat"

# In the folder layout, 39 is both "other prop" and unlabelled, so it is void.
_FOLDER_TABLE = make_table({**dict.fromkeys(range(256), VOID), **{i: i for i in range(39)}})


def nyuv2(path: PathLike, split: Literal["train", "test"] = "test") -> FileDataset | NyuMat:
    """NYU Depth v2's `split` (train, 795 images; test, 654).

    Either the official `nyu_depth_v2_labeled.mat` with `splits.mat` in one folder, or a folder with
    `rgb/`, `depth_mm/` (16 bit, millimetres), `labels40/` (0 to 38; the rest void) and `train.txt`,
    `test.txt`.
    """
    where = expand(path)
    tree = f"{MAT} and splits.mat, or rgb/, depth_mm/, labels40/, train.txt and test.txt"
    if where.name == MAT or (where / MAT).is_file():
        return NyuMat(where if where.name == MAT else where / MAT, split)
    layout = Layout.open(where, "NYUv2", tree)
    images, depths = layout.folder("rgb"), layout.folder("depth_mm", "depth")
    names = layout.lines(f"{split}.txt")
    files = {Path(image).stem: image for image in list_files(where / images)}
    masks = (where / "labels40").is_dir()
    items = [
        Files(
            name,
            f"{images}/{files.get(name, name + '.jpg')}",
            semantic=f"labels40/{name}.png" if masks else None,
            depth=f"{depths}/{name}.png",
        )
        for name in names
    ]
    return FileDataset(
        name=f"nyuv2-{split}",
        root=where,
        items=items,
        classes=CLASSES if masks else (),
        table=_FOLDER_TABLE,
    )


class NyuMat:
    """Images and depth of `nyu_depth_v2_labeled.mat`, an HDF5 file of 2.8 GB."""

    classes: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()

    def __init__(self, path: Path, split: str) -> None:
        self.name = f"nyuv2-{split}"
        self._path = path
        splits = path.parent / "splits.mat"
        if not splits.is_file():
            raise DataError(
                f"The split {split} is not known: {path.parent} holds {found(path.parent)}.",
                "Put the official splits.mat there.",
            )
        numbers = load_mat(splits)
        with parsing(DataError, f"{splits} has no {split}Ndxs", "Download it again."):
            self._indices = [int(number) - 1 for number in np.ravel(numbers[f"{split}Ndxs"])]
        self._read(self._indices[-1])

    def sources(self) -> Iterator[Path | str]:
        """The file, and which of its records are of the split."""
        yield self._path
        yield str(self._indices)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Record:
        number = self._indices[index]
        image, depth = self._read(number)
        # MATLAB stores columns first: (3, W, H) and (W, H).
        return Record(
            image=torch.from_numpy(image).transpose(1, 2).contiguous(),
            name=f"{number:05d}",
            depth=torch.from_numpy(depth).T.contiguous(),
        )

    def _read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        h5py = require("h5py", DataError)
        where = f"Image {number + 1} of {self._path} cannot be read"
        damaged = f"The file is truncated or not {MAT}, which has 2.8 GB; download it again."
        # Opened for each record: a forked worker would share the file position of its parent.
        with parsing(DataError, where, damaged), h5py.File(self._path, "r") as content:
            image = np.asarray(content["images"][number], np.uint8)
            return image, np.asarray(content["depths"][number], np.float32)
