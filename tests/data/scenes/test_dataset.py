from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from strop.data.record import Dataset
from strop.data.scenes import ScenesDataset, read_scenes, write_scenes
from strop.data.scenes import write as writing
from strop.errors import DataError


def test_records():
    dataset = ScenesDataset(5, seed=1, size=32)
    assert isinstance(dataset, Dataset)
    assert len(dataset) == 5
    record = dataset[3]
    assert record.image.shape == (3, 32, 32)
    assert record.image.dtype == torch.uint8
    assert record.semantic.shape == record.instance.shape == record.depth.shape == (32, 32)
    assert record.depth.dtype == torch.float32
    assert record.labels.shape == (len(dataset.label_names),)
    shown = {dataset.classes[i] for i in record.semantic.unique().tolist()} - {"background"}
    held = {n for n, there in zip(dataset.label_names, record.labels, strict=True) if there}
    told = {f"{o['material']} {o['shape']}" for o in record.scene["objects"]}
    assert held == told
    assert shown <= held
    assert record.scene["image_index"] == 3
    assert torch.equal(dataset[-2].image, record.image)
    with pytest.raises(IndexError):
        dataset[5]


def test_classes_by_color():
    record = (dataset := ScenesDataset(2, size=32, by="color"))[0]
    told = {o["color"] for o in record.scene["objects"]}
    held = {n for n, there in zip(dataset.label_names, record.labels, strict=True) if there}
    assert held == told


def test_batches_equal_records():
    dataset = ScenesDataset(5, seed=1, size=24)
    batches = list(dataset.batches(2))
    assert [b.shape[0] for b in batches] == [2, 2]
    whole = torch.cat(list(dataset.batches(2, drop_last=False)))
    assert torch.equal(whole, torch.stack([dataset[i].image for i in range(5)]))
    assert torch.equal(torch.cat(list(dataset.batches(2, first=3))), whole[3:])
    assert torch.equal(dataset.images([4, 0]), whole[[4, 0]])


def test_start_shifts_the_scenes():
    assert torch.equal(
        ScenesDataset(2, size=24, start=3)[0].image, ScenesDataset(9, size=24)[3].image
    )


@pytest.mark.parametrize("options", [{"n": -1}, {"by": "taste"}, {"size": 0}])
def test_nonsense_is_refused(options):
    with pytest.raises(DataError):
        ScenesDataset(**options)


def files(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_writing_clevrs_layout(tmp_path):
    path = write_scenes(tmp_path, 3, 32, seed=5, split="val", progress=False)
    assert path == tmp_path / "scenes" / "CLEVR_val_scenes.json"
    _, described = read_scenes(path, 32)
    dataset = ScenesDataset(3, seed=5, size=32, split="val")
    content = json.loads(path.read_text())
    assert content["info"]["split"] == "val"
    for index, scene in enumerate(described):
        record = dataset[index]
        assert scene == json.loads(json.dumps(record.scene))
        name = scene["image_filename"]
        image = np.array(Image.open(tmp_path / "images" / "val" / name))
        assert np.array_equal(image, record.image.permute(1, 2, 0).numpy())
        mask = np.array(Image.open(tmp_path / "masks" / "val" / name))
        assert np.array_equal(mask, record.instance.numpy())
        depth = np.array(Image.open(tmp_path / "depth" / "val" / name))
        assert depth.dtype == np.uint16
        assert np.abs(depth / 1000 - record.depth.numpy()).max() < 0.00051 or (
            record.depth.max() > 65
        )


def test_interrupted_writing_goes_on_and_ends_the_same(tmp_path, monkeypatch):
    write_scenes(tmp_path / "whole", 5, 16, batch_size=2, progress=False)
    save, count = writing._save, 0

    def failing(pixels, path):
        nonlocal count
        count += 1
        if count == 8:  # in the middle of the third scene
            raise KeyboardInterrupt
        save(pixels, path)

    monkeypatch.setattr(writing, "_save", failing)
    with pytest.raises(KeyboardInterrupt):
        write_scenes(tmp_path / "cut", 5, 16, batch_size=2, progress=False)
    assert not (tmp_path / "cut" / "scenes" / "CLEVR_train_scenes.json").exists()
    monkeypatch.setattr(writing, "_save", save)
    write_scenes(tmp_path / "cut", 5, 16, batch_size=2, progress=False)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_more_scenes_can_be_added_but_not_others(tmp_path):
    write_scenes(tmp_path / "a", 2, 16, progress=False)
    before = files(tmp_path / "a")
    path = write_scenes(tmp_path / "a", 4, 16, progress=False)
    assert len(json.loads(path.read_text())["scenes"]) == 4
    after = files(tmp_path / "a")
    assert all(after[name] == data for name, data in before.items() if name.suffix == ".png")
    for options in ({"seed": 1}, {"size": 24}):
        with pytest.raises(DataError, match=next(iter(options))):
            write_scenes(tmp_path / "a", 2, **{"size": 16, **options}, progress=False)
