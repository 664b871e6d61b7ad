"""Any folder of images, searched to the bottom."""

from __future__ import annotations

from strop.data.filelist import FileDataset, Files
from strop.data.layout import choose, list_files, require_folder, require_some
from strop.errors import DataError
from strop.files import PathLike


def folder(path: PathLike, labels: str = "none") -> FileDataset:
    """Every image below `path`, in order of name.

    With `labels="folders"` the first folder of an image's path is its one label.
    """
    root = require_folder(path, "folder", "images in it, at any depth")
    choose(labels, ("none", "folders"), "source of labels")
    images = list_files(root)
    require_some(images, "folder", root, "images: JPEG, PNG, WebP and the like")
    if labels == "none":
        items = [Files(image, image) for image in images]
        return FileDataset(name=root.name, root=root, items=items)
    loose = next((image for image in images if "/" not in image), None)
    if loose is not None:
        raise DataError(
            f"{root / loose} lies in no class folder.",
            "With labels=folders each class has a folder of its own under the root.",
        )
    names = sorted({image.split("/", 1)[0] for image in images})
    position = {name: i for i, name in enumerate(names)}
    items = [Files(image, image, labels=(position[image.split("/", 1)[0]],)) for image in images]
    return FileDataset(name=root.name, root=root, items=items, label_names=names)
