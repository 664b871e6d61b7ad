"""Spec strings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.data import Dataset, open_dataset, parse_spec
from strop.data.spec import Spec
from strop.errors import DataError


def test_parse() -> None:
    spec = parse_spec("voc:/data/voc?split=trainaug&limit=10")
    assert (spec.kind, spec.path) == ("voc", "/data/voc")
    assert dict(spec.parameters) == {"split": "trainaug", "limit": 10}
    assert str(spec) == "voc:/data/voc?split=trainaug&limit=10"


def test_a_bare_path_is_a_folder() -> None:
    assert parse_spec("/data/photos") == parse_spec("folder:/data/photos")
    assert parse_spec("./photos?").kind == "folder"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("shards:/d/train-*.tar", "/d/train-*.tar"),
        ("shards:/d/train-00?.tar", "/d/train-00?.tar"),
        ("shards:/d/train-00?.tar?classes=5", "/d/train-00?.tar"),
        ("folder:/d/a:b", "/d/a:b"),
        ("voc:rel/path", "rel/path"),
    ],
)
def test_paths_keep_their_marks(text: str, path: str) -> None:
    assert parse_spec(text).path == path


@pytest.mark.parametrize(
    "text", ["./x?b=c", "./x?", "folder:/x ?", "voc:/x?split=a+b", "/a%20b", "voc:/x?masks=\udce9"]
)
def test_odd_specs_come_back(text: str) -> None:
    spec = parse_spec(text)
    assert parse_spec(str(spec)) == spec


def test_a_plus_is_a_plus() -> None:
    spec = parse_spec("voc:/a+b?masks=/c+d%20e%26f")
    assert (spec.path, spec.parameters["masks"]) == ("/a+b", "/c+d e&f")


@given(
    path=st.text(min_size=1),
    masks=st.none() | st.text(),
    limit=st.none() | st.integers(0, 10**18 - 1),
)
def test_every_spec_comes_back(path: str, masks: str | None, limit: int | None) -> None:
    given = {"masks": masks, "limit": limit}
    spec = Spec("voc", path, {key: value for key, value in given.items() if value is not None})
    assert parse_spec(str(spec)) == spec


@given(text=st.text("ab:/?=&%+ 1"))
def test_every_text_that_parses_comes_back(text: str) -> None:
    for start in ("", "voc:/", "shards:/", "folder:./"):
        try:
            spec = parse_spec(start + text)
        except DataError:
            continue
        assert parse_spec(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cityscape:/x?a=1", "Did you mean 'cityscapes'"),
        ("vox:/x", "Did you mean 'voc'"),
        ("nothing", "no folder nothing"),
        ("scene", "Did you mean 'scenes:'"),
        ("", "no kind of data"),
        ("voc:/x?spilt=val", "no parameter 'spilt'. Did you mean 'split'"),
        ("voc:/x?limit=ten", "'limit' of 'voc' is 'ten'"),
        ("voc:/x?limit=-1", "'limit' of 'voc' is '-1'"),
        ("voc:/x?limit=" + "9" * 5000, "at most 18 digits"),
        ("scenes:?n=999999999999999999999", "at most 18 digits"),
        ("voc:/x?split=a&split=b", "given twice"),
        ("voc:?split=val", "names no path"),
        ("scenes:/x?n=3", "takes no path"),
    ],
)
def test_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_spec(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "scenes:?n=99999999999999",
        "scenes:?n=0",
        "scenes:?start=9999999999999999999",
        "scenes:?n=5&start=999999999999999999999999",
        "scenes:?size=1000000",
        "scenes:?size=0",
    ],
)
def test_scenes_of_absurd_number_or_size_are_refused(spec: str) -> None:
    with pytest.raises(DataError, match=r"scenes: (n|size) is|at most 18 digits"):
        open_dataset(spec)


def test_skip_and_limit(voc_root: Path) -> None:
    whole = open_dataset(f"voc:{voc_root}")
    part = open_dataset(f"voc:{voc_root}?skip=1&limit=5")
    assert isinstance(part, Dataset)
    assert [part[i].name for i in range(len(part))] == [whole[1].name]
    assert part.classes == whole.classes
    with pytest.raises(DataError, match="leaves nothing of 2 records"):
        open_dataset(f"voc:{voc_root}?skip=2")
    scenes = open_dataset("scenes:?n=9&skip=2&limit=4&size=16")
    assert [scenes[i].name[-1] for i in range(len(scenes))] == list("2345")


def test_scenes() -> None:
    data = open_dataset("scenes:?n=3&seed=7&size=32")
    assert len(data) == 3
    assert data[0].image.shape == (3, 32, 32)
    assert data[0].scene is not None


@pytest.mark.parametrize(
    "spec",
    [
        "~nouser/x",
        "folder:~nouser/x",
        "folder:/a\0b",
        "packed:/a\0",
        "shards:/a\0*",
        "parquet:/a\0",
        f"folder:/{'a' * 5000}",
        f"shards:/{'a' * 5000}",
        f"parquet:/{'a' * 5000}",
        f"/{'a' * 5000}",
        f"{'{' * 3000}",
        f"voc:.?split={'a' * 5000}",
        "voc:.?split=a\0b",
        "scenes:?n=999999999999999999999",
        "scenes:?size=1000000",
    ],
)
def test_absurd_specs_are_refused_in_a_sentence(spec: str) -> None:
    with pytest.raises(DataError) as caught:
        open_dataset(spec)
    assert caught.value.remedy


def test_whatever_a_parser_raises_is_an_error_of_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("strop.data.folders.list_files", fail)
    with pytest.raises(DataError, match=r"cannot be opened .MemoryError"):
        open_dataset(str(tmp_path))
