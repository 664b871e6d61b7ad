"""Cityscapes, with the 19 classes of its evaluation."""

from __future__ import annotations

from strop.data.decode import make_table
from strop.data.filelist import FileDataset, Files
from strop.data.layout import Layout
from strop.data.record import VOID
from strop.files import PathLike
from strop.listing import list_files

_LABEL_IDS = {
    "road": 7,
    "sidewalk": 8,
    "building": 11,
    "wall": 12,
    "fence": 13,
    "pole": 17,
    "traffic light": 19,
    "traffic sign": 20,
    "vegetation": 21,
    "terrain": 22,
    "sky": 23,
    "person": 24,
    "rider": 25,
    "car": 26,
    "truck": 27,
    "bus": 28,
    "train": 31,
    "motorcycle": 32,
    "bicycle": 33,
}
CLASSES = tuple(_LABEL_IDS)
# Ids 0 to 33 are defined; all but the 19 are void. 255 is the licence plate (-1) in a byte.
_TABLE = make_table(
    {
        **dict.fromkeys((*range(34), 255), VOID),
        **{label_id: train_id for train_id, label_id in enumerate(_LABEL_IDS.values())},
    }
)


def cityscapes(path: PathLike, split: str = "val") -> FileDataset:
    """Cityscapes' `split` (train, val): `leftImg8bit` images, `gtFine` labelIds as train ids."""
    layout = Layout.open(path, "Cityscapes", "leftImg8bit/SPLIT/CITY/ and gtFine/SPLIT/CITY/")
    images, masks = layout.folder(f"leftImg8bit/{split}"), layout.folder(f"gtFine/{split}")
    items = [
        Files(name, f"{images}/{image}", semantic=f"{masks}/{name}_gtFine_labelIds.png")
        for image in list_files(layout.root / images, {".png", ".jpg"})
        if (name := image.rpartition("_leftImg8bit.")[0])
    ]
    return FileDataset(
        name=f"cityscapes-{split}",
        root=layout.root,
        items=layout.require(items, images, "CITY/CITY_000000_000019_leftImg8bit.png"),
        classes=CLASSES,
        table=_TABLE,
    )
