"""Each loader on a small dataset in its owner's layout, and on what goes wrong with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strop.data import VOID, Dataset, open_dataset
from strop.data.folders import (
    _CITYSCAPES_TABLE,
    ADE20K_CLASSES,
    CITYSCAPES_CLASSES,
    STUFF_CLASSES,
    fine_to_coarse,
)
from strop.errors import DataError, ImageError, StropError

Write = Callable[..., Path]


def held(dataset: Dataset, index: int) -> set[str]:
    labels = dataset[index].labels
    assert labels is not None
    assert labels.shape == (len(dataset.label_names),)
    return {dataset.label_names[i] for i in labels.nonzero().flatten().tolist()}


def ids(mask: torch.Tensor | None) -> list[int]:
    assert mask is not None
    assert mask.dtype == torch.int64
    return mask.unique().tolist()


# --- VOC


def test_voc_masks_and_labels(voc_root: Path) -> None:
    data = open_dataset(f"voc:{voc_root}")
    assert isinstance(data, Dataset)
    assert len(data) == 2
    assert data[0].name == "2007_000001"
    assert data[0].image.shape == (3, 30, 40)
    assert ids(data[0].semantic) == [0, 1, 20, VOID]
    assert held(data, 0) == {"aeroplane", "tvmonitor"}
    assert held(data, 1) == {"bicycle", "tvmonitor"}
    assert len(data.classes) == 21
    assert len(data.label_names) == 20
    assert len(open_dataset(f"voc:{voc_root}/VOCdevkit?split=train")) == 1
    assert len(open_dataset(f"voc:{voc_root}/VOCdevkit/VOC2012?split=train")) == 1


def test_voc_labels_come_from_the_annotations_where_they_are(voc_root: Path) -> None:
    folder = voc_root / "VOCdevkit" / "VOC2012" / "Annotations"
    folder.mkdir()
    thing = "<object><name>{}</name><difficult>{}</difficult></object>"
    things = thing.format("dog", 0) + thing.format("cat", 1) + thing.format("person", 0)
    (folder / "2007_000001.xml").write_text(f"<annotation>{things}</annotation>")
    data = open_dataset(f"voc:{voc_root}")
    assert held(data, 0) == {"dog", "person"}  # the cat is marked difficult
    assert held(open_dataset(f"voc:{voc_root}?labels=masks"), 0) == {"aeroplane", "tvmonitor"}
    with pytest.raises(DataError, match=r"2007_000002\.xml is missing"):
        data[1]
    (folder / "2007_000002.xml").write_text("<annotation><object><name>unicorn</name></object>")
    with pytest.raises(DataError, match="not valid XML"):
        data[1]


def test_voc_prefers_augmented_masks(voc_root: Path, write_ids: Write) -> None:
    root = voc_root / "VOCdevkit" / "VOC2012"
    for name in ("2007_000001", "2007_000002"):
        write_ids(root / "SegmentationClassAug" / f"{name}.png", [0, 7])
    assert ids(open_dataset(f"voc:{voc_root}")[0].semantic) == [0, 7]
    assert 20 in ids(open_dataset(f"voc:{voc_root}?masks=official")[0].semantic)


def test_voc_what_goes_wrong(voc_root: Path, write_ids: Write) -> None:
    root = voc_root / "VOCdevkit" / "VOC2012"
    with pytest.raises(DataError, match=r"trainaug.*holds empty\.txt, train\.txt, val\.txt"):
        open_dataset(f"voc:{voc_root}?split=trainaug")
    with pytest.raises(DataError, match="split is empty"):
        open_dataset(f"voc:{voc_root}?split=empty")
    with pytest.raises(DataError, match="SegmentationClassAug"):
        open_dataset(f"voc:{voc_root}?masks=aug")
    with pytest.raises(DataError, match="does not exist"):
        open_dataset(f"voc:{voc_root}/nowhere")
    data = open_dataset(f"voc:{voc_root}")
    write_ids(root / "SegmentationClass" / "2007_000001.png", [0, 33])
    with pytest.raises(DataError, match=r"2007_000001\.png holds label ids .*: 33\..*0-20, 255"):
        data[0]
    write_ids(root / "SegmentationClass" / "2007_000001.png", [0, 3], width=20)
    with pytest.raises(DataError, match=r"is 20 x 30, but its image is 40 x 30"):
        data[0]
    (root / "SegmentationClass" / "2007_000001.png").unlink()
    with pytest.raises(DataError, match=r"2007_000001\.png is missing"):
        data[0]
    jpeg = root / "JPEGImages" / "2007_000002.jpg"
    jpeg.write_bytes(jpeg.read_bytes()[:300])
    with pytest.raises(ImageError, match=r"2007_000002\.jpg is damaged"):
        data[1]


def test_a_colour_rendering_is_not_a_mask(voc_root: Path, write_image: Write) -> None:
    write_image(voc_root / "VOCdevkit/VOC2012/SegmentationClass/2007_000001.png")
    with pytest.raises(DataError, match="mode RGB, expected a single channel"):
        open_dataset(f"voc:{voc_root}")[0]


# --- Cityscapes


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_cityscapes(tmp_path: Path, write_image: Write, write_ids: Write, suffix: str) -> None:
    for i, city in enumerate(["aachen", "ulm"]):
        name = f"{city}/{city}_00000{i}_000019"
        write_image(tmp_path / f"leftImg8bit/train/{name}_leftImg8bit.{suffix}", i)
        write_ids(tmp_path / f"gtFine/train/{name}_gtFine_labelIds.png", [0, 7, 33, 26, 14])
        write_ids(tmp_path / f"gtFine/train/{name}_gtFine_instanceIds.png", [1])
    data = open_dataset(f"cityscapes:{tmp_path}?split=train")
    assert [data[i].name for i in range(2)] == [
        "aachen/aachen_000000_000019",
        "ulm/ulm_000001_000019",
    ]
    assert ids(data[0].semantic) == [0, 13, 18, VOID]  # road, car, bicycle; 0 and 14 are void
    assert held(data, 0) == {"road", "car", "bicycle"}
    assert len(data.classes) == 19
    with pytest.raises(DataError, match=r"expected leftImg8bit/val/"):
        open_dataset(f"cityscapes:{tmp_path}")


def test_cityscapes_all_train_ids() -> None:
    official = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    assert _CITYSCAPES_TABLE[official].tolist() == list(range(19))
    assert (_CITYSCAPES_TABLE[:34] != VOID).sum() == 19
    assert (_CITYSCAPES_TABLE[34:255] == -1).all()
    assert CITYSCAPES_CLASSES[0] == "road"
    assert CITYSCAPES_CLASSES[18] == "bicycle"


# --- ADE20K


def test_ade20k(tmp_path: Path, write_image: Write, write_ids: Write) -> None:
    root = tmp_path / "ADEChallengeData2016"
    write_image(root / "images/validation/ADE_val_00000001.jpg")
    write_ids(root / "annotations/validation/ADE_val_00000001.png", [0, 1, 150])
    write_image(root / "images/training/ADE_train_00000001.jpg")
    write_ids(root / "annotations/training/ADE_train_00000001.png", [151])
    data = open_dataset(f"ade20k:{tmp_path}")
    assert ids(data[0].semantic) == [0, 149, VOID]
    assert held(data, 0) == {"wall", "flag"}
    with pytest.raises(DataError, match="151"):
        open_dataset(f"ade20k:{tmp_path}?split=train")[0]


def test_ade20k_names() -> None:
    assert len(ADE20K_CLASSES) == len(set(ADE20K_CLASSES)) == 150
    assert [ADE20K_CLASSES[i] for i in (0, 12, 20, 44, 89, 149)] == [
        "wall", "person", "car", "chest of drawers", "television", "flag",
    ]  # fmt: skip


# --- COCO and COCO-Stuff


@pytest.fixture
def coco_root(tmp_path: Path, write_image: Write) -> Path:
    for i in (139, 285, 632):
        write_image(tmp_path / f"val2017/{i:012d}.jpg", i)
    (tmp_path / "annotations").mkdir()
    content = {
        "images": [{"id": i, "file_name": f"{i:012d}.jpg"} for i in (632, 139, 285)],
        "annotations": [
            {"image_id": 139, "category_id": 90, "iscrowd": 0},
            {"image_id": 139, "category_id": 1, "iscrowd": 1},
            {"image_id": 285, "category_id": 23, "iscrowd": 0},
        ],
        "categories": [
            {"id": 90, "name": "toothbrush"},
            {"id": 1, "name": "person"},
            {"id": 23, "name": "bear"},
        ],
    }
    (tmp_path / "annotations/instances_val2017.json").write_text(json.dumps(content))
    return tmp_path


def test_coco_labels(coco_root: Path) -> None:
    data = open_dataset(f"coco:{coco_root}?split=val")
    assert data.label_names == ("person", "bear", "toothbrush")
    assert [data[i].name for i in range(3)] == ["000000000139", "000000000285", "000000000632"]
    assert [held(data, i) for i in range(3)] == [{"person", "toothbrush"}, {"bear"}, set()]
    assert open_dataset(f"coco:{coco_root}?labels=none")[0].labels is None


def test_coco_what_goes_wrong(coco_root: Path) -> None:
    source = coco_root / "annotations/instances_val2017.json"
    content = json.loads(source.read_text())
    del content["annotations"][0]["category_id"]
    source.write_text(json.dumps(content))
    with pytest.raises(DataError, match="'category_id'"):
        open_dataset(f"coco:{coco_root}")
    del content["categories"]
    source.write_text(json.dumps(content))
    with pytest.raises(DataError, match="no field 'categories'"):
        open_dataset(f"coco:{coco_root}")
    source.write_text(source.read_text()[:50])
    with pytest.raises(DataError, match="not valid JSON"):
        open_dataset(f"coco:{coco_root}")
    source.unlink()
    with pytest.raises(DataError, match=r"labels .*instances_val2017\.json are missing"):
        open_dataset(f"coco:{coco_root}")


@pytest.mark.parametrize(
    ("images", "maps"),
    [
        ("val2017", "stuffthingmaps/val2017"),
        ("images/val2017", "annotations/val2017"),
        ("val_img", "val_label"),
    ],
)
def test_cocostuff(
    tmp_path: Path, write_image: Write, write_ids: Write, images: str, maps: str
) -> None:
    for name in ("000000000139", "000000000285"):
        write_image(tmp_path / images / f"{name}.jpg")
        write_ids(tmp_path / maps / f"{name}.png", [0, 255, 181, 105])
    data = open_dataset(f"cocostuff:{tmp_path}")
    assert len(data) == 2
    assert held(data, 0) == {"person", "solid", "sky"}
    assert VOID in ids(data[0].semantic)
    (tmp_path / "curated.txt").write_text("000000000285\n")
    data = open_dataset(f"cocostuff:{tmp_path}?subset=curated.txt")
    assert [data[i].name for i in range(len(data))] == ["000000000285"]
    (tmp_path / "curated.txt").write_text("000000000999\n")
    with pytest.raises(DataError, match="000000000999"):
        open_dataset(f"cocostuff:{tmp_path}?subset=curated.txt")


def test_cocostuff_classes() -> None:
    table = fine_to_coarse()
    assert sorted(table) == list(range(182))  # every fine id once
    assert len(STUFF_CLASSES) == 27
    assert {table[i] for i in range(91)} == set(range(12))
    assert {table[i] for i in range(91, 182)} == set(range(12, 27))
    # COCO-Stuff's category ids less one, and the superclass each belongs to in its hierarchy.
    known = {
        0: "person", 1: "vehicle", 8: "vehicle", 9: "outdoor", 16: "animal", 32: "accessory",
        33: "sports", 43: "kitchen", 51: "food", 61: "furniture", 71: "electronic",
        81: "appliance", 83: "indoor", 94: "building", 105: "sky", 119: "water", 123: "plant",
        131: "raw-material", 148: "ground", 154: "water", 160: "furniture-stuff", 168: "plant",
        169: "food-stuff", 176: "wall", 180: "window", 181: "solid", 101: "ceiling",
        116: "floor", 112: "structural", 166: "textile",
    }  # fmt: skip
    assert {fine: STUFF_CLASSES[table[fine]] for fine in known} == known
    sizes = np.bincount(list(table.values())).tolist()
    assert sizes == [
        6,
        6,
        10,
        10,
        8,
        8,
        8,
        10,
        6,
        1,
        10,
        8,
        2,
        6,
        4,
        11,
        4,
        11,
        7,
        2,
        6,
        11,
        9,
        2,
        6,
        5,
        5,
    ]


# --- ImageNet


def test_imagenet_folders(tmp_path: Path, write_image: Write) -> None:
    for wnid in ("n02110341", "n01440764"):
        for i in range(2):
            write_image(tmp_path / f"train/{wnid}/{wnid}_{i}.JPEG", i)
    write_image(tmp_path / "val/n02110341/ILSVRC2012_val_00000001.JPEG")
    train = open_dataset(f"imagenet:{tmp_path}?split=train")
    val = open_dataset(f"imagenet:{tmp_path}")
    assert len(train) == 4
    assert train.label_names == val.label_names == ("n01440764", "n02110341")
    assert held(train, 0) == {"n01440764"}
    assert held(val, 0) == {"n02110341"}
    write_image(tmp_path / "train/cats/a.JPEG")
    with pytest.raises(DataError, match=r"cats is not a WordNet id"):
        open_dataset(f"imagenet:{tmp_path}?split=train")


def test_imagenet_flat_with_the_devkit(tmp_path: Path, write_image: Write) -> None:
    io = pytest.importorskip("scipy.io")
    for i in (1, 2, 3):
        write_image(tmp_path / f"val/ILSVRC2012_val_{i:08d}.JPEG", i)
    with pytest.raises(DataError, match="ILSVRC2012_validation_ground_truth"):
        open_dataset(f"imagenet:{tmp_path}")
    devkit = tmp_path / "ILSVRC2012_devkit_t12" / "data"
    devkit.mkdir(parents=True)
    # The devkit numbers classes in another order.
    synsets = np.array(
        [(1, "n02119789"), (2, "n01440764")], dtype=[("ILSVRC2012_ID", "i4"), ("WNID", "U9")]
    )
    io.savemat(devkit / "meta.mat", {"synsets": synsets})
    truth = devkit / "ILSVRC2012_validation_ground_truth.txt"
    truth.write_text("2\n1\n2\n")
    data = open_dataset(f"imagenet:{tmp_path}")
    assert [held(data, i) for i in range(3)] == [{"n01440764"}, {"n02119789"}, {"n01440764"}]
    truth.write_text("2\n1\n9\n")
    with pytest.raises(DataError, match="9"):
        open_dataset(f"imagenet:{tmp_path}")


def test_imagenet_flat_with_the_solution_list(tmp_path: Path, write_image: Write) -> None:
    write_image(tmp_path / "Data/CLS-LOC/val/ILSVRC2012_val_00000007.JPEG")
    (tmp_path / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\nILSVRC2012_val_00000007,n02110341 1 2 3 4\n"
    )
    assert held(open_dataset(f"imagenet:{tmp_path}"), 0) == {"n02110341"}


# --- NYUv2


def test_nyuv2_folders(tmp_path: Path, write_image: Write, write_ids: Write) -> None:
    for name in ("00002", "00008"):
        write_image(tmp_path / f"rgb/{name}.jpg")
        write_ids(tmp_path / f"labels40/{name}.png", [0, 38, 39, 200])
        write_ids(tmp_path / f"depth_mm/{name}.png", [1500, 0], 20, 15, mode="I;16")
    (tmp_path / "train.txt").write_text("00002\n")
    (tmp_path / "test.txt").write_text("00008\n")
    data = open_dataset(f"nyuv2:{tmp_path}?split=train")
    record = data[0]
    assert ids(record.semantic) == [0, 38, VOID]
    assert held(data, 0) == {"wall", "other furniture"}
    assert record.depth is not None
    assert record.depth.dtype == torch.float32
    assert record.depth.shape == (30, 40)  # the sensor's map is coarser than the image
    assert record.depth.unique().tolist() == pytest.approx([0, 1.5])
    assert record.depth[0, 0] == 1.5
    write_ids(tmp_path / "depth_mm/00002.png", [1500], 20, 20, mode="I;16")
    with pytest.raises(DataError, match="20 x 20, but its image is 40 x 30"):
        data[0]
    with pytest.raises(DataError, match="no split 'val'"):
        open_dataset(f"nyuv2:{tmp_path}?split=val")


@pytest.fixture
def nyu_mat(tmp_path: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    io = pytest.importorskip("scipy.io")
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "nyu_depth_v2_labeled.mat", "w") as file:
        # MATLAB's order: (N, 3, W, H) and (N, W, H).
        file["images"] = rng.integers(0, 256, (4, 3, 64, 48), dtype=np.uint8)
        file["depths"] = rng.uniform(0.7, 9.9, (4, 64, 48)).astype(np.float32)
    io.savemat(tmp_path / "splits.mat", {"trainNdxs": [[1], [3]], "testNdxs": [[2], [4]]})
    return tmp_path


def test_nyuv2_mat(nyu_mat: Path) -> None:
    import h5py

    data = open_dataset(f"nyuv2:{nyu_mat}?split=test")
    assert [data[i].name for i in range(2)] == ["00001", "00003"]
    record = data[0]
    assert record.image.shape == (3, 48, 64)
    assert record.semantic is None
    with h5py.File(nyu_mat / "nyu_depth_v2_labeled.mat") as file:
        assert record.image[:, 5, 7].tolist() == file["images"][1, :, 7, 5].tolist()
        assert record.depth is not None
        assert record.depth[5, 7] == file["depths"][1, 7, 5]
    data = open_dataset(f"nyuv2:{nyu_mat}/nyu_depth_v2_labeled.mat")
    assert torch.equal(data[0].image, record.image)


def test_nyuv2_mat_what_goes_wrong(nyu_mat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from scipy.io import savemat

    splits = {"trainNdxs": [[1], [1449]], "testNdxs": [[2], [4]]}
    savemat(nyu_mat / "splits.mat", splits)
    with pytest.raises(DataError, match=r"Image 1449 of .* cannot be read"):
        open_dataset(f"nyuv2:{nyu_mat}?split=train")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "h5py", None)
        with pytest.raises(DataError, match=r"pip install 'strop\[nyu\]'"):
            open_dataset(f"nyuv2:{nyu_mat}")
    (nyu_mat / "splits.mat").unlink()
    with pytest.raises(DataError, match=r"splits\.mat"):
        open_dataset(f"nyuv2:{nyu_mat}")


def test_nyuv2_mat_that_is_cut_or_foreign(nyu_mat: Path) -> None:
    path = nyu_mat / "nyu_depth_v2_labeled.mat"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"MATLAB 5.0 MAT-file" * 50, b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"Image 4 of .*labeled\.mat cannot be read"):
            open_dataset(f"nyuv2:{nyu_mat}")


def test_a_forked_worker_reads_the_mat_too(nyu_mat: Path) -> None:
    data = open_dataset(f"nyuv2:{nyu_mat}")
    expected = data[1].image
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"good" if torch.equal(data[1].image, expected) else b"bad")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 4) == b"good"
    os.close(reader)
    os.close(writer)
    assert torch.equal(data[1].image, expected)


# --- CLEVR


def test_clevr(clevr_root: Path) -> None:
    data = open_dataset(f"clevr:{clevr_root}")
    assert len(data) == 3
    record = data[1]
    assert record.name == "CLEVR_val_000001"
    assert record.scene is not None
    assert len(record.scene["objects"]) == 2
    assert ids(record.instance) == [0, 1, 2]
    assert data.classes[0] == "background"
    assert held(data, 1) == {"rubber cube", "metal sphere"}
    semantic = record.semantic
    assert semantic is not None
    assert record.instance is not None
    names = {data.classes[i] for i in semantic[record.instance == 2].unique().tolist()}
    assert names == {"metal sphere"}
    assert held(open_dataset(f"clevr:{clevr_root}?by=color"), 1) == {"red", "cyan"}
    assert record.depth is not None
    assert record.depth.unique().tolist() == pytest.approx([0, 8.25, 9.5])


def test_clevr_what_goes_wrong(clevr_root: Path) -> None:
    source = clevr_root / "CLEVR_v1.0/scenes/CLEVR_val_scenes.json"
    content: dict[str, Any] = json.loads(source.read_text())
    del content["scenes"][1]["objects"][1]["material"]
    del content["scenes"][2]
    source.write_text(json.dumps(content))
    data = open_dataset(f"clevr:{clevr_root}")
    assert data[0].scene is not None  # the good ones are still read
    with pytest.raises(
        DataError, match=r"scenes\.json .*CLEVR_val_000001.*, object 1: field 'material'"
    ):
        data[1]
    with pytest.raises(DataError, match=r"CLEVR_val_000002.*: field 'objects' is missing"):
        data[2]
    del content["scenes"][0]["image_filename"]
    source.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"scene 0: field 'image_filename' is missing"):
        open_dataset(f"clevr:{clevr_root}")
    source.unlink()
    with pytest.raises(DataError, match=r"scenes .* are missing"):
        open_dataset(f"clevr:{clevr_root}")


def test_clevr_entries_that_are_no_objects(clevr_root: Path) -> None:
    source = clevr_root / "CLEVR_v1.0/scenes/CLEVR_val_scenes.json"
    whole = source.read_text()
    content: dict[str, Any] = json.loads(whole)
    content["scenes"][0]["objects"] = [3]
    del content["scenes"][1]["objects"][0]["rotation"]
    del content["scenes"][2]["directions"]
    source.write_text(json.dumps(content))
    data = open_dataset(f"clevr:{clevr_root}")
    for index, complaint in enumerate(["object 0: a int", "'rotation'", "'directions'"]):
        with pytest.raises(DataError, match=rf"CLEVR_val_scenes\.json.*{complaint}"):
            data[index]
    for scenes in ("[null]", "3", "[[]]"):
        source.write_text(f'{{"scenes": {scenes}}}')
        with pytest.raises(DataError, match=r"CLEVR_val_scenes\.json"):
            open_dataset(f"clevr:{clevr_root}")


def test_clevr_mask_with_too_many_objects(clevr_root: Path, write_ids: Write) -> None:
    write_ids(clevr_root / "CLEVR_v1.0/masks/val/CLEVR_val_000000.png", [0, 9])
    with pytest.raises(DataError, match=r"has object 9, but its scene .* has 2"):
        open_dataset(f"clevr:{clevr_root}")[0]


# --- folders


def test_folder(tmp_path: Path, write_image: Write) -> None:
    for name in ("b/2.png", "a/1.jpg", "a/deep/3.webp", ".hidden/x.png", "c.txt"):
        if name.endswith("txt"):
            (tmp_path / name).write_text("not an image")
        else:
            write_image(tmp_path / name)
    for spec in (f"folder:{tmp_path}", str(tmp_path)):
        data = open_dataset(spec)
        names = [data[i].name for i in range(len(data))]
        assert names == ["a/1.jpg", "a/deep/3.webp", "b/2.png"]
    data = open_dataset(f"folder:{tmp_path}?labels=folders")
    assert data.label_names == ("a", "b")
    assert [held(data, i) for i in range(3)] == [{"a"}, {"a"}, {"b"}]
    write_image(tmp_path / "loose.png")
    with pytest.raises(DataError, match=r"loose\.png is not in a class folder"):
        open_dataset(f"folder:{tmp_path}?labels=folders")


def test_folder_without_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"The folder .* holds no images"):
        open_dataset(f"folder:{tmp_path}")
    file = tmp_path / "file.txt"
    file.write_text("x")
    with pytest.raises(DataError, match="is a file, not a folder"):
        open_dataset(f"folder:{file}")


KINDS_WITH_FOLDERS = [
    "ade20k",
    "cityscapes",
    "clevr",
    "coco",
    "cocostuff",
    "imagenet",
    "nyuv2",
    "packed",
    "voc",
]


@pytest.mark.parametrize("kind", KINDS_WITH_FOLDERS)
def test_a_wrong_folder_says_what_was_expected_and_found(tmp_path: Path, kind: str) -> None:
    (tmp_path / "holiday").mkdir()
    with pytest.raises(StropError, match="holiday/") as caught:
        open_dataset(f"{kind}:{tmp_path}")
    assert str(tmp_path) in caught.value.problem
    with pytest.raises(DataError, match="missing-folder"):
        open_dataset(f"{kind}:{tmp_path}/missing-folder")
