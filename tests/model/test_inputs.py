"""Everything that `encode` takes as images gives the same programs."""

from __future__ import annotations

import io
from dataclasses import asdict

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from strop.data import open_dataset
from strop.data.record import Batch, Record
from strop.errors import ConfigError, ImageError
from strop.images import read_square, save_image
from strop.model.inputs import square_batches


@pytest.fixture(scope="module")
def pictures(images):
    return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]


@pytest.fixture(scope="module")
def folder(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for number, image in enumerate(images):
        save_image(folder / f"{number}.png", image)
    return folder


@pytest.fixture(scope="module")
def expected(tokenizer, images):
    return tokenizer.encode(images)


def records(images):
    return [Record(image=image, name=str(number)) for number, image in enumerate(images)]


def files(pictures):
    """Open files of PNGs, as they are after writing: at their end."""
    written = [io.BytesIO() for _ in pictures]
    for picture, file in zip(pictures, written, strict=True):
        picture.save(file, "png")
    return written


FORMS = {
    "tensors": lambda images, pictures, folder: list(images),
    "BHWC array": lambda images, pictures, folder: images.permute(0, 2, 3, 1).numpy(),
    "HWC arrays": lambda images, pictures, folder: [np.asarray(p) for p in pictures],
    "floats": lambda images, pictures, folder: images / 255,
    "open files": lambda images, pictures, folder: files(pictures),
    "generator": lambda images, pictures, folder: (picture for picture in pictures),
    "folder": lambda images, pictures, folder: folder,
    "generator of paths": lambda images, pictures, folder: iter(sorted(folder.glob("*.png"))),
    "mixed": lambda images, pictures, folder: [
        images[0],
        pictures[1],
        folder / "2.png",
        images[3:],
    ],
    "DataLoader of pairs": lambda images, pictures, folder: DataLoader(
        TensorDataset(images, torch.arange(6)), batch_size=4
    ),
    "DataLoader of records": lambda images, pictures, folder: DataLoader(
        records(images), batch_size=4
    ),
    "rows": lambda images, pictures, folder: [{"picture": p, "label": 1} for p in pictures],
    "dataset of records": lambda images, pictures, folder: open_dataset(f"folder:{folder}"),
    "dataset": lambda images, pictures, folder: hugging_face(pictures),
    "image column": lambda images, pictures, folder: hugging_face(pictures)["photo"],
}


def hugging_face(pictures):
    features = datasets.Features({"photo": datasets.Image(), "caption": datasets.Value("string")})
    columns = {"photo": pictures, "caption": ["?"] * len(pictures)}
    return datasets.Dataset.from_dict(columns, features=features)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_programs(tokenizer, images, pictures, folder, expected, form):
    program = tokenizer.encode(FORMS[form](images, pictures, folder), batch=4)
    assert torch.equal(program.codes, expected.codes)
    assert torch.equal(program.lengths, expected.lengths)
    if form in ("folder", "generator of paths"):
        assert program.names == tuple(str(folder / f"{number}.png") for number in range(6))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (iter(()), "There are no images"),
        ([], "There are no images"),
        ([{"text": "a"}], "columns text has no image"),
        ([{"image": 1, "pixel_values": 2}], "several images"),
        (np.zeros((2, 3, 8, 8), np.uint8), r"Give it as \(B, H, W, 3\)"),
        (np.zeros((2, 8, 8, 3), np.int64), "int64"),
        (torch.zeros(2, 8, 8, 3), r"Give it as \(B, 3, H, W\)"),
        ([None], "NoneType is not an image"),
        (3.5, "float is not an image"),
        (io.StringIO("text"), "open file cannot be read .* Give its path or its bytes"),
        (io.BytesIO(b""), "is empty"),
    ],
)
def test_what_is_no_image_is_refused(tokenizer, given, problem):
    with pytest.raises(ImageError, match=problem):
        tokenizer.encode(given)


def test_an_open_file_is_one_image(tokenizer, pictures, expected):
    assert torch.equal(tokenizer.encode(files(pictures)[0]).codes, expected.codes[:1])


def test_an_impossible_batch_is_refused(tokenizer, images):
    for batch in (0, "2", 1.5):
        with pytest.raises(ConfigError, match=r"batch is .* Give a whole number"):
            tokenizer.encode(images, batch=batch)


def test_an_empty_folder_is_named(tokenizer, tmp_path):
    with pytest.raises(Exception, match=f"{tmp_path} holds no images"):
        tokenizer.encode(tmp_path)


def test_records_collate(images):
    batch = next(iter(DataLoader(records(images), batch_size=6)))
    assert isinstance(batch, Batch)
    assert torch.equal(batch.images, images)
    assert batch.names == tuple("012345")
    assert asdict(batch)["semantic"] is None


def test_files_are_read_by_workers_in_order(tmp_path, images):
    """Enough files that worker processes read them; one is damaged."""
    paths = [tmp_path / f"{number:02d}.png" for number in range(24)]
    for number, path in enumerate(paths):
        save_image(path, images[number % 6].roll(number, dims=-1))
    options = {"size": 64, "fit": "squash", "batch": 5, "device": torch.device("cpu")}
    whole = torch.cat(list(square_batches(paths, **options)))
    assert torch.equal(whole, torch.stack([read_square(path, 64) for path in paths]))
    paths[7].write_bytes(b"damaged")
    with pytest.raises(ImageError, match=r"07\.png"):
        list(square_batches(paths, **options))


def test_a_list_of_paths_gives_the_programs_of_its_images(tokenizer, tmp_path, images):
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for path, image in zip(paths, images, strict=True):
        save_image(path, image)
    program = tokenizer.encode(paths)
    assert torch.equal(program.codes, tokenizer.encode(images).codes)
    assert program.names == tuple(map(str, paths))
