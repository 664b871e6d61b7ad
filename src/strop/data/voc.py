"""PASCAL VOC 2012: segmentation masks, and labels from the annotations or the masks."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from strop.data.decode import identity_table
from strop.data.filelist import FileDataset, Files, paired
from strop.data.layout import Layout, choose, found, read_lines
from strop.errors import DataError
from strop.files import PathLike

CLASSES = (
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)


class _XmlLabels:
    """Labels from `Annotations/NAME.xml`: the classes of objects that are not difficult."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __call__(self, item: Files) -> tuple[int, ...]:
        path = f"{self.folder}/{item.name}.xml"
        try:
            tree = ElementTree.parse(path)
        except OSError as error:
            raise DataError(
                f"The annotation {path} is missing.", "Use labels=masks to take them from masks."
            ) from error
        except ElementTree.ParseError as error:
            raise DataError(f"{path} is not valid XML ({error}).", "Download it again.") from error
        present = {
            entry.findtext("name", "").strip()
            for entry in tree.iter("object")
            if entry.findtext("difficult", "0").strip() != "1"
        }
        unknown = present.difference(CLASSES[1:])
        if unknown:
            raise DataError(
                f"{path} names {', '.join(sorted(map(repr, unknown)))}.",
                "VOC's classes are " + ", ".join(CLASSES[1:]) + ".",
            )
        return tuple(sorted(CLASSES.index(name) - 1 for name in present))


def voc(
    path: PathLike, split: str = "val", masks: str = "auto", labels: str = "auto"
) -> FileDataset:
    """VOC 2012's segmentation `split`: a list in `ImageSets/Segmentation` (trainaug, train, val).

    `masks` is `aug` (`SegmentationClassAug`), `official` (`SegmentationClass`) or `auto`
    (augmented if present). `labels` is `xml`, `masks` or `auto` (annotations if present). Class 0
    of a mask is background; labels cover the other 20 classes.
    """
    tree = "VOCdevkit/VOC2012/{JPEGImages,ImageSets,...}"
    layout = Layout.open(path, "VOC", tree, "VOCdevkit/VOC2012", "VOC2012")
    root, images = layout.root, layout.folder("JPEGImages")
    choose(masks, ("auto", "aug", "official"), "kind of masks")
    choose(labels, ("auto", "xml", "masks"), "source of labels")
    kinds = {"aug": "SegmentationClassAug", "official": "SegmentationClass"}
    folder = layout.folder(*(kinds.values() if masks == "auto" else [kinds[masks]]))
    lists = root / "ImageSets" / "Segmentation"
    if not (lists / f"{split}.txt").is_file():
        raise DataError(
            f"VOC has no list for the split {split!r}: {lists} holds {found(lists)}.",
            f"Expected {split}.txt there, one image name per line.",
        )
    # Some copies of trainaug.txt list pairs of paths. The first one holds the name.
    names = [Path(line.split()[0]).stem for line in read_lines(lists / f"{split}.txt")]
    layout.require(names, "ImageSets/Segmentation", f"image names in {split}.txt")
    from_xml = labels == "xml" or (labels == "auto" and (root / "Annotations").is_dir())
    return FileDataset(
        name=f"voc-{split}",
        root=root,
        items=paired(images, folder, [f"{name}.jpg" for name in names]),
        classes=CLASSES,
        label_names=CLASSES[1:],
        table=identity_table(len(CLASSES)),
        find_labels=_XmlLabels(root / "Annotations") if from_xml else None,
    )
