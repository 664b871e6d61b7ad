"""Images in requests and responses: decoding with limits, encoding in base64."""

from __future__ import annotations

import base64
import binascii
import io
from threading import Semaphore
from typing import Any

from PIL import Image
from torch import Tensor

from strop.errors import ImageError
from strop.images import MAX_SIDE, fit_square, read_square
from strop.model.tokenizer import TokenizerConfig

MAX_BYTES = 16 * 2**20
"""Size of an image file."""
MAX_PIXELS = 25_000_000
"""Pixels of a decoded image."""
FORMATS = ("PNG", "JPEG", "WEBP")
"""Detected from the content. Their headers hold the size of the image."""

# The memory of decoding grows with the image: at most two at a time.
_decoders = Semaphore(2)


def read_upload(text: str, config: TokenizerConfig) -> Tensor:
    """An image file in base64 to the model's uint8 square `(3, H, H)`."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError("The image is not base64.", "Send the file's bytes in base64.") from error
    if len(content) > MAX_BYTES:
        raise ImageError(
            f"The image has {len(content):,} bytes, more than {MAX_BYTES:,}.", "Send a smaller one."
        )
    with _decoders:
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise ImageError(
                f"The image has more than {MAX_PIXELS:,} pixels.",
                "Resize it first. The model reads a much smaller image.",
            ) from error
        except Exception as error:  # Pillow's parsers raise many types
            raise ImageError(
                "The file is not an image of a known format.", "Send a PNG, a JPEG or a WebP."
            ) from error
        width, height = image.size
        if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
            raise ImageError(
                f"The image has {width} x {height} pixels, more than {MAX_PIXELS:,} pixels or "
                f"{MAX_SIDE:,} along a side.",
                "Resize it first. The model reads a much smaller image.",
            )
        return read_square(image, config.image_size, config.fit)


def png(image: Tensor) -> str:
    """uint8 `(3, H, W)` to a PNG in base64."""
    return _encoded(image, format="PNG", compress_level=1)


def thumbnail(image: Tensor, side: int = 128) -> str:
    """uint8 `(3, H, H)` to a small WebP in base64."""
    return _encoded(fit_square(image, min(side, image.shape[-1])), format="WEBP", quality=80)


def _encoded(image: Tensor, **options: Any) -> str:
    file = io.BytesIO()
    Image.fromarray(image.cpu().permute(1, 2, 0).contiguous().numpy()).save(file, **options)
    return base64.b64encode(file.getvalue()).decode()
