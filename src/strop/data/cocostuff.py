"""COCO-Stuff with the 27 classes of PiCIE and STEGO: 12 thing groups and 15 stuff groups."""

from __future__ import annotations

from pathlib import Path

from strop.data.decode import make_table
from strop.data.filelist import FileDataset, Files
from strop.data.layout import Layout, read_lines
from strop.data.record import VOID
from strop.errors import DataError
from strop.files import PathLike

# The fine ids of the maps (category ids of COCO-Stuff minus one) in each group, in the order of
# the class numbers of PiCIE.
_GROUPS = {
    "electronic": "71-76",
    "appliance": "77-82",
    "food": "51-60",
    "furniture": "61-70",
    "indoor": "83-90",
    "kitchen": "43-50",
    "accessory": "25-32",
    "animal": "15-24",
    "outdoor": "9-14",
    "person": "0",
    "sports": "33-42",
    "vehicle": "1-8",
    "ceiling": "101-102",
    "floor": "100 113-117",
    "food-stuff": "120-121 152 169",
    "furniture-stuff": "97 106-107 109 111 122 129 132 155 160 164",
    "raw-material": "99 131 138 142",
    "textile": "91-92 103-104 108 130 136 140 151 166-167",
    "wall": "170-176",
    "window": "179-180",
    "building": "94-95 127 150 157 165",
    "ground": "110 124-125 135 139 143-144 146 148 153 158",
    "plant": "93 96 118 123 128 133 141 162 168",
    "sky": "105 156",
    "solid": "126 134 149 159 161 181",
    "structural": "98 112 137 145 163",
    "water": "119 147 154 177-178",
}
CLASSES = tuple(_GROUPS)
FIRST_STUFF = 12


def fine_to_coarse() -> dict[int, int]:
    """Map the fine ids 0 to 181 to the 27 classes."""
    table = {}
    for coarse, spans in enumerate(_GROUPS.values()):
        for span in spans.split():
            first, _, last = span.partition("-")
            table.update(dict.fromkeys(range(int(first), int(last or first) + 1), coarse))
    return table


def cocostuff(path: PathLike, split: str = "val", subset: str = "") -> FileDataset:
    """COCO-Stuff's `split` (train, val), 27 classes.

    Maps are in `stuffthingmaps/SPLIT2017` (as distributed), in
    `annotations/SPLIT2017`, or in `SPLIT_label` beside `SPLIT_img`. `subset` names a file of image
    names, absolute or under the root, such as the curated lists PiCIE and STEGO evaluate on.
    """
    layout = Layout.open(path, "COCO-Stuff", "val2017/ and stuffthingmaps/val2017/")
    year = f"{split}2017"
    images = layout.folder(f"images/{year}", year, f"{split}_img")
    maps = layout.folder(f"stuffthingmaps/{year}", f"annotations/{year}", f"{split}_label")
    expected = "images such as 000000000139.jpg"
    files = {Path(image).stem: image for image in layout.images(images, expected)}
    names = sorted(files)
    if subset:
        source = layout.root / subset  # an absolute path replaces the root
        names = [Path(line).stem for line in read_lines(source)]
        missing = [name for name in names if name not in files]
        if missing:
            raise DataError(
                f"{len(missing)} images of the list {source} are not in {layout.root / images}, "
                f"the first {missing[0]}.",
                "Use the list of this split, and the complete split.",
            )
    items = [Files(n, f"{images}/{files[n]}", semantic=f"{maps}/{n}.png") for n in names]
    return FileDataset(
        name=f"cocostuff-{split}",
        root=layout.root,
        items=layout.require(items, images, expected),
        classes=CLASSES,
        table=make_table({**fine_to_coarse(), 255: VOID}),
    )
