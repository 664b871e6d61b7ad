"""Read and resize images: files, bytes, PIL images, arrays and tensors to uint8 `(3, H, W)`."""

from __future__ import annotations

import functools
import io
import os
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from strop.config import in_range, typed
from strop.errors import ImageError, expect, parsing
from strop.files import PathLike, atomic_path

Fit = Literal["squash", "crop", "pad"]
ImageLike = str | os.PathLike[str] | bytes | Image.Image | np.ndarray | Tensor

MAX_PIXELS = 100_000_000
MAX_SIDE = 65_536
MAX_FILE_BYTES = 2**30
"""Images and files beyond these limits are refused before they are decoded."""

BYTES_PER_PIXEL = 6
"""Memory per pixel that reading an image into a square takes at most, but for `_DECODER_BYTES`."""

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"}
    | {".avif", ".jp2", ".j2k"}
)
"""Suffixes of the files that count as images when a folder is searched."""

PAD_COLOUR = (124, 116, 104)
"""The colour of padding: the mean of ImageNet, which teachers normalise to about zero."""

DRAFT = 2
"""A JPEG file is scaled by 1/2, 1/4 or 1/8 while it is decoded if its sides stay at least this many
times as long as those of the square. Values of the square change by less than 0.5 of 255 on
average, because the resizing that follows still averages over several pixels."""

_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "AVIF", "JPEG2000")
# Bytes per pixel that Pillow takes to decode these formats, where more than BYTES_PER_PIXEL: no
# caller can change that, so the limit on pixels is lower by that ratio.
_DECODER_BYTES = {"WEBP": 18, "AVIF": 10, "JPEG2000": 20, "progressive": 10, "rotated TIFF": 14}
_SMALL = 2**20  # pixels of an image that is converted at once; larger ones go in strips
_STRIP = 2**18  # pixels of a strip
_SHRINK = "Resize it first; the model sees a much smaller square."

Window = Callable[[int, int, int, int], Tensor]
"""From (top, bottom, left, right) to that part of an image, uint8 (..., 3, h, w)."""


@functools.cache
def formats() -> tuple[str, ...]:
    """The image formats that are read. Pillow may be built without some of them."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def read_image(image: str | os.PathLike[str] | bytes | Image.Image, name: str = "") -> Tensor:
    """An image file, its bytes or a PIL image of any mode to RGB `(3, H, W)` uint8.

    Errors name it `name`. Orientation tags are applied, transparency is blended over white, 16-bit
    values are scaled to 8 bits, and the first frame of an animation is taken (with a warning).
    """
    name = name or _name(image)
    with open_image(image, name) as opened, _decoding(name):
        height, width, window = _decode(opened, name)
        pixels = torch.empty(3, height, width, dtype=torch.uint8)
        for top, bottom in _chunks(height, width):
            pixels[:, top:bottom] = window(top, bottom, 0, width)
        return pixels


def read_square(image: ImageLike, size: int, fit: Fit = "squash") -> Tensor:
    """Any single image to `(3, size, size)` uint8.

    The result equals `fit_square(to_tensor(image), size, fit)`, but large JPEG files are scaled
    down while they are decoded; see `DRAFT`. Large images are converted in strips: the peak memory
    is at most `MAX_PIXELS * BYTES_PER_PIXEL`, and what the square takes.
    """
    return read_square_and_size(image, size, fit)[0]


def read_square_and_size(
    image: ImageLike, size: int, fit: Fit = "squash", name: str = ""
) -> tuple[Tensor, tuple[int, int]]:
    """What `read_square` returns, with the (width, height) of the upright image."""
    check_square(size, fit)
    if not isinstance(image, str | os.PathLike | bytes | Image.Image):
        pixels = to_tensor(image)
        return fit_square(pixels, size, fit), (pixels.shape[2], pixels.shape[1])
    name = name or _name(image)
    with open_image(image, name) as opened, _decoding(name):
        stored = opened.size
        scaled = opened is not image and _scale_while_decoding(opened, size, fit)
        height, width, window = _decode(opened, name)
        square = _fit(window, height, width, size, fit)
        if scaled:
            width, height = stored if (width, height) == opened.size else stored[::-1]
        return square, (width, height)


def _scale_while_decoding(image: Image.Image, size: int, fit: Fit) -> bool:
    """Let a JPEG file be decoded at a fraction of its size; see `DRAFT`.

    Only where the fractions of sides and margins are whole numbers, or the picture would move.
    """
    width, height = image.size
    for scale in (8, 4, 2):
        whole = width % scale == height % scale == 0
        whole = whole and (fit != "crop" or (width - height) % (2 * scale) == 0)
        if whole and min(width, height) >= scale * DRAFT * size:
            return image.draft(None, (width // scale, height // scale)) is not None
    return False


@contextmanager
def open_image(
    source: str | os.PathLike[str] | bytes | Image.Image, name: str = ""
) -> Iterator[Image.Image]:
    """Open an image with its size checked. Its pixels are decoded later: they may be damaged."""
    if isinstance(source, Image.Image):
        _check_size(source, name)
        yield source
        return
    name = name or _name(source)
    with ExitStack() as opened:
        with _decoding(name), warnings.catch_warnings():
            # Pillow warns between one and two times its own limit. Ours is checked below.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            stream = io.BytesIO(source) if isinstance(source, bytes) else _open_file(source, name)
            opened.enter_context(stream)
            if source == b"":
                raise ImageError(f"{name} is empty (0 bytes).", "Replace the file.")
            image = opened.enter_context(Image.open(stream, formats=formats()))
            _check_size(image, name)
        yield image


def _open_file(path: str | os.PathLike[str], name: str) -> IO[bytes]:
    """Open a regular file of a sensible size. Pipes and devices are not opened."""
    try:
        status = Path(path).stat()
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(0, "Is a directory")
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(
                f"{name} is not a regular file but a pipe, socket or device.", "Name a file."
            )
        if status.st_size == 0:
            raise ImageError(f"{name} is empty (0 bytes).", "Replace the file.")
        if status.st_size > MAX_FILE_BYTES:
            raise ImageError(
                f"{name} has {status.st_size:,} bytes, more than the limit of {MAX_FILE_BYTES:,}.",
                _SHRINK,
            )
        return Path(path).open("rb")
    except FileNotFoundError as error:
        remedy = "Addresses are not fetched: download it." if "://" in name else "Check the path."
        raise ImageError(f"There is no file {name}.", remedy) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ImageError(
            f"Cannot read {name} ({getattr(error, 'strerror', None) or error}).",
            "Check the path and its permissions.",
        ) from error


def _name(source: object) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else "the image"


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    kind = image.format or ""
    if image.info.get("progressive"):
        kind = "progressive"
    elif kind == "TIFF" and image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        kind = "rotated TIFF"
    limit = MAX_PIXELS * BYTES_PER_PIXEL // _DECODER_BYTES.get(kind, BYTES_PER_PIXEL)
    if width * height > limit or max(width, height) > MAX_SIDE:
        which = f" for {kind}" if limit < MAX_PIXELS else ""
        raise ImageError(
            f"{name} has {width} x {height} pixels, more than the limit{which} of {limit:,} pixels "
            f"or of {MAX_SIDE:,} along a side.",
            _SHRINK,
        )
    if width == 0 or height == 0:
        raise ImageError(f"{name} has no pixels ({width} x {height}).", "Replace the image.")


# How the stored image differs from the upright one, by EXIF orientation: its axes are swapped, or
# it is mirrored from left to right, or flipped from top to bottom.
_TURNS = {2: "m", 3: "mf", 4: "f", 5: "s", 6: "sf", 7: "smf", 8: "sm"}
_DEEP = {"I", "I;16", "I;16L", "I;16B", "F"}
"""Modes of greyscale with more than 8 bits."""


def _decode(image: Image.Image, name: str) -> tuple[int, int, Window]:
    """Decode `image`: the height and width of the upright image, and a window onto it as RGB."""
    if getattr(image, "n_frames", 1) > 1 and image.format in {"GIF", "WEBP", "PNG"}:
        warnings.warn(
            f"{name} is animated ({image.n_frames} frames); the first frame is used.",  # type: ignore[attr-defined]
            stacklevel=4,
        )
    image.load()
    across, down = image.size
    # After loading: Pillow's TIFF reader applies the tag itself and removes it.
    turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1), "")
    white = _white(image, name) if image.mode in _DEEP else 0.0

    def window(top: int, bottom: int, left: int, right: int) -> Tensor:
        if "s" in turn:
            top, bottom, left, right = left, right, top, bottom
        if "m" in turn:
            left, right = across - right, across - left
        if "f" in turn:
            top, bottom = down - bottom, down - top
        box = (left, top, right, bottom)
        part = image if box == (0, 0, across, down) else image.crop(box)
        pixels = _to_rgb(part, white)
        if turn:
            pixels = pixels.flip([axis for mark, axis in (("m", 2), ("f", 1)) if mark in turn])
        return pixels.transpose(1, 2) if "s" in turn else pixels

    return (across, down, window) if "s" in turn else (down, across, window)


def _to_rgb(image: Image.Image, white: float) -> Tensor:
    """An image to `(3, H, W)` uint8, with transparency blended over white.

    `white` is the value of white in greyscale of more than 8 bits, else 0.
    """
    if white:
        values = np.asarray(image).astype(np.float64) * (255 / white)
        return torch.from_numpy(values.round().astype(np.uint8)).expand(3, -1, -1)
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()


def _white(image: Image.Image, name: str) -> float:
    """The value that stands for white in 16-bit and float greyscale, from the range in use."""
    width, height = image.size
    strips = (np.asarray(image.crop((0, a, width, b))) for a, b in _chunks(height, width))
    ranges = np.array([(strip.min(), strip.max()) for strip in strips], np.float64)
    if not np.isfinite(ranges).all():
        raise ImageError(f"{name} holds NaN or infinity.", "Clean it before encoding.")
    low, high = ranges.min(), ranges.max()
    # Pillow returns 16-bit files as 16- or 32-bit integers, so integers run to 65535.
    white = 65535.0 if image.mode != "F" else 1.0 if high <= 1 else 255.0
    if low < 0 or high > white:
        raise ImageError(
            f"{name} is a greyscale image from {low:.3g} to {high:.3g}.",
            "Floats run to 1 or 255 and integers to 65535; scale it to one of these.",
        )
    return white


def _chunks(length: int, other: int) -> Iterator[tuple[int, int]]:
    """Ranges that cut `length` rows of `other` pixels into strips of about `_STRIP` pixels."""
    step = max(1, _STRIP // other)
    for start in range(0, length, step):
        yield start, min(start + step, length)


def to_tensor(image: ImageLike) -> Tensor:
    """Any single image to `(3, H, W)` uint8.

    Tensors are `(3, H, W)`, uint8 in [0, 255] or float in [0, 1]. Arrays are `(H, W, 3)` of the
    same types.
    """
    if isinstance(image, str | os.PathLike | bytes | Image.Image):
        return read_image(image)
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
    remedy = "Give a path, bytes, a PIL image, an array (H, W, 3) or a tensor (3, H, W)."
    expect(image, Tensor, "an image", ImageError, remedy)
    if image.ndim != 3 or image.shape[0] != 3:
        raise ImageError(
            f"A tensor of shape {tuple(image.shape)} is not an RGB image.",
            "Give it as (3, H, W), or a batch as (B, 3, H, W).",
        )
    return tensor_to_bytes(image)


def tensor_to_bytes(images: Tensor) -> Tensor:
    """Images `(..., 3, H, W)`, uint8 or float in [0, 1], to uint8; others are refused."""
    if images.numel() == 0 or images.is_meta:
        raise ImageError(
            f"A tensor of shape {tuple(images.shape)} on {images.device} has no pixels.",
            "Give at least one.",
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


def check_square(size: int, fit: Fit) -> None:
    """Refuse a size or a fit that no square has."""
    typed(Fit, fit, "fit")
    in_range(size, "size", 1)


def content_box(width: int, height: int, size: int, fit: Fit) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of the picture within the square of `size`.

    It is the whole square except for `pad`, where the rest of the square is padding.
    """
    if fit != "pad":
        return 0, 0, size, size
    longest = max(width, height)
    wide, high = (max(1, round(side * size / longest)) for side in (width, height))
    left, top = (size - wide) // 2, (size - high) // 2
    return left, top, left + wide, top + high


def source_box(width: int, height: int, fit: Fit) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of the part of a picture that `fit` keeps."""
    if fit != "crop":
        return 0, 0, width, height
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def fit_square(images: Tensor, size: int, fit: Fit = "squash", *, in_bytes: bool = False) -> Tensor:
    """uint8 `(..., 3, H, W)` to `(..., 3, size, size)`, antialiased.

    `squash` keeps the whole picture but not its aspect ratio. `crop` scales the short side to
    `size` and keeps the centre. `pad` scales the long side to `size` and fills the rest with
    `PAD_COLOUR`; `content_box` tells where the picture is. `in_bytes` resizes bytes, which is
    several times as fast as floats and rounds differently.
    """
    check_square(size, fit)
    height, width = images.shape[-2:]
    if (height, width) == (size, size):
        return images
    flat = images.reshape(-1, 3, height, width)

    def window(top: int, bottom: int, left: int, right: int) -> Tensor:
        return flat[..., top:bottom, left:right]

    square = _fit(window, height, width, size, fit, in_bytes)
    return square.reshape(*images.shape[:-2], size, size)


def _fit(
    window: Window, height: int, width: int, size: int, fit: Fit, in_bytes: bool = False
) -> Tensor:
    left, top, right, bottom = source_box(width, height, fit)

    def kept(a: int, b: int, c: int, d: int) -> Tensor:
        return window(top + a, top + b, left + c, left + d)

    box = content_box(width, height, size, fit)
    shape = (box[3] - box[1], box[2] - box[0])
    if in_bytes:
        picture = interpolate(window(top, bottom, left, right), *shape)
    else:
        picture = _resize(kept, bottom - top, right - left, *shape)
    if shape == (size, size):
        return picture
    square = picture.new_tensor(PAD_COLOUR)[:, None, None].repeat(
        *picture.shape[:-3], 1, size, size
    )
    square[..., box[1] : box[3], box[0] : box[2]] = picture
    return square


def _resize(window: Window, height: int, width: int, rows: int, columns: int) -> Tensor:
    """Resize to `(..., 3, rows, columns)` uint8, in strips if the image is large.

    torch resizes along the width first, row by row, so strips of rows give the same values. Where
    that would need much more memory than the image, the height is reduced first.
    """
    if (height, width) == (rows, columns):
        return window(0, height, 0, width).contiguous()
    if max(width, columns) * height <= _SMALL:
        resized = interpolate(window(0, height, 0, width).float(), rows, columns)
        return resized.round().clamp(0, 255).to(torch.uint8)
    # Allocated before the strips, which would otherwise fragment the heap.
    if columns * height <= max(2 * _SMALL, width * height // 12):
        halfway = _empty_like(window, height, columns)
        for top, bottom in _chunks(height, max(width, columns)):
            strip = window(top, bottom, 0, width).float()
            halfway[..., top:bottom, :] = interpolate(strip, bottom - top, columns)
    else:
        halfway = _empty_like(window, rows, width)
        for left, right in _chunks(width, height):
            strip = window(0, height, left, right).float()
            halfway[..., left:right] = interpolate(strip, rows, right - left)
    return interpolate(halfway, rows, columns).round().clamp(0, 255).to(torch.uint8)


def _empty_like(window: Window, rows: int, columns: int) -> Tensor:
    pixel = window(0, 1, 0, 1)
    return pixel.new_empty(*pixel.shape[:-2], rows, columns, dtype=torch.float32)


def interpolate(images: Tensor, rows: int, columns: int) -> Tensor:
    """Bicubic with antialiasing, `(..., 3, H, W)` to `(..., 3, rows, columns)`.

    `_resize` calls it with floats, because the byte kernels of CPU and GPU round differently.
    """
    if images.shape[-2:] == (rows, columns):
        return images
    flat = images.reshape(-1, *images.shape[-3:]).contiguous()
    if images.shape[-1] == columns == 1:  # torch 2.13 returns wrong values for this one shape
        resized = interpolate(flat.transpose(-1, -2).contiguous(), 1, rows).transpose(-1, -2)
    else:
        resized = F.interpolate(flat, (rows, columns), mode="bicubic", antialias=True)
    return resized.reshape(*images.shape[:-2], rows, columns)


def save_image(path: PathLike, image: Tensor) -> None:
    """Write `(3, H, W)`, uint8 or float in [0, 1], in the format of the suffix, atomically."""
    pixels = tensor_to_bytes(image.detach().cpu()).permute(1, 2, 0).contiguous().numpy()
    with atomic_path(path) as temporary:
        Image.fromarray(pixels).save(temporary)


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    """Convert the exceptions of Pillow to `ImageError`."""
    damaged = f"{name} is damaged or cut short"
    with parsing(ImageError, damaged, "Download or export it again."):
        try:
            yield
        except UnidentifiedImageError as error:
            raise ImageError(
                f"{name} is not an image in a format that strop reads ({', '.join(formats())}).",
                "Convert it to PNG, JPEG or WebP.",
            ) from error
        except Image.DecompressionBombError as error:
            raise ImageError(f"{name} is too large to decode ({error}).", _SHRINK) from error
