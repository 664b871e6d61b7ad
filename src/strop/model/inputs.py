"""What users give to a model as images, as batches of the model's size on its device."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from strop.config import in_range
from strop.device import to_device
from strop.errors import ImageError, expect, parsing
from strop.images import Fit, ImageLike, fit_square, read_square, tensor_to_bytes
from strop.listing import find_images
from strop.program import Program
from strop.squares import Source, read_squares, reading_workers

Images = ImageLike | Iterable[Any]
"""An image or a collection of images; see `Tokenizer.encode`."""

_WHOLE = (str, bytes, list, tuple, Mapping, Tensor, np.ndarray)
"""Iterables that are read as they are."""

IMAGE_KEYS = ("image", "images", "pixel_values", "img")
"""Where the items of other libraries hold their image or images."""


def square_batches(
    images: Images, *, size: int, fit: Fit, batch: int, device: torch.device
) -> Iterator[Tensor]:
    """Any images as uint8 `(b, 3, size, size)` on `device`, at most `batch` at a time.

    On a CPU they go one by one, so that a result never depends on the other images of a batch.
    """
    batch = in_range(batch, "batch", 1)
    batch = 1 if device.type == "cpu" else batch
    images = listed(images)
    read: Iterator[Tensor]
    if isinstance(images, list | tuple) and images and all(map(_is_file, images)):
        read = _read_files(images, size, fit, ahead=2 * batch + 32)
    else:
        read = (
            each if isinstance(each, Tensor) and each.ndim == 4 else read_square(each, size, fit)
            for each in _each(images)
        )
    waiting: list[Tensor] = []
    found = False
    for image in read:
        found = True
        if image.ndim == 4:
            if waiting:
                yield to_device(torch.stack(waiting), device)
                waiting = []
            for part in tensor_to_bytes(image).split(batch):
                yield fit_square(part.to(device), size, fit)
            continue
        waiting.append(image)
        if len(waiting) == batch:
            yield to_device(torch.stack(waiting), device)
            waiting = []
    if waiting:
        yield to_device(torch.stack(waiting), device)
    if not found:
        raise ImageError("There are no images to encode.", "Give at least one.")


def _read_files(files: Sequence[Source], size: int, fit: Fit, ahead: int) -> Iterator[Tensor]:
    """Squares of image files, in order. Worker processes read ahead while the device computes."""
    workers = reading_workers(len(files))
    for _, square in read_squares(files, size, fit, workers=workers, ahead=ahead):
        if isinstance(square, ImageError):
            raise square
        yield square


def _is_file(image: object) -> bool:
    return isinstance(image, str | os.PathLike | bytes)


def listed(images: Images) -> Images:
    """Folders, globs and collections of paths as lists of paths, an open file as its bytes;
    everything else as it is."""
    if hasattr(images, "read"):
        return _content(images)
    if isinstance(images, bytearray | memoryview):
        return bytes(images)
    if isinstance(images, np.ndarray) and images.dtype.kind in "OUT":  # of paths or images
        return images.tolist()
    if isinstance(images, Program) or len(getattr(images, "axes", ())) == 2:
        remedy = "Give images, or the column of a table that holds them, such as table['path']."
        raise ImageError(f"A {type(images).__name__} is not an image.", remedy)
    if isinstance(images, str | os.PathLike):
        text, path = os.fspath(images), Path(images)
        if path.is_dir() or (glob.has_magic(text) and not path.exists() and ":" not in text):
            return find_images([text])
        if re.match(r"[a-z]\w+:(?!//)", text) and not path.exists():
            raise ImageError(
                f"There is no file {text}.",
                f'If it is a dataset, open it: encode(strop.data.open_dataset("{text}")).',
            )
    if isinstance(images, Iterable) and not isinstance(images, _WHOLE):
        each = iter(images)
        first = next(each, None)
        if first is None:
            return []
        rest = chain([first], each)
        return list(rest) if isinstance(first, str | os.PathLike) else rest
    return images


def _content(file: Any) -> bytes:
    """The bytes of an open file, from its beginning."""
    with parsing(ImageError, "The open file cannot be read", "Give its path or its bytes."):
        if file.seekable():
            file.seek(0)
        return bytes(file.read())


def names_of(images: Images) -> tuple[str, ...]:
    """The names of images given as paths, records or a dataset; or none if any has none."""
    if hasattr(images, "label_names"):  # a dataset
        return tuple(images.names()) if hasattr(images, "names") else ()
    each = images if isinstance(images, list | tuple) else [images]
    names = [
        os.fspath(image)
        if isinstance(image, str | os.PathLike)
        else ""
        if _held(image) is None
        else getattr(image, "name", "")
        for image in each
    ]
    return tuple(names) if all(names) else ()


def _each(images: Any) -> Iterator[ImageLike]:
    """The images of any input: single ones, and batches `(B, 3, H, W)`."""
    images = listed(images)
    if isinstance(images, str | os.PathLike | bytes | Image.Image):
        yield images
    elif isinstance(images, Tensor | np.ndarray):
        yield _batch(images) if images.ndim == 4 else images
    elif isinstance(images, Mapping):
        yield from _each(_of_mapping(images))
    elif (held := _held(images)) is not None:
        yield held
    else:
        items = isinstance(images, Sized) and hasattr(images, "__getitem__")
        if items and not isinstance(images, Iterable):  # a `Dataset`
            images = map(images.__getitem__, range(len(images)))
        remedy = "Give paths, bytes, PIL images, arrays, tensors, or a collection of these."
        expect(images, Iterable, "an image", ImageError, remedy)
        for item in images:
            yield from _each(_of_pair(item) if isinstance(item, list | tuple) else item)


def _held(item: Any) -> Tensor | None:
    """The image of a `Record`, the images of a `Batch`."""
    for name in ("image", "images"):
        if isinstance(found := getattr(item, name, None), Tensor):
            return found
    return None


def _batch(images: Tensor | np.ndarray) -> Tensor:
    """A 4-dimensional tensor or array as `(B, 3, H, W)`."""
    array = isinstance(images, np.ndarray)
    if images.shape[-1 if array else 1] != 3:
        raise ImageError(
            f"{'An array' if array else 'A tensor'} of shape {tuple(images.shape)} is not a batch "
            "of RGB images.",
            f"Give it as {'(B, H, W, 3)' if array else '(B, 3, H, W)'}.",
        )
    if isinstance(images, Tensor):
        return images
    remedy = "Give uint8 in [0, 255] or float in [0, 1]."
    with parsing(ImageError, f"Images of {images.dtype} cannot be used", remedy):
        return torch.from_numpy(np.array(images, order="C")).permute(0, 3, 1, 2)


def _of_mapping(item: Mapping[str, Any]) -> Any:
    """The image or images of a row of a dataset, or of a collated batch."""
    keys = [key for key in IMAGE_KEYS if key in item]
    keys = keys or [key for key, value in item.items() if isinstance(value, Image.Image)]
    if len(keys) != 1:
        raise ImageError(
            f"A row with the columns {', '.join(map(str, item))} has "
            f"{'several images' if keys else 'no image'}.",
            'Give the column of the images, such as dataset["picture"], or a split.',
        )
    return item[keys[0]]


def _of_pair(item: list[Any] | tuple[Any, ...]) -> Any:
    """The images of `(images, labels)`, as a dataset or a `DataLoader` yields it; else all."""
    if item and isinstance(item[0], Tensor | np.ndarray | Image.Image):
        alike = all(isinstance(each, type(item[0])) for each in item[1:])
        shaped = not isinstance(item[0], Tensor) or all(
            each.ndim == item[0].ndim for each in item[1:] if isinstance(each, Tensor)
        )
        if not (alike and shaped):
            return item[0]
    return item
