"""What `AutoImageProcessor` uses for models of strop."""

from __future__ import annotations

from typing import Any

import torch
from transformers import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from strop.images import Fit, read_square


class StropImageProcessor(BaseImageProcessor):  # type: ignore[misc]
    """Images to the uint8 squares `(B, 3, size, size)` that a tokenizer is called with."""

    model_input_names = ("pixel_values",)

    def __init__(self, size: int = 256, fit: Fit = "squash", **options: Any) -> None:
        super().__init__(**options)
        self.size, self.fit = size, fit

    def preprocess(self, images: Any, **options: Any) -> Any:
        """One image or a list; images are whatever `Tokenizer.encode` takes."""
        listed = images if isinstance(images, list | tuple) else [images]
        squares = [read_square(image, self.size, self.fit) for image in listed]
        kind = options.get("return_tensors")
        return BatchFeature({"pixel_values": torch.stack(squares)}, tensor_type=kind)

    __call__ = preprocess
