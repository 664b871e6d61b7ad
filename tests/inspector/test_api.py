"""Responses of the API equal results of the library."""

from __future__ import annotations

import base64
import copy
import io
import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from serving import base64_file, image_file, served

import strop
from strop.data import ScenesDataset
from strop.data.samples import photograph, squares
from strop.images import read_image
from strop.inspector import gallery as galleries
from strop.inspector.engine import Engine
from strop.inspector.messages import ProgramJson
from strop.metrics import cosine, r2, r2_centred
from strop.model.length_head import CONFIDENCE, LengthHeadConfig
from strop.store.encode import encode_corpus
from strop.store.store import open_store


def post(client, path, **body):
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def picture(text):
    return torch.from_numpy(np.array(Image.open(io.BytesIO(base64.b64decode(text)))))


@pytest.fixture(scope="module")
def encoded(client, images):
    return post(client, "encode", image=base64_file(images[0]))


@pytest.fixture(scope="module")
def program(tokenizer, images):
    return tokenizer.encode(images[0])


def test_model_facts(client, tokenizer):
    facts = client.get("/api/model").json()
    assert facts["fingerprint"] == tokenizer.identity.codes
    assert (facts["grid"], facts["max_length"], facts["codebook_size"]) == (4, 12, 64)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_encode_equals_the_library(client, tokenizer, kind):
    content = image_file(torch.randint(0, 256, (3, 50, 90), dtype=torch.uint8), kind)
    made = post(client, "encode", image=base64.b64encode(content).decode())
    expected = tokenizer.encode(content)
    assert made["program"]["codes"] == expected[0].codes.tolist()
    assert made["program"]["codes"] + made["program"]["rest"] == expected.codes[0].tolist()
    assert round(made["predicted"]) == int(expected.lengths)
    # The returned square is the input of the model, so encoding it gives the same program.
    assert post(client, "encode", image=made["image"]) == made


def test_interpret_equals_the_library(client, tokenizer, images, encoded):
    program = tokenizer.encode(images[0]).erase(0)
    given = ProgramJson.of(program).model_dump()
    made = post(client, "interpret", program=given, image=encoded["image"])
    field, teacher = tokenizer.interpret(program), tokenizer.field(images[0])
    assert made["scores"]["r2"] == pytest.approx(r2(field, teacher).item(), abs=1e-4)
    centred = r2_centred(field, teacher).item()
    assert made["scores"]["r2_centred"] == pytest.approx(centred, abs=1e-4)
    assert made["scores"]["cosine"] == pytest.approx(cosine(field, teacher).item(), abs=1e-4)
    error = 1 - F.cosine_similarity(field[0], teacher[0], dim=-1).view(4, 4)
    assert torch.allclose(torch.tensor(made["error"]), error, atol=1e-4)
    preview = (tokenizer.decode(field)[0] * 255).round().permute(1, 2, 0)
    assert (picture(made["preview"]).float() - preview).abs().max() <= 1
    assert picture(made["field"]).shape == picture(made["teacher"]).shape == (4, 4, 3)


def test_without_an_image_there_are_no_scores(client, encoded):
    made = post(client, "interpret", program=encoded["program"])
    assert made["scores"] is None
    assert made["teacher"] is None
    assert picture(made["field"]).shape == (4, 4, 3)


def test_the_curve_holds_the_score_at_the_predicted_length(client, encoded):
    program = encoded["program"]
    curve = post(client, "curve", program=program, image=encoded["image"])
    point = post(client, "interpret", program=program, image=encoded["image"])["scores"]
    assert len(curve["r2"]) == 12
    assert curve["r2"][program["length"] - 1] == pytest.approx(point["r2"], abs=1e-4)
    centred = curve["r2_centred"][program["length"] - 1]
    assert centred == pytest.approx(point["r2_centred"], abs=1e-4)


def test_the_curve_is_null_for_a_prefix_of_erased_tokens(client, encoded):
    erased = {**encoded["program"], "erased": [0, 1]}
    curve = post(client, "curve", program=erased, image=encoded["image"])
    assert curve["r2"][:2] == [None, None]
    assert None not in curve["r2"][2:]


def test_erasure_equals_the_library(client, tokenizer, program):
    made = post(client, "erasure", program=ProgramJson.of(program).model_dump())
    maps = strop.erasure(tokenizer, program)[0, : int(program.lengths)]
    assert torch.allclose(torch.tensor(made["maps"]), maps, atol=1e-4)
    assert made["scores"] == pytest.approx(maps.mean(dim=(1, 2)).tolist(), abs=1e-4)


def test_erasure_of_the_only_token_is_null(client, program):
    made = post(client, "erasure", program=ProgramJson.of(program.truncate(1)).model_dump())
    assert made["scores"] == [None]
    assert made["maps"][0][0] == [None] * 4


def test_synergy_is_the_joint_change_minus_single_changes(client, tokenizer, images):
    program = tokenizer.encode(images[0], length=6)
    whole = tokenizer.interpret(program)

    def change(edited):
        return 1 - F.cosine_similarity(whole, tokenizer.interpret(edited), dim=-1)[0].view(4, 4)

    expected = (
        change(program.erase(1).erase(4)) - change(program.erase(1)) - change(program.erase(4))
    )
    given = ProgramJson.of(program).model_dump()
    made = post(client, "synergy", program=given, first=1, second=4)
    assert torch.allclose(torch.tensor(made["map"]), expected, atol=1e-4)
    assert made["score"] == pytest.approx(expected.mean().item(), abs=1e-4)


@pytest.mark.parametrize(("first", "second"), [(1, 1), (0, 99), (-1, 0)])
def test_synergy_needs_two_valid_positions(client, encoded, first, second):
    body = {"program": encoded["program"], "first": first, "second": second}
    answer = client.post("/api/synergy", json=body)
    assert answer.status_code == 422
    assert "position" in answer.json()["problem"]


def test_clusters_label_every_patch(client, encoded):
    made = post(client, "clusters", program=encoded["program"], image=encoded["image"], k=3)
    assert np.array(made["teacher"]).shape == np.array(made["interpreted"]).shape == (4, 4)
    assert set(np.ravel(made["teacher"])) == {0, 1, 2}


@pytest.mark.parametrize("objects", [3, 10])
def test_a_scene_has_the_requested_objects_and_is_reproducible(client, objects):
    made = post(client, "scene", objects=objects, seed=4)
    record = ScenesDataset(1, seed=4, start=made["index"], size=made["size"])[0]
    assert len(record.scene["objects"]) == objects
    assert torch.equal(picture(made["image"]).permute(2, 0, 1), record.image)


def test_code_pages_list_all_occurrences(client, tokenizer, gallery, address):
    # The broken file is skipped.
    files = sorted(file for file in gallery.iterdir() if file.name != "broken.png")
    programs = tokenizer.encode([str(file) for file in files])
    code = int(programs[0].codes[0])
    for _ in range(100):
        page = client.get(f"/api/codes/{code}").json()
        if page["encoded"] == page["total"] == 4:
            break
    count = int(((programs.codes == code) & programs.active).sum())
    assert page["count"] == len(page["appearances"]) == count > 0
    first = page["appearances"][0]
    assert first["name"] == "0.png"
    expected = strop.erasure(tokenizer, programs[:1])[0, first["position"]]
    assert torch.allclose(torch.tensor(first["map"]), expected, atol=1e-4)


def test_the_default_gallery_of_a_model_of_scenes_is_rendered(tokenizer, monkeypatch):
    monkeypatch.setattr(galleries, "SCENES", 2)
    model = copy.copy(tokenizer)
    model.about = {"data": "scenes:?n=100"}
    gallery = galleries.Gallery(Engine(model))
    gallery.wait()
    assert [image.name for image in gallery.images] == ["scene 0", "scene 1"]
    expected = tokenizer.encode(ScenesDataset(2, size=64).images(range(2)))
    assert strop.Program.cat([image.program for image in gallery.images]) == expected


def test_the_default_gallery_of_other_models_holds_photographs(tokenizer):
    gallery = galleries.Gallery(Engine(tokenizer))
    gallery.wait()
    expected = squares(tokenizer.config.image_size)
    assert [image.name for image in gallery.images] == list(expected)
    assert gallery.images[0].program == tokenizer.encode(expected["china-427-0-0"])


def test_samples_are_the_photographs(client):
    facts = client.get("/api/model").json()
    assert (facts["samples"], facts["sees_scenes"], facts["store"]) == (
        ["china.jpg", "flower.jpg"],
        False,
        None,
    )
    found = client.get("/api/samples/1").json()
    assert found["name"] == "flower.jpg"
    assert torch.equal(picture(found["image"]).permute(2, 0, 1), photograph("flower.jpg"))
    assert client.get("/api/samples/2").status_code == 422


def test_scores_have_a_floor(client, tokenizer, images, encoded):
    found = post(client, "interpret", program=encoded["program"], image=encoded["image"])
    field = tokenizer.field(images[0])
    flat = field.mean(dim=1, keepdim=True).expand_as(field)
    assert found["scores"]["floor"] == pytest.approx(cosine(flat, field).item(), abs=1e-4)


def test_a_store_is_searched(make_tokenizer, images, gallery, tmp_path):
    rated = make_tokenizer(length_head=LengthHeadConfig(kind="rate", hidden=(32,)))
    path = tmp_path / "images.lance"
    encode_corpus(str(gallery), path, model="rated", tokenizer=rated, workers=0)
    store = open_store(path, model=rated)
    with (
        served(rated, gallery=gallery, store=store) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        assert client.get("/api/model").json()["store"] == {"path": "images.lance", "programs": 4}
        image = base64_file(images[2])
        made = post(client, "encode", image=image)
        curve = rated.rate_curve(images[2], confidence=CONFIDENCE).cosine[0]
        assert made["expected"] == pytest.approx(curve.tolist(), abs=1e-5)
        found = post(client, "search", image=image, k=2, region=[0, 0, 32, 32])
        assert [hit["row"] for hit in found["hits"]] == [
            hit.row for hit in store.search(images[2], k=2, region=(0, 0, 32, 32)).hits
        ]
        assert all(0 <= value <= 1 for hit in found["hits"] for value in hit["region"])
        assert (len(found["hits"]), found["total"], found["unindexed"]) == (2, 4, 0)
        row = client.get("/api/rows/2").json()
        assert row["name"] == store.keys[2]
        assert client.get("/api/rows/4").status_code == 422
        for wrong in ({}, {"codes": "seventeen"}, {"image": image, "without": [99]}):
            answer = client.post("/api/search", json=wrong)
            assert answer.status_code == 422
            assert answer.json()["remedy"]


def test_without_a_store_a_search_says_how_to_open_one(client):
    answer = client.post("/api/search", json={"codes": "3"})
    assert (answer.status_code, "--store" in answer.json()["remedy"]) == (422, True)


def test_programs_round_trip_through_files(client, encoded, tmp_path):
    file = tmp_path / "program.jsonl"
    file.write_text(json.dumps({**encoded["program"], "erased": [1]}) + "\n")
    program = strop.Program.load(file)
    made = post(client, "interpret", program=ProgramJson.of(program).model_dump())
    assert ProgramJson.of(program).model_dump() == {**encoded["program"], "erased": [1]}
    program.save(tmp_path / "again.jsonl")
    line = json.loads((tmp_path / "again.jsonl").read_text())
    assert post(client, "interpret", program=line) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes": [64] * 3, "length": 3}, "A code of 64 is outside"),
        ({"codes": [-1] * 3, "length": 3}, "A code of -1 is outside"),
        ({"codes": [], "length": 0, "rest": []}, "codes have the shape"),
        ({"codes": [1], "length": 2}, "do not agree in length"),
        ({"codes": [1], "length": 1, "erased": [0]}, "no token left"),
        ({"erased": [99]}, "has a hole outside it"),
        ({"codebook_size": 65}, "codebook has 65 codes"),
        ({"model": "another"}, "written by model another"),
        ({"format": "strop.model/1"}, "not a strop program file"),
        ({"codes": [1] * 40, "length": 40}, "has room for"),
        ({"codes": ["1"], "length": 1}, "valid integer"),
        ({"more": 1}, "not permitted"),
    ],
)
def test_invalid_programs_are_refused(client, encoded, change, message):
    answer = client.post("/api/interpret", json={"program": {**encoded["program"], **change}})
    assert answer.status_code == 422
    assert message in answer.json()["problem"]
    assert answer.json()["remedy"]


@pytest.mark.parametrize("content", [b"", b"GIF89a" + bytes(50), b"<svg/>", b"%PDF-1.7"])
def test_other_files_are_refused_by_content(client, content):
    image = base64.b64encode(content).decode()
    answer = client.post("/api/encode", json={"image": image})
    assert answer.status_code == 422
    assert "not an image" in answer.json()["problem"]


@pytest.mark.parametrize(
    ("side", "message"), [(8_000, "8000 x 8000 pixels"), (20_000, "more than 25,000,000 pixels")]
)
def test_images_of_too_many_pixels_are_refused_before_decoding(client, side, message):
    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, format="PNG")
    assert len(file.getvalue()) < 100_000
    answer = client.post("/api/encode", json={"image": base64.b64encode(file.getvalue()).decode()})
    assert answer.status_code == 422
    assert message in answer.json()["problem"]


def test_concurrent_clients_get_their_own_results(address, client, tokenizer, images):
    def one(number):
        image = base64_file(images[number])
        made = post(client, "encode", image=image)
        return made["program"]["codes"], post(client, "erasure", program=made["program"])["scores"]

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(one, list(range(6)) * 3))
    for number, (codes, scores) in enumerate(answers):
        program = tokenizer.encode(images[number % 6])
        assert codes == program[0].codes.tolist()
        maps = strop.erasure(tokenizer, program)[0, : len(codes)]
        assert scores == pytest.approx(maps.mean(dim=(1, 2)).tolist(), abs=1e-4)


def test_a_model_without_a_decoder_has_no_preview(make_tokenizer, images, gallery):
    import httpx

    with (
        served(make_tokenizer(decoder=None), gallery=gallery) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        made = post(client, "encode", image=base64_file(images[0]))
        assert post(client, "interpret", program=made["program"])["preview"] is None
        assert client.get("/api/model").json()["decodes"] is False


def test_uploads_are_oriented_by_exif(client, tokenizer):
    file = io.BytesIO()
    image = Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(file, format="PNG", exif=exif)
    made = post(client, "encode", image=base64.b64encode(file.getvalue()).decode())
    assert torch.equal(picture(made["image"]).permute(2, 0, 1), read_image(file.getvalue()))
