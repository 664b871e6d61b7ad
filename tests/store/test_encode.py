"""Encoding a corpus: what data may be, keys, kept columns, going on, rejects, other models."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import strop
from strop.errors import BusyError, DataError, StoreError
from strop.files import exclusive
from strop.images import save_image
from strop.model.length_rule import LengthRule
from strop.model.tokenizer import Tokenizer
from strop.store.corpus import Corpus
from strop.store.encode import encode_corpus
from strop.store.store import Store

from .conftest import write_images


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "out.lance")


def encode(data: object, target: str, model: str, **options: object) -> Store:
    options = {"workers": 0, "slice_size": 8, **options}
    listed = [str(each) for each in data] if isinstance(data, list) else str(data)
    encode_corpus(listed, target, model=model, **options)
    return strop.open_store(target, version=options.get("version"))


def content(store: Store) -> list[dict[str, object]]:
    return store.to_arrow().to_pylist()


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("ü*.png"))


def test_a_folder_is_encoded_as_the_tokenizer_does_it(photos, target, model):
    store = encode(photos, target, model)
    paths = [photos / key for key in store.keys]
    assert sorted(paths) == files_of(photos)
    expected = strop.load(model, device="cpu").encode(paths)
    assert store[:] == expected
    assert store.sql("select distinct width, height from programs order by all").to_pylist() == [
        {"width": width, "height": 48} for width in (60, 72, 84)
    ]
    assert set(store.to_arrow()["source"].to_pylist()) == {str(photos)}
    assert store.model.identity.codes == store.info.codes


def test_unreadable_images_are_rejected_with_a_reason(photos, target, model):
    report = encode_corpus(str(photos), target, model=model, workers=0)
    assert (report.images, report.encoded, report.rejected, report.known) == (30, 28, 2, 0)
    rejects = Store(target).rejects.to_pylist()
    assert [row["key"] for row in rejects] == ["1/empty.jpg", "zz broken.png"]
    assert "empty (0 bytes)" in rejects[0]["reason"]
    again = encode_corpus(str(photos), target, model=model, workers=0)
    assert (again.encoded, again.rejected, again.known) == (0, 0, 30)


def test_a_reject_is_read_again_on_request(photos, tmp_path, target, model):
    data = tmp_path / "data"
    shutil.copytree(photos, data)
    encode(data, target, model)
    save_image(data / "1" / "empty.jpg", torch.rand(3, 20, 20))
    assert len(encode(data, target, model)) == 28
    store = encode(data, target, model, retry=True)
    assert len(store) == 29
    assert store.keys[-1] == "1/empty.jpg"
    assert [row["key"] for row in store.rejects.to_pylist()] == ["zz broken.png"]


def test_workers_and_slices_change_no_row(photos, tmp_path, model):
    reference = content(encode(photos, str(tmp_path / "a.lance"), model))
    for workers, size in ((1, 5), (2, 1024)):
        target = str(tmp_path / f"{workers}.lance")
        store = encode(photos, target, model, workers=workers, slice_size=size)
        assert content(store) == reference


def test_only_new_images_are_encoded(tmp_path, target, model):
    data = tmp_path / "data"
    write_images(data, range(5, 12))
    before = content(encode(data, target, model))
    write_images(data, range(15))
    report = encode_corpus(str(data), target, model=model, workers=0)
    assert (report.encoded, report.known) == (8, 7)
    store = Store(target)
    assert content(store)[:7] == before
    assert len(set(store.keys)) == 15


def test_another_model_is_refused_and_has_two_ways_out(
    photos, tmp_path, target, model, make_tokenizer: Callable[..., Tokenizer]
):
    first = content(encode(photos, target, model))
    other = str(tmp_path / "other")
    make_tokenizer(seed=5).save_pretrained(other)
    with pytest.raises(StoreError, match=r"not of .*other.*--overwrite.*--as VERSION") as refusal:
        encode(photos, target, other)
    assert model in str(refusal.value)
    beside = encode(photos, target, other, version="v2")
    assert beside.info.model == other
    assert content(Store(target)) == first != content(beside)
    assert content(encode(photos, target, other, version="v2")) == content(beside)
    assert content(encode(photos, target, other, overwrite=True)) == content(beside)


def test_overwriting_forgets_the_rejects(photos, tmp_path, target, model):
    encode(photos, target, model)
    good = tmp_path / "good"
    write_images(good, range(3))
    store = encode(good, target, model, overwrite=True)
    assert len(store) == 3
    assert not store.rejects.num_rows


def test_lengths_by_another_rule_or_other_columns_are_refused(photos, tmp_path, target, model):
    store = encode(photos, target, model, rule=LengthRule(length=3))
    assert store[:].lengths.unique().tolist() == [3]
    assert len(encode(photos, target, model, rule=LengthRule(length=3))) == 28
    with pytest.raises(StoreError, match="chosen by length: 3, not by the model's default"):
        encode(photos, target, model)
    with pytest.raises(StoreError, match="mean length"):
        encode(photos, str(tmp_path / "b.lance"), model, rule=LengthRule(mean_length=4))
    tar = tmp_path / "a.tar"
    write_tar(tar, photos)
    with pytest.raises(StoreError, match="has the columns"):
        encode(tar, target, model, keep=["caption"], rule=LengthRule(length=3))


def test_a_second_encoder_is_told(photos, target, model):
    encode(photos, target, model)
    with exclusive(target):
        import threading

        problems = []

        def run() -> None:
            try:
                encode(photos, target, model)
            except BusyError as error:
                problems.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert len(problems) == 1
    assert "is being written by process" in problems[0]


def test_a_folder_with_other_files_is_no_store(photos, model):
    with pytest.raises(StoreError, match="not a store"):
        encode(photos, str(photos), model)


# Data.


def write_tar(path: Path, photos: Path) -> None:
    with tarfile.open(path, "w") as tar:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

        for number, image in enumerate(files_of(photos)[:6]):
            add(f"{number}.png", image.read_bytes())
            add(f"{number}.txt", f"text {number}".encode())
            add(f"{number}.json", json.dumps({"caption": f"caption {number}", "n": 1}).encode())


def test_tars_keep_members_and_fields(photos, tmp_path, target, model):
    write_tar(tmp_path / "a.tar", photos)
    store = encode(tmp_path / "a.tar", target, model, keep=["txt", "caption", "n", "none"])
    assert store.keys == [f"a/{number}" for number in range(6)]
    last = content(store)[-1]
    assert (last["txt"], last["caption"], last["n"], last["none"]) == (
        "text 5",
        "caption 5",
        "1",
        None,
    )
    assert store[:] == strop.load(model, device="cpu").encode(files_of(photos)[:6])


def table(photos: Path, structs: bool) -> pa.Table:
    images: list[object] = [path.read_bytes() for path in files_of(photos)]
    images[2] = b"not an image"
    if structs:
        images = [{"bytes": each, "path": None} for each in images]
    count = len(images)
    return pa.table(
        {
            "image": images,
            "caption": [None, *(f"a caption {n}" for n in range(1, count))],
            "label": pa.array(range(count), pa.int16()),
            "words": [["a", str(n)] for n in range(count)],
            "id": [f"id-{n}" for n in range(count)],
        }
    )


@pytest.mark.parametrize("structs", [False, True])
def test_parquet_files_in_a_folder_at_keys_of_a_column(photos, tmp_path, target, model, structs):
    whole = table(photos, structs)
    (tmp_path / "p").mkdir()
    pq.write_table(whole.slice(0, 10), tmp_path / "p" / "0.parquet", row_group_size=4)
    pq.write_table(whole.slice(10), tmp_path / "p" / "1.parquet", row_group_size=100)
    spec = f"parquet:{tmp_path / 'p'}?key=id"
    keep = ["caption", "label", "words"]
    store = encode(spec, target, model, keep=keep, workers=2)
    rows = whole.drop_columns("image").to_pylist()
    del rows[2]
    assert [{"id": row["key"], **{name: row[name] for name in keep}} for row in content(store)] == [
        {"id": row["id"], **{name: row[name] for name in keep}} for row in rows
    ]
    assert store.dataset.schema.field("label").type == pa.int16()
    assert [row["key"] for row in store.rejects.to_pylist()] == ["id-2"]
    assert store[5].codes.tolist() == (
        strop.load(model, device="cpu").encode(files_of(photos)[6])[0].codes.tolist()
    )


def test_lance_and_hugging_face_agree_with_parquet(photos, tmp_path, model):
    import datasets
    import lance

    whole = table(photos, True).slice(0, 9)
    pq.write_table(whole, tmp_path / "a.parquet")
    lance.write_dataset(whole, str(tmp_path / "a.lance"))
    dataset = datasets.Dataset(whole).cast_column("image", datasets.Image())
    dataset.save_to_disk(str(tmp_path / "hf"))
    stores = [
        encode(data, str(tmp_path / f"{number}-out.lance"), model, keep=["label"], workers=1)
        for number, data in enumerate(
            [
                tmp_path / "a.parquet",
                tmp_path / "a.lance",
                tmp_path / "hf",
                f"hf:{tmp_path / 'hf'}?key=id",
            ]
        )
    ]
    for store in stores:
        assert store[:] == stores[0][:]
        assert store.to_arrow(["label"]) == stores[0].to_arrow(["label"])
    assert stores[0].keys[0] == "a/00000000"
    assert stores[3].keys[0] == "id-0"


def test_specs_and_labels(photos, tmp_path, target, model):
    data = tmp_path / "data"
    write_images(data, range(6))
    store = encode(f"folder:{data}?labels=folders&limit=5", target, model, keep=["labels"])
    assert [(row["key"][0], row["labels"]) for row in content(store)] == [
        (folder, [folder]) for folder in "00112"
    ]
    scenes = encode("scenes:?n=3&size=64", str(tmp_path / "scenes.lance"), model)
    assert scenes.keys == [f"CLEVR_train_{n:06d}" for n in range(3)] or len(scenes) == 3


def test_urls_are_read_with_fsspec(photos, tmp_path, target, model):
    import fsspec

    memory = fsspec.filesystem("memory")
    write_tar(tmp_path / "a.tar", photos)
    for path in files_of(photos)[:6]:
        memory.pipe(f"/photos/{path.name}", path.read_bytes())
    memory.pipe("/tars/a.tar", (tmp_path / "a.tar").read_bytes())
    pq.write_table(table(photos, False).slice(0, 6), tmp_path / "a.parquet")
    memory.pipe("/a.parquet", (tmp_path / "a.parquet").read_bytes())
    files = encode("memory://photos", target, model, workers=1)
    assert files.keys == [path.name for path in files_of(photos)[:6]] or len(files) == 6
    tars = encode("memory://tars/a.tar", str(tmp_path / "b.lance"), model, keep=["txt"], workers=1)
    assert tars.to_arrow()["txt"].to_pylist() == [f"text {n}" for n in range(6)]
    rows = encode("memory://a.parquet", str(tmp_path / "c.lance"), model)
    assert [len(rows), rows.rejects.num_rows] == [5, 1]
    with pytest.raises(DataError, match="no images"):
        Corpus(["memory://nothing"])


def test_equal_names_of_two_folders_become_two_keys(tmp_path, target, model):
    for name in ("a", "b"):
        write_images(tmp_path / name, range(3) if name == "a" else range(2))
    store = encode([tmp_path / "a", tmp_path / "b"], target, model)
    assert store.keys[3:] == [f"{key} (2)" for key in store.keys[:2]]
    assert len(encode([tmp_path / "a", tmp_path / "b"], target, model)) == 5


def test_keys_of_another_place_are_named(tmp_path, target, model):
    for name in ("a", "b"):
        write_images(tmp_path / name, range(2))
    encode(tmp_path / "a", target, model)
    report = encode_corpus(str(tmp_path / "b"), target, model=model, workers=0)
    assert (report.encoded, report.elsewhere) == (0, Store(target).keys[0])
    report = encode_corpus(str(tmp_path / "b"), target, model=model, workers=0, prefix="b/")
    assert (report.encoded, report.elsewhere) == (2, None)


def test_a_file_name_that_is_not_utf8_has_a_key(tmp_path, target, model):
    write_images(tmp_path / "a", range(1))
    file = files_of(tmp_path / "a")[0]
    shutil.copy(file, bytes(tmp_path / "a") + b"/\xff.png")
    store = encode(tmp_path / "a", target, model)
    assert store.keys[-1].endswith(".png")
    assert len(encode(tmp_path / "a", target, model)) == 2


@pytest.mark.parametrize("column", ["nothing", "labels"])
def test_a_column_that_the_data_lacks_is_named(photos, column):
    with pytest.raises(DataError, match=f"has no column '{column}'"):
        Corpus([str(photos)], keep=[column])


def test_a_kept_column_cannot_be_a_column_of_the_store(photos, tmp_path, target, model):
    write_tar(tmp_path / "a.tar", photos)
    with pytest.raises(StoreError, match="cannot be named 'length'"):
        encode(tmp_path / "a.tar", target, model, keep=["length"])
