"""Reading and resizing of images: every mode, every broken input, limits, fits."""

from __future__ import annotations

import contextlib
import io
import os
import random
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

import strop.images
from strop.errors import ImageError
from strop.images import (
    PAD_COLOUR,
    content_box,
    fit_square,
    interpolate,
    read_image,
    read_square,
    save_image,
    tensor_to_bytes,
    to_tensor,
)


def picture(height: int = 12, width: int = 20, channels: int = 3) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return values[..., 0] if channels == 1 else values


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def as_tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.copy()).permute(2, 0, 1)


# Every mode.


def test_rgb_comes_through_exactly(tmp_path):
    array = picture()
    path = tmp_path / "a.png"
    path.write_bytes(encoded(Image.fromarray(array)))
    for source in (path, str(path), path.read_bytes()):
        image = read_image(source)
        assert torch.equal(image, as_tensor(array))
        assert image.dtype == torch.uint8
        assert image.is_contiguous()


def test_grey_is_repeated():
    grey = picture(channels=1)
    image = read_image(encoded(Image.fromarray(grey)))
    assert torch.equal(image, torch.from_numpy(grey).expand(3, -1, -1))


def test_one_bit_is_black_and_white():
    image = read_image(encoded(Image.fromarray(picture(channels=1) > 128)))
    assert image.unique().tolist() == [0, 255]


def test_cmyk_becomes_rgb():
    red = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    image = read_image(encoded(red, "TIFF"))
    assert image.shape == (3, 8, 8)
    assert image[:, 0, 0].tolist() == [255, 0, 0]


def test_palette_is_looked_up():
    flat = Image.new("RGB", (8, 8), (10, 200, 30)).convert("P", palette=Image.Palette.ADAPTIVE)
    assert flat.mode == "P"
    assert read_image(encoded(flat))[:, 3, 3].tolist() == [10, 200, 30]


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0, [255, 255, 255]), (255, [10, 20, 30]), (51, [206, 208, 210])]
)
def test_transparency_is_laid_over_white(alpha, expected):
    image = Image.new("RGBA", (8, 8), (10, 20, 30, alpha))
    assert read_image(encoded(image))[:, 0, 0].tolist() == expected


def test_a_transparent_colour_is_laid_over_white():
    for mode, colour in (("P", 0), ("L", 7), ("RGB", (1, 2, 3))):
        image = Image.new(mode, (8, 8), colour)
        content = encoded(image, transparency=colour)
        assert read_image(content)[:, 0, 0].tolist() == [255, 255, 255], mode


def test_grey_with_alpha_is_laid_over_white():
    assert read_image(encoded(Image.new("LA", (8, 8), (100, 0)))).unique().tolist() == [255]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_and_not_clipped(kind):
    values = np.array([[0, 128, 256, 25_700], [32_768, 40_000, 65_278, 65_535]], np.uint16)
    image = read_image(encoded(Image.fromarray(values), kind))
    expected = np.round(values / 257).astype(np.uint8)
    assert expected.tolist() == [[0, 0, 1, 100], [128, 156, 254, 255]]
    assert torch.equal(image, torch.from_numpy(expected).expand(3, -1, -1))


def test_sixteen_bit_colour_is_scaled():
    """Pillow cannot write one, so it is put together here."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data)
        return len(data).to_bytes(4, "big") + kind + data + crc.to_bytes(4, "big")

    row = b"\x00" + np.array([0, 32_896, 65_535] * 2, ">u2").tobytes()
    header = (2).to_bytes(4, "big") + (1).to_bytes(4, "big") + bytes([16, 2, 0, 0, 0])
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(row)), chunk(b"IEND", b"")]
    )
    assert read_image(content)[:, 0, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0.0, 0.5], [1.0, 0.25]], [0, 128, 255, 64]),
        ([[0.0, 128.0], [255.0, 2.0]], [0, 128, 255, 2]),
    ],
)
def test_float_grey_is_read_by_its_range(values, expected):
    image = to_tensor(Image.fromarray(np.array(values, np.float32)))
    assert image[0].flatten().tolist() == expected


@pytest.mark.parametrize("values", [[[-1.0, 0.0]], [[0.0, 300.0]], [[np.nan, 0.0]]])
def test_float_grey_of_another_range_is_refused(values):
    with pytest.raises(ImageError):
        to_tensor(Image.fromarray(np.array(values, np.float32)))


def test_the_orientation_tag_is_obeyed():
    array = picture()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held so that the picture needs a quarter turn clockwise
    turned = read_image(encoded(Image.fromarray(array), exif=exif))
    assert torch.equal(turned, as_tensor(np.rot90(array, -1)))


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_frame_is_taken_with_a_warning(kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    with pytest.warns(UserWarning, match=r"is animated \(2 frames\); the first frame is used"):
        image = read_image(content)
    assert image[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_the_usual_formats_are_read(kind):
    flat = Image.new("RGB", (16, 16), (200, 60, 30))
    image = read_image(encoded(flat, kind)).float()
    assert (image - torch.tensor([200.0, 60.0, 30.0])[:, None, None]).abs().max() < 6


# What is broken.


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(ImageError, match=rf"There is no file {tmp_path / 'none.png'}. Check"):
        read_image(tmp_path / "none.png")
    with pytest.raises(ImageError, match=rf"Cannot read {tmp_path} .* Check the path"):
        read_image(tmp_path)


def test_an_empty_file_is_named(tmp_path):
    (tmp_path / "a.png").touch()
    with pytest.raises(ImageError, match=r"a.png is empty \(0 bytes\). Replace the file"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("content", [b"hello", b"\x00" * 100, b"<svg></svg>", b"%PDF-1.4"])
def test_what_is_no_image_is_refused(content):
    with pytest.raises(ImageError, match=r"not an image .* Convert it to PNG, JPEG or WebP"):
        read_image(content)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_truncated_file_is_refused(kind, share):
    content = encoded(Image.fromarray(picture(64, 64)), kind)
    with pytest.raises(ImageError, match=r"again|Convert"):
        read_image(content[: int(share * len(content))])


def test_a_truncated_image_that_someone_else_opened_is_refused(tmp_path):
    """Pillow reads the pixels late: what `Image.open` gives may still be broken."""
    content = encoded(Image.fromarray(picture(64, 64)), "JPEG")
    opened = Image.open(io.BytesIO(content[: len(content) // 2]))
    with pytest.raises(ImageError, match=r"damaged or cut short"):
        to_tensor(opened)


def test_a_decompression_bomb_is_refused_before_it_is_decoded(monkeypatch):
    content = encoded(Image.new("1", (14_000, 14_000)))
    assert len(content) < 200_000
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(ImageError, match=r"too large|limit of 100,000,000 pixels .*Resize"):
        read_image(content)


def test_an_image_over_our_limit_and_under_pillows_is_refused(monkeypatch):
    monkeypatch.setattr(strop.images, "MAX_PIXELS", 100)
    with pytest.raises(ImageError, match=r"12 x 10 pixels, more .* of 100 pixels .*Resize"):
        read_image(encoded(Image.new("RGB", (12, 10))))


def test_big_but_allowed_gives_no_warning(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_image(encoded(Image.new("RGB", (12, 10)))).shape == (3, 10, 12)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_a_damaged_file_gives_an_image_or_an_image_error(kind):
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"exif": exif} if kind in {"JPEG", "PNG", "WEBP", "TIFF"} else {}
    content = encoded(Image.fromarray(picture(24, 24)), kind, **options)
    dice = random.Random(0)
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(dice.randint(1, 6)):
            damaged[dice.randrange(min(len(damaged), 400))] = dice.randrange(256)
        with contextlib.suppress(ImageError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = read_image(bytes(damaged))
            assert image.dtype == torch.uint8
            assert image.shape[0] == 3


@pytest.mark.parametrize("kind", [struct.error, RuntimeError, KeyError, SyntaxError, EOFError])
def test_whatever_a_decoder_raises_becomes_an_image_error(kind, monkeypatch):
    def fail(image):
        raise kind("inside")

    monkeypatch.setattr(Image.Image, "getexif", fail)
    for image in (encoded(Image.new("RGB", (8, 8))), Image.new("RGB", (8, 8))):
        with pytest.raises(ImageError, match=r"damaged or cut short .*inside"):
            to_tensor(image)


# Limits.


@pytest.mark.parametrize("size", [(1, 2_000_000), (65_537, 1)])
def test_a_side_over_the_limit_is_refused_before_it_is_decoded(size, monkeypatch):
    content = encoded(Image.new("L", size))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(ImageError, match=r"100,000,000 pixels or of 65,536 along a side\. Resize"):
        read_image(content)


def test_formats_that_take_more_memory_have_a_lower_limit(monkeypatch):
    monkeypatch.setattr(strop.images, "MAX_PIXELS", 1000)
    webp = encoded(Image.new("RGB", (20, 20)), "WEBP")
    with pytest.raises(ImageError, match="20 x 20 pixels, more than the limit for WEBP of 333"):
        read_image(webp)
    progressive = encoded(Image.new("RGB", (28, 28)), "JPEG", progressive=True)
    with pytest.raises(ImageError, match="the limit for progressive of 600 pixels"):
        read_image(progressive)
    assert read_image(encoded(Image.new("RGB", (28, 28)), "JPEG")).shape == (3, 28, 28)


@pytest.mark.parametrize("kind", ["EPS", "PDF", "PCX", "TGA", "SGI"])
def test_other_formats_are_refused_whatever_the_suffix(kind, tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encoded(Image.new("RGB", (8, 8)), kind))
    with pytest.raises(ImageError, match=r"a\.png is not an image .*JPEG, PNG, WEBP, TIFF, BMP"):
        read_image(path)


def test_postscript_starts_no_other_program(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(encoded(Image.new("RGB", (8, 8)), "EPS"))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    for source in (tmp_path / "a.png", (tmp_path / "a.png").read_bytes()):
        with pytest.raises(ImageError, match="not an image"):
            read_image(source)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
def test_pipes_devices_and_links_to_them_are_refused_before_they_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe.png", tmp_path / "link.png", tmp_path / "zero.png", "/dev/zero"):
        for read in (read_image, lambda path: read_square(path, 16)):
            with pytest.raises(ImageError, match=rf"{path} is not a regular file"):
                read(path)


def test_a_huge_sparse_file_is_refused_by_its_size(tmp_path):
    with (tmp_path / "a.png").open("wb") as file:
        file.write(encoded(Image.new("RGB", (8, 8))))
        file.truncate(20 * 2**30)
    with pytest.raises(ImageError, match=r"21,474,836,480 bytes, more than the limit"):
        read_image(tmp_path / "a.png")


def test_a_path_with_a_nul_is_refused():
    with pytest.raises(ImageError, match="Cannot read"):
        read_image("a\0b.png")


MEASURE = """
import os, resource, sys, warnings
import numpy as np
from PIL import Image, ImageOps
from strop.images import formats, read_square
formats()
read_square(Image.new("RGB", (1100, 1100)), 64)
for path in sys.argv[1:]:
    if os.fork() == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        read_square(path, 64)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(path, grown * 1024, flush=True)
        os._exit(0)
    os.wait()
"""


def save_kinds(folder, side):
    """One square image of each kind, and two lines of as many pixels as they may have."""
    row = np.linspace(0, 255, side, dtype=np.uint8)
    grey = np.broadcast_to(row, (side, side))
    colour = Image.fromarray(np.stack([grey] * 3, axis=-1))
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(grey.astype(np.float32) / 255).save(folder / f"float-{side}.tif")
    Image.fromarray(grey.astype(np.uint16) * 257).save(folder / f"16bit-{side}.png")
    colour.convert("RGBA").save(folder / f"rgba-{side}.png", compress_level=1)
    colour.save(folder / f"turned-{side}.jpg", exif=turned)
    colour.quantize(8).save(folder / f"palette-{side}.png", transparency=3)
    colour.save(folder / f"rotated-{side}.tif", exif=turned)
    colour.convert("CMYK").save(folder / f"cmyk-{side}.jpg")
    # An odd side, so that it is not scaled while it is decoded.
    colour.resize((side + 1, side + 1)).save(folder / f"progressive-{side}.jpg", progressive=True)
    colour.save(folder / f"bmp-{side}.bmp")
    colour.quantize(8).save(folder / f"gif-{side}.gif")
    turning = {"save_all": True, "append_images": [colour.rotate(90)], "method": 0}
    colour.save(folder / f"animated-{side}.webp", **turning)
    for kind, suffix in (("AVIF", "avif"), ("JPEG2000", "jp2")):
        if kind in strop.images.formats():
            colour.save(
                folder / f"{suffix}-{side}.{suffix}", **({"speed": 10} if kind == "AVIF" else {})
            )
    colour.save(folder / f"web-{side}.webp", method=0)
    Image.new("L", (1, 20 * side)).save(folder / f"thin-{side}.png")
    Image.new("L", (20 * side, 1)).save(folder / f"flat-{side}.png")


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
def test_reading_takes_at_most_six_bytes_a_pixel(tmp_path):
    small, large = 1100, 2200  # both are read in strips; the difference leaves out what is fixed
    for side in (small, large):
        save_kinds(tmp_path, side)
    paths = sorted(map(str, tmp_path.iterdir()))
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, *paths],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    taken = {Path(line.split()[0]).stem: int(line.split()[1]) for line in run.stdout.splitlines()}
    assert len(taken) == len(paths)
    kinds = {name.split("-")[0] for name in taken}
    growth = {kind: taken[f"{kind}-{large}"] - taken[f"{kind}-{small}"] for kind in kinds}
    slack = 6 * 2**20  # allocators round
    more = large**2 - small**2
    # Decoders that take more: the limit on pixels is lower by that ratio.
    taking = {"web": "WEBP", "animated": "WEBP", "avif": "AVIF", "jp2": "JPEG2000"}
    taking |= {"progressive": "progressive", "rotated": "rotated TIFF"}
    for name, kind in taking.items():
        if name in growth:
            assert growth.pop(name) < strop.images._DECODER_BYTES[kind] * more + slack, name
    assert growth.pop("thin") < slack
    assert growth.pop("flat") < slack
    assert {kind: size / more for kind, size in growth.items() if size > 6 * more + slack} == {}


@pytest.mark.parametrize(("height", "width"), [(1300, 1700), (2600, 900), (900, 2600), (70, 90)])
@pytest.mark.parametrize("fit", ["squash", "crop", "pad"])
def test_large_images_are_resized_in_strips_with_the_same_result(height, width, fit):
    array = picture(height, width)
    expected = as_tensor(array)
    if fit == "crop":
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        expected = expected[:, top : top + side, left : left + side]
    left, top, right, bottom = content_box(width, height, 96, fit)
    expected = interpolate(expected.float(), bottom - top, right - left)
    expected = expected.round().clamp(0, 255).to(torch.uint8)
    for square in (
        read_square(encoded(Image.fromarray(array), compress_level=1), 96, fit),
        read_square(Image.fromarray(array), 96, fit),
        read_square(array, 96, fit),
        fit_square(as_tensor(array)[None], 96, fit)[0],
    ):
        assert torch.equal(square[:, top:bottom, left:right], expected)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("height", "width"), [(1200, 1000), (7, 5)])
def test_strips_follow_the_orientation_tag(orientation, height, width):
    array = picture(height, width)
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(Image.fromarray(array), exif=exif, compress_level=1)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    assert torch.equal(read_image(content), as_tensor(np.array(upright)))
    assert torch.equal(read_square(content, 64), fit_square(as_tensor(np.array(upright)), 64))


def test_one_column_is_resized_right():
    column = torch.rand(3, 200, 1)
    expected = interpolate(column.expand(-1, -1, 2), 64, 2)[..., :1]
    assert torch.equal(interpolate(column, 64, 1), expected)


# Tensors and arrays.


def test_tensors_arrays_and_pil_agree():
    array = picture()
    expected = as_tensor(array)
    for image in (
        array,
        array[:, ::-1][:, ::-1],
        array.astype(np.float64) / 255,
        Image.fromarray(array),
        expected,
        expected.float() / 255,
        (expected.double() / 255),
    ):
        assert torch.equal(to_tensor(image), expected)


def test_a_read_only_array_gives_no_warning():
    array = np.asarray(Image.fromarray(picture()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(to_tensor(array), as_tensor(array))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.zeros(4, 8, 8), r"\(4, 8, 8\) is not an RGB image. Give it as \(3, H, W\)"),
        (torch.zeros(8, 8), r"\(8, 8\)"),
        (torch.zeros(1, 3, 8, 8), r"\(1, 3, 8, 8\)"),
        (torch.zeros(3, 0, 8), r"no pixels"),
        (torch.full((3, 8, 8), torch.nan), r"NaN or infinity. Clean it"),
        (torch.full((3, 8, 8), -torch.inf), r"NaN or infinity"),
        (torch.full((3, 8, 8), 2.0), r"from 2 to 2.*divide by 255"),
        (torch.full((3, 8, 8), -0.5), r"from -0.5 to -0.5.*undo a mean and std"),
        (torch.zeros(3, 8, 8, dtype=torch.int32), r"int32 is ambiguous. Give uint8"),
        (torch.zeros(3, 8, 8, dtype=torch.bool), r"bool is ambiguous"),
        (torch.zeros(3, 8, 8, dtype=torch.complex64), r"complex64 is ambiguous"),
        (np.zeros((3, 8, 8), np.uint8), r"\(3, 8, 8\) is not an RGB image. Give it as \(H, W, 3\)"),
        (np.zeros((8, 8, 4), np.uint8), r"\(8, 8, 4\)"),
        (np.zeros((8, 8, 3), np.uint16), r"uint16 is ambiguous"),
        (np.zeros((8, 8, 3), object), r"object .*Give uint8"),
        (np.zeros((8, 8, 3), "U1"), r"<U1 .*Give uint8"),
        (None, r"A NoneType is not an image. Give a path, bytes"),
        (3, r"An int is not an image"),
        ([1, 2], r"A list is not an image"),
    ],
)
def test_what_is_not_an_rgb_image_is_refused(image, message):
    with pytest.raises(ImageError, match=message):
        to_tensor(image)


def test_floats_are_rounded_and_a_hair_outside_is_let_in():
    values = torch.tensor([-1e-4, 0.0, 0.5, 0.999, 1.0001]).expand(3, 1, -1)
    assert tensor_to_bytes(values)[0, 0].tolist() == [0, 0, 128, 255, 255]


# Fitting.


def test_the_right_size_is_left_alone():
    image = as_tensor(picture(16, 16))
    for fit in ("squash", "crop", "pad"):
        assert torch.equal(fit_square(image, 16, fit), image)


def test_squash_keeps_the_edges_and_crop_the_middle():
    image = torch.zeros(3, 16, 48, dtype=torch.uint8)
    image[..., :16], image[..., 32:] = 100, 200
    squashed = fit_square(image, 48, "squash")
    assert squashed[0, 0, [0, 24, 47]].tolist() == [100, 0, 200]
    assert fit_square(image, 16, "crop").unique().tolist() == [0]
    tall = image.transpose(1, 2)
    assert fit_square(tall, 16, "crop").unique().tolist() == [0]


@pytest.mark.parametrize("shape", [(1, 1), (3, 50), (50, 3), (17, 16)])
@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_any_shape_becomes_a_square_of_bytes(shape, fit):
    image = torch.full((2, 3, *shape), 77, dtype=torch.uint8)
    square = fit_square(image, 32, fit)
    assert square.shape == (2, 3, 32, 32)
    assert square.dtype == torch.uint8
    assert square.unique().tolist() == [77]


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [
        (48, 32, (0, 5, 32, 26)),
        (32, 48, (5, 0, 26, 32)),
        (20, 20, (0, 0, 32, 32)),
        (1000, 1, (0, 15, 32, 16)),
    ],
)
def test_pad_centres_the_picture_in_the_mean_colour(width, height, box):
    assert content_box(width, height, 32, "pad") == box
    for fit in ("squash", "crop"):
        assert content_box(width, height, 32, fit) == (0, 0, 32, 32)
    square = fit_square(torch.full((2, 3, height, width), 9, dtype=torch.uint8), 32, "pad")
    assert square.shape == (2, 3, 32, 32)
    inside = torch.zeros(32, 32, dtype=torch.bool)
    inside[box[1] : box[3], box[0] : box[2]] = True
    assert square[..., inside].unique().tolist() == [9]
    padding = square[..., ~inside]
    assert torch.equal(padding, torch.tensor(PAD_COLOUR)[:, None].expand_as(padding))


def test_shrinking_is_antialiased():
    """Stripes of one pixel become grey, not stripes of another width."""
    stripes = torch.zeros(3, 64, 64, dtype=torch.uint8)
    stripes[..., ::2] = 255
    small = fit_square(stripes, 16)[..., 2:-2].float()
    assert small.std() < 8
    assert 110 < small.mean() < 145


def test_a_bright_edge_does_not_wrap_around():
    """Bicubic overshoots past 255, which as a byte would be black."""
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    image[..., 4:] = 255
    wide = fit_square(image, 64)
    assert wide[..., 40:].min() > 200
    assert wide[..., :24].max() < 55


def test_saved_images_come_back(tmp_path):
    image = as_tensor(picture())
    for kind in (image, image.float() / 255):
        save_image(tmp_path / "a.png", kind)
        assert torch.equal(read_image(tmp_path / "a.png"), image)
