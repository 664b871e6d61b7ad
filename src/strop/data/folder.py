"""A folder of images, searched recursively."""

from __future__ import annotations

from strop.data.filelist import FileDataset, Files
from strop.data.layout import Layout, choose
from strop.errors import DataError
from strop.files import PathLike


def folder(path: PathLike, labels: str = "none") -> FileDataset:
    """All images below `path`, sorted by name.

    With `labels="folders"` the first folder in the path of an image is its label.
    """
    layout = Layout.open(path, "folder", "images in it, at any depth")
    choose(labels, ("none", "folders"), "source of labels")
    root, images = layout.root, layout.images("", "images such as JPEG, PNG and WebP")
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
