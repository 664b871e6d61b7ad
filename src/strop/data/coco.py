"""COCO 2017, with the categories of each image as labels."""

from __future__ import annotations

from collections import defaultdict

from strop.data.filelist import FileDataset, Files
from strop.data.layout import Layout, choose, load_json
from strop.errors import DataError, parsing
from strop.files import PathLike


def coco(path: PathLike, split: str = "val", labels: str = "instances") -> FileDataset:
    """COCO 2017's `split` (train, val; with `labels="none"` any folder SPLIT2017).

    An image's labels are the categories of its instances, crowds included.
    """
    tree = "val2017/ and annotations/instances_val2017.json"
    layout = Layout.open(path, "COCO", tree)
    choose(labels, ("instances", "none"), "source of labels")
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
