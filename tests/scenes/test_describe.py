from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from clevr_scenes import parse, read_scenes
from strop.errors import DataError
from strop.scenes import camera as cameras
from strop.scenes import describe, sample_scenes, truth


def test_json_round_trip():
    scenes = sample_scenes(4, range(6))
    described = json.loads(json.dumps(describe(scenes, (240, 320), "val", range(10, 16))))
    back = parse(described, (240, 320)).to("cpu", torch.float32)
    for name in ("shape", "size", "material", "color", "position", "rotation"):
        a, b = getattr(scenes, name), getattr(back, name)
        assert torch.equal(a[scenes.present], b[scenes.present]), name
    assert torch.equal(scenes.present, back.present)
    assert torch.equal(scenes.camera, back.camera)
    assert torch.equal(scenes.lights, back.lights)
    again = describe(back, (240, 320), "val", range(10, 16))
    assert again == described


def test_the_fields_are_those_of_clevr():
    scene = describe(sample_scenes(4, [0]), (240, 320), "val", [3])[0]
    assert scene["image_filename"] == "CLEVR_val_000003.png"
    assert scene["image_index"] == 3
    assert scene["split"] == "val"
    clevr = {"shape", "size", "material", "color", "3d_coords", "rotation", "pixel_coords"}
    assert all(set(entry) == clevr for entry in scene["objects"])
    assert set(scene["relationships"]) == {"left", "right", "front", "behind"}
    for i, left in enumerate(scene["relationships"]["left"]):
        assert all(i in scene["relationships"]["right"][j] for j in left)


def test_a_missing_camera_is_fitted():
    scenes = sample_scenes(4, range(5))
    described = describe(scenes, (240, 320))
    for scene in described:
        del scene["camera"], scene["lights"]
    assert (parse(described, (240, 320)).camera - scenes.camera).abs().max() < 0.05


@pytest.mark.parametrize(
    "field", ["shape", "size", "material", "color", "3d_coords", "rotation", "pixel_coords"]
)
def test_a_missing_field_is_named_with_its_file(tmp_path, field):
    described = describe(sample_scenes(4, range(2)), (240, 320))
    del described[1]["objects"][2][field]
    path = tmp_path / "CLEVR_val_scenes.json"
    path.write_text(json.dumps({"info": {}, "scenes": described}))
    with pytest.raises(DataError) as caught:
        read_scenes(path)
    assert str(path) in str(caught.value)
    assert repr(field) in str(caught.value)
    assert "scene 1, object 2" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shape", "cone"),
        ("color", 3),
        ("3d_coords", [1, 2]),
        ("rotation", "x"),
        ("pixel_coords", 0),
    ],
)
def test_a_wrong_field_is_named(field, value):
    described = describe(sample_scenes(4, [0]), (240, 320))
    described[0]["objects"][0][field] = value
    with pytest.raises(DataError, match=field):
        parse(described)


@pytest.mark.parametrize("field", ["objects", "directions", "relationships"])
def test_a_scene_without_a_field_is_named(field):
    described = describe(sample_scenes(4, range(2)), (240, 320))
    del described[1][field]
    with pytest.raises(DataError, match=f"a.json, scene 1: field '{field}' is missing"):
        parse(described, source="a.json")


@pytest.mark.parametrize(
    ("described", "complaint"),
    [
        ([None], "scene 0: a NoneType"),
        ([{"objects": [3]}], "scene 0, object 0: a int"),
        ([{"objects": {}}], "scene 0: field 'objects' is a dict"),
        ([{"objects": [], "directions": [], "relationships": {}}], "'directions' is a list"),
    ],
)
def test_invalid_scenes_are_refused(described, complaint):
    with pytest.raises(DataError, match=complaint):
        parse(described)


def test_files_that_are_no_scenes(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_scenes(tmp_path / "nothing.json")
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        read_scenes(path)
    path.write_text("[]")
    with pytest.raises(DataError, match="'scenes'"):
        read_scenes(path)


@pytest.mark.shared
def test_scenes_of_the_generator(shared):
    folder = shared / "data" / "clevr"
    scenes, described = read_scenes(folder / "scenes" / "CLEVR_val_scenes.json")
    pixels = cameras.project(scenes.camera, scenes.centre, 240, 320)
    for row, scene in enumerate(described):
        stored = torch.tensor([entry["pixel_coords"] for entry in scene["objects"]])
        off = (pixels[row, : len(stored)] - stored).abs().amax(dim=0)
        assert off[0] < 1
        assert off[1] < 1
        assert off[2] < 0.001

    mask, _ = truth(scenes[:60], (240, 320))
    overlap = []
    for row in range(60):
        path = folder / "masks" / "val" / described[row]["image_filename"]
        stored = torch.from_numpy(np.array(Image.open(path))).long()
        for number in range(1, len(described[row]["objects"]) + 1):
            a, b = stored == number, mask[row] == number
            overlap.append(((a & b).sum() / (a | b).sum()).item())
    assert np.mean(overlap) > 0.98
    assert np.min(overlap) > 0.85


@pytest.mark.shared
def test_relationships_of_the_generator(shared):
    path = shared / "data" / "clevr" / "scenes" / "CLEVR_val_scenes.json"
    scenes, described = read_scenes(path)
    for ours, theirs in zip(describe(scenes, (240, 320), "val"), described, strict=True):
        assert ours["relationships"] == theirs["relationships"]
