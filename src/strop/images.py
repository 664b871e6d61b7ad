"""Images as people have them, to uint8 tensors `(3, H, W)`: files, bytes, PIL images, tensors."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from strop.errors import ImageError
from strop.files import PathLike, atomic_path

Fit = Literal["squash", "crop"]
ImageLike = str | os.PathLike[str] | bytes | Image.Image | np.ndarray | Tensor

MAX_PIXELS = 100_000_000
"""Images with more pixels than this are refused before they are decoded."""

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"})
"""What counts as an image when a folder is searched."""


def read_image(source: str | os.PathLike[str] | bytes) -> Tensor:
    """Decode an image file, or its bytes, to RGB `(3, H, W)` uint8.

    Orientation tags are obeyed, transparency is laid over white, 16-bit values are scaled to 8,
    and of an animation the first frame is taken (with a warning).
    """
    name = "the image" if isinstance(source, bytes) else str(source)
    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise ImageError(
            f"Cannot read {name} ({error.strerror or error}).",
            "Check the path and its permissions.",
        ) from error
    if not content:
        raise ImageError(f"{name} is empty (0 bytes).", "Replace the file.")
    # Pillow only warns between one and two times its own limit; ours is checked just below.
    with _decoding(name), warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(content))
    return pil_to_tensor(image, name)


def pil_to_tensor(image: Image.Image, name: str = "the image") -> Tensor:
    """A PIL image of any mode to RGB `(3, H, W)` uint8."""
    with _decoding(name):  # Pillow reads pixels late: an image that was opened may yet be broken
        return _decode(image, name)


def _decode(image: Image.Image, name: str) -> Tensor:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"{name} has {width} x {height} pixels, more than the limit of {MAX_PIXELS:,}.", _SHRINK
        )
    if width == 0 or height == 0:
        raise ImageError(f"{name} has no pixels ({width} x {height}).", "Replace the image.")
    if getattr(image, "n_frames", 1) > 1 and image.format in {"GIF", "WEBP", "PNG"}:
        warnings.warn(
            f"{name} is animated ({image.n_frames} frames); the first frame is used.",  # type: ignore[attr-defined]
            stacklevel=4,
        )
    image = ImageOps.exif_transpose(image)
    if image.mode in {"I", "I;16", "I;16L", "I;16B", "F"}:
        return _grey_to_rgb(np.asarray(image), name)
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()


def to_tensor(image: ImageLike) -> Tensor:
    """Any single image to `(3, H, W)` uint8.

    Tensors are `(3, H, W)`, uint8 in [0, 255] or float in [0, 1]; arrays are `(H, W, 3)` of the
    same types, as NumPy users have them.
    """
    if isinstance(image, str | os.PathLike | bytes):
        return read_image(image)
    if isinstance(image, Image.Image):
        return pil_to_tensor(image)
    if isinstance(image, np.ndarray):
        if image.ndim != 3 or image.shape[-1] != 3:
            raise ImageError(
                f"An array of shape {image.shape} is not an RGB image.", "Give it as (H, W, 3)."
            )
        if image.dtype.kind not in "fiub" or not image.dtype.isnative:
            raise ImageError(
                f"An image of {image.dtype} cannot be used.",
                "Give uint8 in [0, 255] or float in [0, 1].",
            )
        return tensor_to_bytes(torch.from_numpy(np.array(image, order="C")).permute(2, 0, 1))
    if isinstance(image, Tensor):
        if image.ndim != 3 or image.shape[0] != 3:
            raise ImageError(
                f"A tensor of shape {tuple(image.shape)} is not an RGB image.",
                "Give it as (3, H, W), or a batch as (B, 3, H, W).",
            )
        return tensor_to_bytes(image)
    raise ImageError(
        f"A {type(image).__name__} is not an image.",
        "Give a path, bytes, a PIL image, an array (H, W, 3) or a tensor (3, H, W).",
    )


def tensor_to_bytes(images: Tensor) -> Tensor:
    """Images `(..., 3, H, W)`, uint8 or float in [0, 1], to uint8; anything else is refused."""
    if images.numel() == 0:
        raise ImageError(
            f"A tensor of shape {tuple(images.shape)} has no pixels.", "Give at least one."
        )
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise ImageError(
            f"An image of {images.dtype} is ambiguous.",
            "Give uint8 in [0, 255] or float in [0, 1].",
        )
    if not torch.isfinite(images).all():
        raise ImageError("The image holds NaN or infinity.", "Clean it before encoding.")
    low, high = images.min().item(), images.max().item()
    if low < -1e-3 or high > 1 + 1e-3:
        raise ImageError(
            f"A float image runs from {low:.3g} to {high:.3g}.",
            "Floats are in [0, 1]: divide by 255, or undo a mean and std normalisation.",
        )
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def fit_square(images: Tensor, size: int, fit: Fit = "squash") -> Tensor:
    """uint8 `(..., 3, H, W)` to `(..., 3, size, size)`, antialiased.

    `squash` keeps the whole picture and gives up its aspect; `crop` scales the short side to
    `size` and keeps the centre.
    """
    height, width = images.shape[-2:]
    if fit == "crop" and height != width:
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        images = images[..., top : top + side, left : left + side]
        height = width = side
    if (height, width) == (size, size):
        return images
    flat = images.reshape(-1, 3, height, width).float()
    # In floats, because the byte kernels of CPU and GPU round differently.
    resized = F.interpolate(flat, (size, size), mode="bicubic", antialias=True)
    return resized.round().clamp(0, 255).to(torch.uint8).reshape(*images.shape[:-2], size, size)


def save_image(path: PathLike, image: Tensor) -> None:
    """Write `(3, H, W)`, uint8 or float in [0, 1], in the format of the suffix, atomically."""
    pixels = tensor_to_bytes(image.detach().cpu()).permute(1, 2, 0).contiguous().numpy()
    with atomic_path(path) as temporary:
        Image.fromarray(pixels).save(temporary)


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    """Turn what Pillow raises into an `ImageError`."""
    try:
        yield
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{name} is not an image in a format Pillow knows.",
            "Convert it to PNG, JPEG or WebP.",
        ) from error
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name} is too large to decode ({error}).", _SHRINK) from error
    except Exception as error:
        # On corrupt files its decoders raise nearly everything: OSError, SyntaxError, RuntimeError,
        # struct.error and more.
        raise ImageError(
            f"{name} is damaged or cut short ({error}).", "Download or export it again."
        ) from error


_SHRINK = "Resize it first; nothing is gained from pixels beyond the model's size."


def _grey_to_rgb(values: np.ndarray, name: str) -> Tensor:
    """16-bit and float greyscale `(H, W)` to RGB bytes, by the range that type is used with."""
    grey = values.astype(np.float64)
    if not np.isfinite(grey).all():
        raise ImageError(f"{name} holds NaN or infinity.", "Clean it before encoding.")
    low, high = grey.min(), grey.max()
    # Pillow hands 16-bit files over as 16- or 32-bit integers, so integers run to 65535.
    top = 65535.0 if values.dtype.kind in "iu" else 1.0 if high <= 1 else 255.0
    if low < 0 or high > top:
        raise ImageError(
            f"{name} is a {values.dtype} image from {low:.3g} to {high:.3g}.",
            "Floats run to 1 or 255 and integers to 65535; scale it to one of these.",
        )
    return torch.from_numpy((grey * (255 / top)).round().astype(np.uint8)).expand(3, -1, -1).clone()
