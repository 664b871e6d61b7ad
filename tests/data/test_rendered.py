from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from strop.data import ScenesDataset, write_scenes
from strop.data import rendered as writing
from strop.data.record import Dataset
from strop.errors import DataError, FormatError
from strop.scenes.describe import check_scene


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
    described = {f"{o['material']} {o['shape']}" for o in record.scene["objects"]}
    assert held == described
    assert shown <= held
    assert record.scene["image_index"] == 3
    assert torch.equal(dataset[-2].image, record.image)
    with pytest.raises(IndexError):
        dataset[5]


def test_classes_by_color():
    record = (dataset := ScenesDataset(2, size=32, by="color"))[0]
    described = {o["color"] for o in record.scene["objects"]}
    held = {n for n, there in zip(dataset.label_names, record.labels, strict=True) if there}
    assert held == described


def test_batches_equal_records():
    dataset = ScenesDataset(5, seed=1, size=24)
    batches = list(dataset.batches(2))
    assert [b.shape[0] for b in batches] == [2, 2, 1]
    whole = torch.cat(batches)
    assert torch.equal(whole, torch.stack([dataset[i].image for i in range(5)]))
    assert torch.equal(dataset.images([4, 0]), whole[[4, 0]])


def test_start_shifts_the_scenes():
    assert torch.equal(
        ScenesDataset(2, size=24, start=3)[0].image, ScenesDataset(9, size=24)[3].image
    )


@pytest.mark.parametrize(
    "options", [{"n": -1}, {"n": 0}, {"start": -1}, {"by": "taste"}, {"size": 0}]
)
def test_nonsense_is_refused(options):
    with pytest.raises(DataError):
        ScenesDataset(**options)


def files(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_writing_clevrs_layout(tmp_path):
    path = write_scenes(tmp_path, 3, 32, seed=5, split="val")
    assert path == tmp_path / "scenes" / "CLEVR_val_scenes.json"
    dataset = ScenesDataset(3, seed=5, size=32, split="val")
    content = json.loads(path.read_text())
    assert content["info"]["split"] == "val"
    for index, scene in enumerate(content["scenes"]):
        check_scene(scene, str(path))
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


def test_interrupted_writing_continues_and_ends_the_same(tmp_path, monkeypatch):
    write_scenes(tmp_path / "whole", 5, 16, batch_size=2)
    save, count = writing._save, 0

    def failing(pixels, path):
        nonlocal count
        count += 1
        if count == 8:  # in the middle of the third scene
            raise KeyboardInterrupt
        save(pixels, path)

    monkeypatch.setattr(writing, "_save", failing)
    with pytest.raises(KeyboardInterrupt):
        write_scenes(tmp_path / "cut", 5, 16, batch_size=2)
    assert not (tmp_path / "cut" / "scenes" / "CLEVR_train_scenes.json").exists()
    monkeypatch.setattr(writing, "_save", save)
    write_scenes(tmp_path / "cut", 5, 16, batch_size=2)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_more_scenes_can_be_added_but_not_others(tmp_path):
    write_scenes(tmp_path / "a", 2, 16)
    before = files(tmp_path / "a")
    path = write_scenes(tmp_path / "a", 4, 16)
    assert len(json.loads(path.read_text())["scenes"]) == 4
    after = files(tmp_path / "a")
    assert all(after[name] == data for name, data in before.items() if name.suffix == ".png")
    for options in ({"seed": 1}, {"size": 24}):
        with pytest.raises(DataError, match=next(iter(options))):
            write_scenes(tmp_path / "a", 2, **{"size": 16, **options})


def test_a_shorter_run_keeps_the_scenes_that_are_there(tmp_path):
    path = write_scenes(tmp_path, 4, 16)
    before = files(tmp_path)
    assert write_scenes(tmp_path, 2, 16) == path
    assert files(tmp_path) == before


def test_progress_is_reported(tmp_path):
    calls = []
    write_scenes(tmp_path, 3, 16, batch_size=2, progress=lambda *step: calls.append(step))
    assert calls == [("rendering", 0, 3), ("rendering", 2, 3), ("rendering", 3, 3)]
    calls.clear()
    write_scenes(tmp_path, 4, 16, batch_size=2, progress=lambda *step: calls.append(step))
    assert calls == [("rendering", 3, 4), ("rendering", 4, 4)]


def test_workers_change_nothing(tmp_path):
    torch.ones(300, 300).sum(1)  # the parent has used its threads when it forks
    write_scenes(tmp_path / "one", 5, 16, batch_size=2)
    write_scenes(tmp_path / "two", 5, 16, batch_size=2, workers=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_the_marker_says_what_wrote_it(tmp_path, monkeypatch):
    write_scenes(tmp_path, 2, 16)
    marker = tmp_path / "scenes" / "train" / "info.json"
    assert json.loads(marker.read_text())["format"] == "strop.scenes/1"
    with monkeypatch.context() as patch:
        patch.setattr(writing, "RENDERER_VERSION", 99)
        with pytest.raises(DataError, match="renderer 1, not 99"):
            write_scenes(tmp_path, 2, 16)
    for damage in ("{", "[]", '{"format": "strop.scenes/9"}'):
        marker.write_text(damage)
        with pytest.raises(FormatError, match=r"info\.json"):
            write_scenes(tmp_path, 2, 16)


def test_a_damaged_description_is_named(tmp_path):
    write_scenes(tmp_path, 2, 16)
    (tmp_path / "scenes" / "train" / "CLEVR_train_000001.json").write_text("{")
    with pytest.raises(DataError, match=r"CLEVR_train_000001\.json is not valid JSON"):
        write_scenes(tmp_path, 2, 16)


def test_object_counts_are_those_of_the_scenes_that_are_made():
    dataset = ScenesDataset(6, seed=3, start=5, size=16)
    made = dataset.scenes(range(6)).present.sum(dim=1)
    assert dataset.object_counts().tolist() == made.tolist()
