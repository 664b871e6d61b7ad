"""Whole datasets as batches, and that rendering on a GPU gives what workers give."""

from __future__ import annotations

import pytest
import torch

from strop.data import ScenesDataset
from strop.data.spec import open_dataset
from strop.data.stream import checked_images, image_batches, record_batches
from strop.data.subset import subset
from strop.errors import DataError
from strop.images import save_image


@pytest.fixture
def scenes():
    return ScenesDataset(5, size=32, seed=3)


def test_all_images_in_order(scenes):
    batches = list(image_batches(scenes, size=32, fit="squash", batch=2))
    assert [len(part) for part in batches] == [2, 2, 1]
    expected = torch.stack([scenes[index].image for index in range(5)])
    assert torch.equal(torch.cat(batches), expected)


def test_records_keep_their_parts(scenes):
    batches = list(record_batches(scenes, size=32, fit="squash", batch=3))
    assert [len(part) for part in batches] == [3, 2]
    assert batches[1].scenes[0] == scenes[3].scene
    assert torch.equal(batches[0].depth[2], scenes[2].depth)


def test_broken_records_are_left_out_and_named(tmp_path):
    for name in ("a", "c"):
        save_image(tmp_path / f"{name}.png", torch.rand(3, 32, 32))
    (tmp_path / "b.png").write_bytes(b"no picture")
    dataset = open_dataset(f"folder:{tmp_path}")
    with pytest.warns(UserWarning, match=r"b\.png"):
        (batch,) = record_batches(dataset, size=32, fit="squash")
    assert batch.indices.tolist() == [0, 2]


def test_a_dataset_without_an_image_is_refused(scenes):
    with pytest.raises(DataError, match=r"holds no image\. Name a dataset that holds some"):
        next(image_batches(subset(scenes, []), size=32, fit="squash"))


def test_a_tensor_is_let_through_if_it_holds_images(scenes):
    images = torch.stack([scenes[index].image for index in range(5)])
    assert checked_images(images, 32) is images
    for wrong in (images / 255, images[0], images[:0], images[..., :16], torch.tensor(3)):
        with pytest.raises(DataError, match=r"uint8 of shape \(n, 3, 32, 32\), at least one"):
            checked_images(wrong, 32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_renders_the_same_scenes(scenes):
    there = list(record_batches(scenes, size=32, fit="squash", batch=3, device="cuda"))
    here = list(record_batches(scenes, size=32, fit="squash", batch=3))
    for a, b in zip(there, here, strict=True):
        assert a.images.device.type == "cpu"
        assert a.names == b.names
        assert (a.images.float() - b.images.float()).abs().mean() < 1
        assert (a.instance == b.instance).float().mean() > 0.99
