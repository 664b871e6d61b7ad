"""Large JPEG files are scaled while they are decoded: how far the squares may differ."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from strop.images import DRAFT, fit_square, read_square, read_square_and_size, to_tensor

SIZE = 64
MEAN, MOST = 0.5, 8  # tolerances, in values of 255


def jpeg(width: int, height: int, orientation: int = 1) -> bytes:
    """A photograph of this size."""
    photo = Image.fromarray(load_sample_image("china.jpg")).resize((width, height))
    exif = Image.Exif()
    exif[274] = orientation
    buffer = io.BytesIO()
    photo.save(buffer, "JPEG", quality=95, exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize("fit", ["squash", "crop", "pad"])
@pytest.mark.parametrize("shape", [(640, 424), (572, 432), (1304, 704), (2000, 1400)])
def test_a_scaled_file_gives_nearly_the_same_square(shape, fit):
    source = jpeg(*shape)
    exact = fit_square(to_tensor(source), SIZE, fit)
    difference = (read_square(source, SIZE, fit).float() - exact.float()).abs()
    assert 0 < difference.mean() < MEAN
    assert difference.max() <= MOST


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_and_size_are_those_of_the_file(orientation):
    source = jpeg(640, 424, orientation)
    square, size = read_square_and_size(source, SIZE)
    assert size == ((424, 640) if orientation > 4 else (640, 424))
    difference = square.float() - fit_square(to_tensor(source), SIZE).float()
    assert difference.abs().mean() < MEAN


@pytest.mark.parametrize("shape", [(640, 2 * DRAFT * SIZE - 2), (641, 424), (640, 425)])
def test_smaller_and_odd_files_are_read_exactly(shape):
    source = jpeg(*shape)
    assert torch.equal(read_square(source, SIZE), fit_square(to_tensor(source), SIZE))


def test_other_formats_are_read_exactly():
    pixels = np.random.default_rng(0).integers(0, 256, (400, 500, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    exact = fit_square(to_tensor(buffer.getvalue()), SIZE)
    assert torch.equal(read_square(buffer.getvalue(), SIZE), exact)
