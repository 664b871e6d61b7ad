"""Search: the index and what invalidates it, similar images and regions, codes, edits, pictures."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import strop
from strop.errors import FormatError, StoreError
from strop.images import read_image, read_square
from strop.store import index as index_module
from strop.store.encode import encode_corpus
from strop.store.index import Descriptor, Index, build_index, pool
from strop.store.pictures import write_sheet
from strop.store.search import _box, _window, parse
from strop.store.store import Store

from .conftest import write_images


@pytest.fixture(scope="module")
def encoded(model: str, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = str(tmp_path_factory.mktemp("search") / "photos.lance")
    encode_corpus(str(photos), out, model=model, workers=0, slice_size=9)
    return out


@pytest.fixture
def path(encoded: str, tmp_path: Path) -> str:
    return shutil.copytree(encoded, tmp_path / "photos.lance").as_posix()


@pytest.fixture
def store(path: str) -> Store:
    store = strop.open_store(path)
    build_index(store)
    return store


def photo(store: Store, row: int) -> Path:
    about = store.read([row], columns=["source", "key"]).to_pylist()[0]
    return Path(about["source"]) / about["key"]


def test_an_image_of_the_store_is_found_first(store):
    for row in (0, 13, 27):
        found = store.search(photo(store, row), k=5)
        assert (found.hits[0].row, found.hits[0].key) == (row, store.keys[row])
        assert found.hits[0].score == pytest.approx(1, abs=2e-3)
        scores = [hit.score for hit in found.hits]
        assert scores == sorted(scores, reverse=True)
        assert (len(scores), found.unindexed, found.total) == (5, 0, None)
        assert found.program == store[[row]]


def test_vectors_are_compared_as_their_cosines_are(store):
    descriptor = Index(store).descriptor
    vectors = descriptor(store.model.interpret(store[:]))
    expected = vectors @ vectors[4]
    found = store.search(store[4:5], k=28)
    got = {hit.row: hit.score for hit in found.hits}
    torch.testing.assert_close(
        torch.tensor([got[row] for row in range(28)]), expected, atol=3e-3, rtol=0
    )


def test_a_key_finds_others_and_an_edit_changes_the_order(store):
    key = store.keys[6]
    found = store.search(like=key, k=27)
    assert 6 not in [hit.row for hit in found.hits]
    assert len(found.hits) == 27
    edited = store.search(like=key, without=[0, 2], k=27)
    assert edited.program == store[6:7].erase(0).erase(2)
    assert [hit.score for hit in edited.hits] != [hit.score for hit in found.hits]


def test_a_small_store_needs_no_index(path, store, monkeypatch):
    expected = store.search(photo(store, 3), k=28)
    shutil.rmtree(f"{path}/index")
    without = strop.open_store(path)
    found = without.search(photo(store, 3), k=28)
    assert [hit.row for hit in found.hits[:3]] == [hit.row for hit in expected.hits[:3]]
    assert [h.score for h in found.hits] == pytest.approx(
        [h.score for h in expected.hits], abs=3e-3
    )
    monkeypatch.setattr("strop.store.search.SMALL", 10)
    with pytest.raises(StoreError, match=r"28 programs and no index.*strop index"):
        strop.open_store(path).search(photo(store, 3))


def test_an_index_goes_on_with_new_rows(tmp_path, model, monkeypatch):
    monkeypatch.setattr(index_module, "_WRITE", 4)
    write_images(tmp_path / "data", range(9))
    out = str(tmp_path / "a.lance")
    encode_corpus(str(tmp_path / "data"), out, model=model, workers=0)
    assert build_index(strop.open_store(out)) == 9
    assert build_index(strop.open_store(out)) == 0
    write_images(tmp_path / "data", range(15))
    encode_corpus(str(tmp_path / "data"), out, model=model, workers=0)
    store = strop.open_store(out)
    assert store.search(like=store.keys[0]).unindexed == 6
    before = Index(store).vectors(np.arange(9))
    assert build_index(store) == 6
    assert store.search(like=store.keys[0]).unindexed == 0
    assert torch.equal(Index(store).vectors(np.arange(9)), before)
    expected = Index(store).descriptor(store.model.interpret(store[9:]))
    torch.testing.assert_close(Index(store).vectors(np.arange(9, 15)), expected, atol=1e-3, rtol=0)
    assert build_index(store, rebuild=True) == 15


def test_an_interrupted_index_goes_on(path, monkeypatch):
    monkeypatch.setattr(index_module, "_WRITE", 8)
    store, append, calls = strop.open_store(path), Index.append, []

    def killed(self: Index, *arguments: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        append(self, *arguments)

    monkeypatch.setattr(Index, "append", killed)
    with pytest.raises(KeyboardInterrupt):
        build_index(store)
    assert Index(store).rows == 16
    assert build_index(store) == 12
    rows = sorted(hit.row for hit in store.search(photo(store, 0), k=28).hits)
    assert rows == list(range(28))


def test_an_index_of_other_programs_is_refused_and_built_again(path, store, photos, model):
    from strop.model.length_rule import LengthRule

    rule = LengthRule(length=2)
    encode_corpus(str(photos), path, model=model, workers=0, overwrite=True, rule=rule)
    changed = strop.open_store(path)
    with pytest.raises(StoreError, match=r"other programs.*strop index"):
        changed.search(photo(store, 3))
    assert build_index(changed) == 28
    assert changed.search(photo(store, 3)).hits[0].row == 3


def test_a_damaged_index_is_named(path, store):
    for file in Path(path, "index", "data").iterdir():
        file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(FormatError, match="index"):
        strop.open_store(path).search(like=store.keys[0])


@pytest.mark.parametrize("text", ["", "[]", "e30=", "!"])
def test_a_damaged_descriptor_is_named(text):
    with pytest.raises(FormatError, match="damaged"):
        Descriptor.from_text(text, "a.lance")


def test_a_descriptor_survives_its_file():
    descriptor = Descriptor.fit(pool(torch.randn(20, 16, 6)))
    fields = torch.randn(5, 16, 6)
    again = Descriptor.from_text(descriptor.to_text(), "a.lance")
    assert torch.equal(again(fields), descriptor(fields))
    assert torch.equal(again.patches(fields), descriptor.patches(fields))
    short = replace(descriptor, centre=descriptor.centre[:3])
    infinite = replace(descriptor, centre=descriptor.centre / 0)
    for wrong in (short, infinite):
        with pytest.raises(FormatError, match="damaged"):
            Descriptor.from_text(wrong.to_text(), "a.lance")


# Codes.


CODES = st.sets(st.integers(0, 5))
EXPRESSIONS = st.recursive(
    st.integers(0, 5).map(str),
    lambda inner: st.one_of(
        inner.map(lambda a: f"not {a}"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
        inner.map(lambda a: f"( {a})"),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS, st.lists(CODES, min_size=1, max_size=6))
def test_expressions_mean_what_python_means(expression, programs):
    def has(code: int) -> np.ndarray:
        return np.array([code in program for program in programs])

    words = [f"({word} in p)" if word.isdecimal() else word for word in spaced(expression)]
    # The words are integers, operators and parentheses that hypothesis drew.
    expected = [eval(" ".join(words), {"p": program}) for program in programs]  # noqa: S307
    assert parse(expression, 6)(has).tolist() == expected


def spaced(expression: str) -> list[str]:
    return expression.replace("(", " ( ").replace(")", " ) ").split()


def test_codes_alone_and_with_a_query(store):
    rows = [set(program.codes.tolist()) for program in store]
    code = next(code for code in range(64) if 2 < sum(code in row for row in rows) < 25)
    expected = [row for row, codes in enumerate(rows) if code in codes]
    found = store.search(codes=f"{code}")
    assert [hit.row for hit in found.hits] == expected[:20]
    assert (found.total, found.program, found.hits[0].score) == (len(expected), None, None)
    others = store.search(photo(store, expected[0]), codes=f"not {code}", k=30)
    assert sorted(hit.row for hit in others.hits) == sorted(set(range(28)) - set(expected))
    exact = {hit.row: hit.score for hit in store.search(photo(store, expected[0]), k=28).hits}
    assert [hit.score for hit in others.hits] == pytest.approx(
        [exact[hit.row] for hit in others.hits], abs=3e-3
    )
    assert store.search(like=store.keys[0], codes="1 and not 1").hits == []


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "not an expression"),
        ("17 and", "not an expression"),
        ("(17", "not an expression"),
        ("17 18", "not an expression"),
        ("17 xor 3", "not an expression"),
        ("17 and true", "not an expression"),
        ("-17", "not an expression"),
        ("17 < 18", "not an expression"),
        ("99", "no code 99"),
        ("1" * 2000, "characters"),
        ("(" * 900, "not an expression"),
        ("import os", "not an expression"),
        ("__import__(0)", "not an expression"),
    ],
)
def test_a_wrong_expression_is_named(expression, message):
    with pytest.raises(StoreError, match=message):
        parse(expression, 64)


# Regions.


def test_a_region_is_found_where_it_was_pasted(tmp_path, model):
    """The same tile at other places: the images that hold it come first, each at its place."""
    write_images(tmp_path / "data", range(20))
    tile = torch.zeros(3, 24, 24, dtype=torch.uint8)
    tile[0] = 255
    places = {2: (0, 0), 7: (24, 24), 11: (24, 0)}
    from strop.images import save_image

    for number, (top, left) in places.items():
        (file,) = (tmp_path / "data").rglob(f"ü {number:03d}.png")
        image = read_square(file, 48)
        image[:, top : top + 24, left : left + 24] = tile
        save_image(file, image)
    out = str(tmp_path / "a.lance")
    encode_corpus(str(tmp_path / "data"), out, model=model, workers=0)
    store = strop.open_store(out)
    (file,) = (tmp_path / "data").rglob("ü 002.png")
    found = store.search(file, region=(0, 0, 24, 24), k=20)
    assert found.hits[0].key.endswith("002.png")
    assert found.hits[0].region == pytest.approx((0, 0, 24, 24))
    assert len(found.hits) == 20
    assert all(hit.region is not None for hit in found.hits)


@given(
    st.sampled_from(["squash", "crop", "pad"]),
    st.integers(20, 300),
    st.integers(20, 300),
    st.floats(0, 0.9),
    st.floats(0, 0.9),
    st.floats(0.05, 1),
)
def test_windows_lie_in_the_grid_and_come_back_near(make_config, fit, width, height, x, y, share):
    tokenizer = type("T", (), {"config": make_config(fit)})
    region = (x * width, y * height, share * (1 - x) * width, share * (1 - y) * height)
    window = _window(region, (width, height), tokenizer)
    grid = tokenizer.config.grid
    assert 0 <= window[0] < window[1] <= grid
    assert 0 <= window[2] < window[3] <= grid
    left, top, across, down = _box(window, (width, height), tokenizer)
    assert -1e-6 <= left <= left + across <= width + 1e-6
    assert -1e-6 <= top <= top + down <= height + 1e-6


@pytest.fixture(scope="module")
def make_config(make_tokenizer):
    config = make_tokenizer().config
    return lambda fit: replace(config, fit=fit)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Nothing is searched"),
        ({"query": "photo", "like": "a"}, "Both"),
        ({"like": "nobody"}, "no key 'nobody'"),
        ({"like": "key", "without": [999]}, "no token 999"),
        ({"like": "key", "region": (0, 0, 9, 9)}, "without an image"),
        ({"query": "photo", "region": (900, 0, 9, 9)}, "not within the image"),
        ({"query": "photo", "region": (0, 0, -9, 9)}, "not within the image"),
        ({"query": "photo", "region": (0, 0, 9999, 9)}, "not within the image"),
        ({"query": "photo", "region": (-9, 0, 20, 9)}, "not within the image"),
        ({"query": "photo", "k": 0}, "k is 0"),
        ({"codes": "3", "without": [1]}, "no program"),
    ],
)
def test_a_wrong_search_is_named(store, options, message):
    if options.get("query"):
        options = {**options, "query": photo(store, 0)}
    if options.get("like") == "key":
        options = {**options, "like": store.keys[0]}
    with pytest.raises(StoreError, match=message):
        store.search(**options)


# Pictures.


def test_a_picture_is_the_image_or_its_preview(tmp_path, model):
    write_images(tmp_path / "data", range(3))
    out = str(tmp_path / "a.lance")
    encode_corpus(str(tmp_path / "data"), out, model=model, workers=0)
    store = strop.open_store(out)
    assert torch.equal(store.picture(1, 32), read_square(photo(store, 1), 32))
    photo(store, 1).write_bytes(b"no image any more")
    preview = store.picture(1, 32)
    shutil.rmtree(tmp_path / "data")
    assert preview.shape == (3, 32, 32)
    assert torch.equal(store.picture(1, 32), preview)


def test_a_sheet_shows_each_hit_and_escapes_names(store, tmp_path):
    found = store.search(photo(store, 2), region=(0, 0, 30, 30), k=4)
    write_sheet(store, found, tmp_path / "a.html", title="<b>x", query=photo(store, 2))
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.count("<img ") == 5
    assert page.count("<i style=") == 4
    assert "<b>x" not in page
    write_sheet(store, store.search(like=store.keys[0], k=2), tmp_path / "a.html", title="x")
    assert (tmp_path / "a.html").read_text(encoding="utf-8").count("<img ") == 3
    assert "http" not in page
    assert read_image(photo(store, 2)).shape[0] == 3
