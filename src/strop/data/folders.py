"""Datasets on disk: VOC, ADE20K, Cityscapes, COCO, COCO-Stuff, ImageNet, NYUv2, CLEVR, folders.

Each function finds the files of one layout and returns a dataset.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
import torch

from strop.data.decode import identity_table, make_table
from strop.data.layout import (
    FileDataset,
    Files,
    Layout,
    first_file,
    found,
    load_json,
    load_mat,
    paired,
    read_lines,
    split_names,
)
from strop.data.record import VOID, Record
from strop.errors import DataError, parsing
from strop.files import PathLike
from strop.listing import expand, find_images, list_files
from strop.optional import require
from strop.scenes.describe import check_scene, field
from strop.scenes.scene import By, class_names


def folder(path: PathLike, labels: Literal["none", "folders"] = "none") -> FileDataset:
    """All images below `path`, sorted by name.

    With `labels="folders"` the first folder in the path of an image is its label.
    """
    layout = Layout.open(path, "folder", "images in it, at any depth")
    root = layout.root
    images = list_files(root) or find_images([str(root)])  # which refuses a folder without any
    if labels == "none":
        items = [Files(image, image) for image in images]
        return FileDataset(name=root.name, root=root, items=items)
    loose = next((image for image in images if "/" not in image), None)
    if loose is not None:
        raise DataError(
            f"{root / loose} is not in a class folder.",
            "With labels=folders each class has its own folder under the root.",
        )
    names = sorted({image.split("/", 1)[0] for image in images})
    position = {name: i for i, name in enumerate(names)}
    items = [Files(image, image, labels=(position[image.split("/", 1)[0]],)) for image in images]
    return FileDataset(name=root.name, root=root, items=items, label_names=names)


# --- PASCAL VOC 2012

VOC_CLASSES = split_names("""
background; aeroplane; bicycle; bird; boat; bottle; bus; car; cat; chair; cow; diningtable; dog;
horse; motorbike; person; pottedplant; sheep; sofa; train; tvmonitor
""")


def voc(
    path: PathLike,
    split: str = "val",
    masks: Literal["auto", "aug", "official"] = "auto",
    labels: Literal["auto", "xml", "masks"] = "auto",
) -> FileDataset:
    """VOC 2012's segmentation `split`: a list in `ImageSets/Segmentation` (trainaug, train, val).

    `masks` is `aug` (`SegmentationClassAug`), `official` (`SegmentationClass`) or `auto`
    (augmented if present). `labels` is `xml`, `masks` or `auto` (annotations if present). Class 0
    of a mask is background; labels cover the other 20 classes.
    """
    tree = "VOCdevkit/VOC2012/{JPEGImages,ImageSets,...}"
    layout = Layout.open(path, "VOC", tree, "VOCdevkit/VOC2012", "VOC2012")
    root, images = layout.root, layout.folder("JPEGImages")
    kinds = {"aug": "SegmentationClassAug", "official": "SegmentationClass"}
    folder = layout.folder(*(kinds.values() if masks == "auto" else [kinds[masks]]))
    # Some copies of trainaug.txt list pairs of paths. The first one holds the name.
    lines = layout.lines(f"ImageSets/Segmentation/{split}.txt")
    names = [Path(line.split()[0]).stem for line in lines]
    from_xml = labels == "xml" or (labels == "auto" and (root / "Annotations").is_dir())
    return FileDataset(
        name=f"voc-{split}",
        root=root,
        items=paired(images, folder, [f"{name}.jpg" for name in names]),
        classes=VOC_CLASSES,
        label_names=VOC_CLASSES[1:],
        table=identity_table(len(VOC_CLASSES)),
        find_labels=partial(_xml_labels, folder=root / "Annotations") if from_xml else None,
    )


def _xml_labels(item: Files, *, folder: Path) -> tuple[int, ...]:
    """Labels from `Annotations/NAME.xml`: the classes of objects that are not difficult."""
    path = folder / f"{item.name}.xml"
    if not path.is_file():
        raise DataError(
            f"The annotation {path} is missing.", "Use labels=masks to take them from masks."
        )
    with parsing(DataError, f"{path} is not valid XML", "Download it again."):
        tree = ElementTree.parse(path)
    present = {
        entry.findtext("name", "").strip()
        for entry in tree.iter("object")
        if entry.findtext("difficult", "0").strip() != "1"
    }
    unknown = present.difference(VOC_CLASSES[1:])
    if unknown:
        raise DataError(
            f"{path} names {', '.join(sorted(map(repr, unknown)))}.",
            "VOC's classes are " + ", ".join(VOC_CLASSES[1:]) + ".",
        )
    return tuple(sorted(VOC_CLASSES.index(name) - 1 for name in present))


# --- ADE20K

# The first name of each class in objectInfo150.txt.
ADE20K_CLASSES = split_names("""
wall; building; sky; floor; tree; ceiling; road; bed; windowpane; grass; cabinet; sidewalk;
person; earth; door; table; mountain; plant; curtain; chair; car; water; painting; sofa;
shelf; house; sea; mirror; rug; field; armchair; seat; fence; desk; rock; wardrobe; lamp;
bathtub; railing; cushion; base; box; column; signboard; chest of drawers; counter; sand;
sink; skyscraper; fireplace; refrigerator; grandstand; path; stairs; runway; case; pool table;
pillow; screen door; stairway; river; bridge; bookcase; blind; coffee table; toilet; flower;
book; hill; bench; countertop; stove; palm; kitchen island; computer; swivel chair; boat; bar;
arcade machine; hovel; bus; towel; light; truck; tower; chandelier; awning; streetlight;
booth; television; airplane; dirt track; apparel; pole; land; bannister; escalator; ottoman;
bottle; buffet; poster; stage; van; ship; fountain; conveyer belt; canopy; washer; plaything;
swimming pool; stool; barrel; basket; waterfall; tent; bag; minibike; cradle; oven; ball;
food; step; tank; trade name; microwave; pot; animal; bicycle; lake; dishwasher; screen;
blanket; sculpture; hood; sconce; vase; traffic light; tray; ashcan; fan; pier; crt screen;
plate; monitor; bulletin board; shower; radiator; glass; clock; flag
""")


def ade20k(path: PathLike, split: str = "validation") -> FileDataset:
    """ADE20K's `split` (training or train, validation or val), with 150 classes.

    0 in a mask is void; 1 to 150 are the classes 0 to 149. If the folders have no splits, all
    images are read for any split.
    """
    tree = "images/{training,validation}/ and annotations/{training,validation}/"
    layout = Layout.open(path, "ADE20K", tree, "ADEChallengeData2016")
    split = {"train": "training", "val": "validation"}.get(split, split)
    top = layout.root / layout.folder("images")
    inside = f"/{split}" if any(p.is_dir() for p in top.iterdir()) else ""
    images, masks = layout.folder(f"images{inside}"), layout.folder(f"annotations{inside}")
    names = layout.images(images, "images such as ADE_val_00000001.jpg")
    return FileDataset(
        name=f"ade20k-{split}",
        root=layout.root,
        items=paired(images, masks, names),
        classes=ADE20K_CLASSES,
        table=make_table({0: VOID, **{i + 1: i for i in range(len(ADE20K_CLASSES))}}),
    )


# --- Cityscapes

CITYSCAPES_CLASSES = split_names("""
road; sidewalk; building; wall; fence; pole; traffic light; traffic sign; vegetation; terrain; sky;
person; rider; car; truck; bus; train; motorcycle; bicycle
""")
_LABEL_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
# Ids 0 to 33 are defined; all but the 19 are void. 255 is the licence plate (-1) in a byte.
_CITYSCAPES_TABLE = make_table(
    {
        **dict.fromkeys((*range(34), 255), VOID),
        **{label_id: train_id for train_id, label_id in enumerate(_LABEL_IDS)},
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
        classes=CITYSCAPES_CLASSES,
        table=_CITYSCAPES_TABLE,
    )


# --- COCO 2017


def coco(
    path: PathLike, split: str = "val", labels: Literal["instances", "none"] = "instances"
) -> FileDataset:
    """COCO 2017's `split` (train, val; with `labels="none"` any folder SPLIT2017).

    An image's labels are the categories of its instances, crowds included.
    """
    tree = "val2017/ and annotations/instances_val2017.json"
    layout = Layout.open(path, "COCO", tree)
    root, folder = layout.root, layout.folder(f"images/{split}2017", f"{split}2017")
    name = f"coco-{split}"
    if labels == "none":
        images = layout.images(folder, "images such as 000000000139.jpg")
        items = [Files(image.rpartition(".")[0], f"{folder}/{image}") for image in images]
        return FileDataset(name=name, root=root, items=items)
    source = root / "annotations" / f"instances_{split}2017.json"
    if not source.is_file():
        raise DataError(
            f"The labels {source} are missing.", f"COCO has {tree}; labels=none does not need them."
        )
    content = load_json(source, ["images", "annotations", "categories"])
    with parsing(DataError, f"{source} has an entry without a field or id", "Download it again."):
        categories = sorted(content["categories"], key=lambda category: category["id"])
        position = {category["id"]: i for i, category in enumerate(categories)}
        present: dict[int, set[int]] = defaultdict(set)
        for annotation in content["annotations"]:
            present[annotation["image_id"]].add(position[annotation["category_id"]])
        items = [
            Files(
                image["file_name"].rpartition(".")[0],
                f"{folder}/{image['file_name']}",
                labels=tuple(sorted(present[image["id"]])),
            )
            for image in sorted(content["images"], key=lambda image: image["file_name"])
        ]
        names = [category["name"] for category in categories]
    layout.require(items, folder, f"images listed in {source}")
    return FileDataset(name=name, root=root, items=items, label_names=names)


# --- COCO-Stuff with the 27 classes of PiCIE and STEGO: 12 thing groups, 15 stuff groups

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
STUFF_CLASSES = tuple(_GROUPS)


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
    listed = layout.images(images, "images such as 000000000139.jpg")
    files = {Path(image).stem: image for image in listed}
    names = sorted(files)
    if subset:
        source = layout.root / subset  # an absolute path replaces the root
        names = [Path(line).stem for line in layout.lines(subset)]
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
        items=items,
        classes=STUFF_CLASSES,
        table=make_table({**fine_to_coarse(), 255: VOID}),
    )


# --- ImageNet-1k (ILSVRC 2012), in class folders or as the flat validation set

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
    flat = split != "train" and not any("/" in image for image in images)
    known = _flat_labels(root) if flat else {}
    wnids = [known.get(Path(image).stem, image.partition("/")[0]) for image in images]
    for image, wnid in zip(images, wnids, strict=True):
        if not _WNID.fullmatch(wnid):
            raise DataError(
                f"{folder / image} has no label: {wnid} is not a WordNet id such as n01440764, "
                "nor an image of the validation list.",
                f"ImageNet has {tree}. For other class folders use folder:PATH?labels=folders.",
            )
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


# --- The labelled set of NYU Depth v2, with depth in metres and 40 classes

NYU_CLASSES = split_names("""
wall; floor; cabinet; bed; chair; sofa; table; door; window; bookshelf; picture; counter; blinds;
desk; shelves; curtain; dresser; pillow; mirror; floor mat; clothes; ceiling; books; refrigerator;
television; paper; towel; shower curtain; box; whiteboard; person; night stand; toilet; sink; lamp;
bathtub; bag; other structure; other furniture; other prop
""")
NYU_MAT = "nyu_depth_v2_labeled.mat"

# In the folder layout, 39 is both "other prop" and unlabelled, so it is void.
_NYU_TABLE = make_table({**dict.fromkeys(range(256), VOID), **{i: i for i in range(39)}})


def nyuv2(path: PathLike, split: Literal["train", "test"] = "test") -> FileDataset | NyuMat:
    """NYU Depth v2's `split` (train, 795 images; test, 654).

    Either the official `nyu_depth_v2_labeled.mat` with `splits.mat` in one folder, or a folder with
    `rgb/`, `depth_mm/` (16 bit, millimetres), `labels40/` (0 to 38; the rest void) and `train.txt`,
    `test.txt`.
    """
    where = expand(path)
    tree = f"{NYU_MAT} and splits.mat, or rgb/, depth_mm/, labels40/, train.txt and test.txt"
    if where.name == NYU_MAT or (where / NYU_MAT).is_file():
        return NyuMat(where if where.name == NYU_MAT else where / NYU_MAT, split)
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
        classes=NYU_CLASSES if masks else (),
        table=_NYU_TABLE,
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
        damaged = f"The file is truncated or not {NYU_MAT}, which has 2.8 GB; download it again."
        # Opened for each record: a forked worker would share the file position of its parent.
        with parsing(DataError, where, damaged), h5py.File(self._path, "r") as content:
            image = np.asarray(content["images"][number], np.uint8)
            return image, np.asarray(content["depths"][number], np.float32)


# --- CLEVR v1.0: images and scenes, with masks and depth if a renderer wrote them


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
