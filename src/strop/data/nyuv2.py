"""The labelled set of NYU Depth v2, with depth in metres and 40 classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strop.data.decode import labels_of, look_up, make_table
from strop.data.filelist import FileDataset, Files
from strop.data.layout import Layout, choose, first_file, found, load_mat, read_lines, split_names
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


def nyuv2(path: PathLike, split: str = "test") -> FileDataset | NyuMat:
    """NYU Depth v2's `split` (train, 795 images; test, 654).

    Either the official `nyu_depth_v2_labeled.mat` (or its folder, with `splits.mat` or `train.txt`
    and `test.txt`), or a folder with `rgb/`, `depth_mm/` (16 bit,
    millimetres), `labels40/` (0 to 38; the rest void) and `train.txt`, `test.txt`.
    """
    choose(split, ("train", "test"), "NYUv2 split")
    where = expand(path)
    tree = f"{MAT} and splits.mat, or rgb/, depth_mm/, labels40/, train.txt and test.txt"
    if where.is_file() and where.suffix == ".mat":
        return NyuMat(where, split)
    if (where / MAT).is_file():
        return NyuMat(where / MAT, split)
    layout = Layout.open(where, "NYUv2", tree)
    images, depths = layout.folder("rgb"), layout.folder("depth_mm", "depth")
    if not (where / f"{split}.txt").is_file():
        raise DataError(
            f"NYUv2's list {where / f'{split}.txt'} is missing.", f"NYUv2 is a folder with {tree}."
        )
    names = layout.require(read_lines(where / f"{split}.txt"), "", f"image names in {split}.txt")
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
    """Records of `nyu_depth_v2_labeled.mat`, an HDF5 file of 2.8 GB.

    Its 894 labels are mapped to 40 classes if `classMapping40.mat` is in the same folder. Otherwise
    records have no mask.
    """

    def __init__(self, path: Path, split: str) -> None:
        self.name = f"nyuv2-{split}"
        self._path = path
        self._indices = _split_indices(path.parent, split)
        mapping = first_file(path.parent, ["classMapping40.mat"])
        self._table = None if mapping is None else _forty(mapping)
        self.classes = () if mapping is None else CLASSES
        self.label_names = self.classes
        with _open_mat(path) as content:
            for field in ("images", "depths", "labels"):
                if field not in content:
                    raise DataError(
                        f"{path} has no {field!r} (it has {', '.join(content)}).",
                        f"Expected the labelled set, {MAT}.",
                    )
            count = len(content["images"])
        if self._indices and max(self._indices) >= count:
            raise DataError(
                f"The {split} split runs to image {max(self._indices) + 1}, {path} has {count}.",
                "Use the split of this file.",
            )

    def sources(self) -> Iterator[Path | str]:
        """The file, and which of its records are of the split."""
        yield self._path
        yield str(self._indices)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Record:
        number = self._indices[index]
        name = f"{number:05d}"
        where = f"Image {number + 1} of {self._path} cannot be read"
        damaged = "The file is truncated or damaged; download it again."
        # Opened for each record: a forked worker would share the file position of its parent.
        with _open_mat(self._path) as content, parsing(DataError, where, damaged):
            # MATLAB stores columns first: (N, 3, W, H) and (N, W, H).
            image = content["images"][number].transpose(0, 2, 1)
            depth = content["depths"][number].T
            ids = None if self._table is None else content["labels"][number].T
        semantic = labels = None
        if ids is not None and self._table is not None:
            semantic = look_up(ids, self._table, f"{self._path}, image {number + 1}")
            labels = labels_of(semantic, CLASSES, CLASSES)
        return Record(
            image=torch.from_numpy(np.ascontiguousarray(image, dtype=np.uint8)),
            name=name,
            semantic=semantic,
            labels=labels,
            depth=torch.from_numpy(np.ascontiguousarray(depth, dtype=np.float32)),
        )


def _split_indices(folder: Path, split: str) -> list[int]:
    """The images of a split, counted from 0."""
    listed = first_file(folder, [f"{split}.txt"])
    if listed is not None:
        lines = read_lines(listed)
        if not all(line.isdecimal() and len(line) < 10 for line in lines):
            raise DataError(
                f"{listed} holds lines that are not numbers.", "Expected image numbers from 0."
            )
        return [int(line) for line in lines]
    source = folder / "splits.mat"
    if not source.is_file():
        raise DataError(
            f"The split {split} is not known: {folder} holds {found(folder)}.",
            "Put the official splits.mat there, or train.txt and test.txt with numbers from 0.",
        )
    content = load_mat(source)
    with parsing(DataError, f"{source} has no {split}Ndxs", "Expected the official splits.mat."):
        return [int(number) - 1 for number in np.ravel(content[f"{split}Ndxs"])]


def _forty(path: Path) -> np.ndarray:
    """The table from the 894 labels (0 is unlabelled) to the 40 classes."""
    content = load_mat(path)
    if "mapClass" not in content:
        raise DataError(f"{path} has no mapClass.", "Expected Gupta et al.'s classMapping40.mat.")
    forty = np.ravel(content["mapClass"]).astype(np.int64)
    return np.concatenate([[VOID], forty - 1])


def _open_mat(path: Path) -> Any:
    h5py = require("h5py", DataError)
    whole = f"The file is truncated or not {MAT}, which has 2.8 GB."
    with parsing(DataError, f"{path} cannot be opened as HDF5", whole):
        return h5py.File(path, "r")
