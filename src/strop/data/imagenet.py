"""ImageNet-1k (ILSVRC 2012), in class folders or as the flat validation set."""

from __future__ import annotations

import re
from pathlib import Path

from strop.data.filelist import FileDataset, Files
from strop.data.layout import Layout, first_file, found, load_mat, read_lines
from strop.errors import DataError, parsing
from strop.files import PathLike

_WNID = re.compile(r"n\d{8}")
_DEVKIT = ("ILSVRC2012_devkit_t12/data", "devkit/data", "data", ".")
_TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def imagenet(path: PathLike, split: str = "val") -> FileDataset:
    """ImageNet-1k's `split` (train, val); labels are the WordNet ids in order.

    Images are in `SPLIT/WNID/`. The validation set may also be flat, as it is distributed. Then its
    labels come from `ILSVRC2012_validation_ground_truth.txt` of the devkit (with `meta.mat`, read
    by SciPy), or from `LOC_val_solution.csv`.
    """
    tree = "train/WNID/ and val/, WNID being n01440764 and so on"
    layout = Layout.open(path, "ImageNet", tree)
    inside = layout.folder(split, f"Data/CLS-LOC/{split}", f"ILSVRC2012_img_{split}")
    root, folder = layout.root, layout.root / inside
    images = layout.images(inside, "folders such as n01440764 with .JPEG files")
    loose = [image for image in images if "/" not in image]
    if not loose:
        wnids = [image.split("/", 1)[0] for image in images]
        strange = next((wnid for wnid in wnids if not _WNID.fullmatch(wnid)), None)
        if strange is not None:
            raise DataError(
                f"{folder / strange} is not a WordNet id such as n01440764.",
                "For other class folders use folder:PATH?labels=folders.",
            )
    elif split == "train" or len(loose) != len(images):
        raise DataError(f"{folder / loose[0]} is not in a class folder.", f"ImageNet has {tree}.")
    else:
        known = _flat_labels(root)
        missing = next((image for image in images if Path(image).stem not in known), None)
        if missing is not None:
            raise DataError(
                f"{folder / missing} is not in the validation list.",
                "Expected ILSVRC2012_val_00000001.JPEG to ILSVRC2012_val_00050000.JPEG.",
            )
        wnids = [known[Path(image).stem] for image in images]
    # A subset must number its classes as the full set does, so the folders of the other split
    # count too.
    other = folder.with_name("val" if split == "train" else "train")
    more = {p.name for p in other.iterdir() if _WNID.fullmatch(p.name)} if other.is_dir() else set()
    names = sorted(more.union(wnids))
    position = {wnid: (i,) for i, wnid in enumerate(names)}
    items = [
        Files(image, f"{inside}/{image}", labels=position[wnid])
        for image, wnid in zip(images, wnids, strict=True)
    ]
    return FileDataset(name=f"imagenet-{split}", root=root, items=items, label_names=names)


def _flat_labels(root: Path) -> dict[str, str]:
    """The WordNet id of each validation image, by name."""
    solution = first_file(root, ["LOC_val_solution.csv"])
    if solution is not None:
        rows = [line.split(",", 1) for line in read_lines(solution)[1:]]
        return {row[0]: row[1].split()[0] for row in rows if len(row) == 2 and row[1].strip()}
    truth = first_file(root, [f"{folder}/{_TRUTH}" for folder in _DEVKIT])
    if truth is None:
        raise DataError(
            f"The flat validation set needs its labels: {root} holds {found(root)}.",
            f"Add the devkit (ILSVRC2012_devkit_t12/data/{_TRUTH}), or sort the images "
            "into WNID folders.",
        )
    wnids = _devkit_wnids(truth.with_name("meta.mat"))
    numbers = read_lines(truth)
    expected = f"{truth} does not hold class numbers from 1 to 1000"
    with parsing(DataError, expected, "Download the devkit again."):
        return {
            f"ILSVRC2012_val_{i:08d}": wnids[int(number)] for i, number in enumerate(numbers, 1)
        }


def _devkit_wnids(path: Path) -> dict[int, str]:
    """The WordNet ids of the devkit's class numbers (1 to 1000, in another order)."""
    content = load_mat(path, squeeze_me=True)
    with parsing(DataError, f"{path} holds no synsets", "It is part of ILSVRC2012_devkit_t12."):
        synsets = content["synsets"]
        pairs = zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True)
        return {int(number): str(wnid) for number, wnid in pairs}
