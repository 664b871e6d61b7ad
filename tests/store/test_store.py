"""Reading a store back: rows, programs, SQL, Arrow, Hugging Face; and damage to its files."""

from __future__ import annotations

import resource
import shutil
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import strop
from strop.errors import FormatError, StoreError
from strop.program import Program
from strop.store.encode import encode_corpus
from strop.store.engines import encode_with_ray
from strop.store.report import check
from strop.store.schema import damaged_rows, with_checks
from strop.store.store import Store
from strop.store.writer import Writer

from .programs import INFO, draw_program, rows


@pytest.fixture
def program() -> Program:
    return draw_program(40)


@pytest.fixture
def path(tmp_path, program) -> str:
    path = str(tmp_path / "photos.lance")
    writer = Writer(path, INFO, {"caption": pa.string()})
    for start in (0, 16, 32):
        part = program[start : start + 16]
        captions = pa.array([f"caption {start}"] * len(part))
        assert writer.append(rows(part, caption=captions)) == len(part)
    return path


def test_writers_at_the_same_time_write_each_key_once(tmp_path):
    """Each has opened the table before the other commits, as two encoders at one URL do."""
    path = str(tmp_path / "photos.lance")
    programs = draw_program(30)
    writers = [Writer(path, INFO) for _ in range(2)]
    written = [
        writers[turn % 2].append(rows(programs[start : start + 10]))
        for turn, start in enumerate((0, 5, 15, 10, 0, 20))
    ]
    assert written == [10, 5, 10, 0, 0, 5]
    store = Store(path)
    assert sorted(store.keys) == sorted(programs.names)
    order = [programs.names.index(key) for key in store.keys]
    assert store[:] == programs[order]


def test_a_file_that_is_cut_off_is_not_committed(path, program):
    """A limit on the size of files stands for the full disk, which Lance does not notice."""
    writer, more = Writer(path, INFO, {"caption": pa.string()}), draw_program(48)[40:]
    new = rows(more, caption=pa.array(["new"] * len(more)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"Only 2,048 of .* Free some space"):
            writer.append(new)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert strop.open_store(path)[:] == program
    assert writer.append(new) == 8
    assert len(strop.open_store(path)[:]) == 48


def test_programs_come_back_as_they_were_written(path, program):
    store = strop.open_store(path)
    assert len(store) == 40
    assert store[:] == program
    assert store[-1].codes.tolist() == program[39].codes.tolist()
    assert store[[30, 2, 30]].names == tuple(program.names[row] for row in (30, 2, 30))
    assert store[5:9] == program[5:9]
    assert store.keys == list(program.names)
    assert [each.codes.tolist() for each in store] == [each.codes.tolist() for each in program]
    assert store.kept == ("caption",)
    assert store.info == INFO


def test_rows_that_do_not_exist_are_refused(path):
    store = strop.open_store(path)
    for wrong in (40, -41, [3, 99]):
        with pytest.raises(StoreError, match="no row"):
            store[wrong]
    with pytest.raises(StoreError, match="no program"):
        store[3:3]
    with pytest.raises(StoreError, match="no key 'nothing'"):
        store["nothing"]
    for wrong in (
        ["key"],
        1.5,
        [0.0],
        None,
        True,
        [True, False],
        [1, True],
        [[1], [2, 3]],
        [[1, 2]],
    ):
        with pytest.raises(StoreError, match="number of a row"):
            store[wrong]


def test_keys_and_masks_pick_rows(path, program):
    store = strop.open_store(path)
    mask = np.zeros(40, dtype=bool)
    mask[[3, 7]] = True
    for picked in (mask, torch.from_numpy(mask), mask.tolist()):
        assert store[picked] == program[[3, 7]]
    assert store[program.names[5]] == program[5]


def test_a_forked_process_is_told_to_open_the_store_itself(path):
    loader = DataLoader(
        strop.open_store(path),
        sampler=[0],
        batch_size=None,
        num_workers=1,
        multiprocessing_context="fork",
    )
    with pytest.raises(StoreError, match=r'(?s)multiprocessing_context="spawn"'):
        next(iter(loader))


def test_sql_sees_programs_and_rejects(path):
    store = strop.open_store(path)
    answer = store.sql("select key, length from programs where length > 6 order by length, key")
    expected = sorted(
        (length, key)
        for key, length in zip(store.keys, store[:].lengths.tolist(), strict=True)
        if length > 6
    )
    assert [(row["length"], row["key"]) for row in answer.to_pylist()] == expected
    joined = store.sql("select count(*) as n from programs a join programs b using (key)")
    assert joined["n"].to_pylist() == [40]
    assert store.sql("select * from rejects").num_rows == 0


@pytest.mark.parametrize("query", ["select nothing from programs", "select * from '/etc/passwd'"])
def test_a_wrong_query_or_one_that_reaches_for_files_is_refused(path, query):
    with pytest.raises(StoreError, match="query failed"):
        strop.open_store(path).sql(query)


def test_arrow_and_hugging_face_see_the_same_columns(path):
    store = strop.open_store(path)
    expected = ["key", "codes", "length", "quality", "width", "height", "source", "caption"]
    assert store.to_arrow().column_names == expected
    assert store.to_hf().column_names == expected
    assert store.to_hf(["key", "length"])[7]["key"] == store.keys[7]
    assert pa.Table.from_batches(store.batches(batch=7)) == store.to_arrow()


def test_a_missing_store_and_a_table_of_something_else_are_named(tmp_path):
    with pytest.raises(StoreError, match="There is no store"):
        strop.open_store(tmp_path / "nothing.lance")
    import lance

    lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "other.lance"))
    with pytest.raises(FormatError, match="not a strop store"):
        strop.open_store(tmp_path / "other.lance")


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("duckdb", "store", lambda path: strop.open_store(path).sql("select 1")),
        ("datasets", "store", lambda path: strop.open_store(path).to_hf()),
        ("lance", "store", strop.open_store),
        ("ray", "ray", lambda path: next(encode_with_ray(None, []))),
    ],
)
def test_a_missing_package_is_named_with_its_install_line(path, monkeypatch, package, extra, use):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StoreError, match=rf"pip install 'strop\[{extra}\]'"):
        use(path)


@settings(max_examples=30)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=6, unique=True))
def test_keys_may_be_any_text(tmp_path_factory, keys):
    path = str(tmp_path_factory.mktemp("keys") / "a.lance")
    program = draw_program(len(keys))
    writer = Writer(path, INFO)
    assert writer.append(rows(program, key=keys)) == len(keys)
    assert writer.append(rows(program, key=keys)) == 0
    store = strop.open_store(path)
    assert store.keys == keys
    assert [store.row_of(key) for key in keys] == list(range(len(keys)))
    assert Writer(path, INFO).missing([*keys, "another key of thirteen or more"]).tolist() == [
        *[False] * len(keys),
        True,
    ]


def test_a_million_keys_sort_and_resume(tmp_path):
    """Two fifths of a million are there, in another order: the other three are missing."""
    path, count, part = str(tmp_path / "a.lance"), 1_000_000, 100_000
    keys = [f"ü/{number:07d}.jpg" for number in range(count)]
    order = np.random.default_rng(0).permutation(count)
    there = order[: 4 * part]
    template = rows(draw_program(part))
    writer = Writer(path, INFO)
    for start in range(0, len(there), part):
        chosen = pa.array([keys[number] for number in there[start : start + part]])
        assert writer.append(template.set_column(0, "key", chosen)) == part
    missing = Writer(path, INFO).missing(keys)
    assert np.array_equal(np.flatnonzero(missing), np.sort(order[4 * part :]))


def test_a_store_opens_elsewhere_without_its_images(photos, model, tmp_path, monkeypatch):
    """Moved, with another working directory and no image: everything but the pictures is there."""
    data, there = tmp_path / "data", tmp_path / "there"
    shutil.copytree(photos, data)
    here = tmp_path / "here.lance"
    encode_corpus(str(data), here, model=model, workers=0)
    expected = strop.open_store(here)
    programs, table = expected[:], expected.to_arrow()
    fields = expected.model.interpret(programs)
    shutil.rmtree(data)
    there.mkdir()
    here.rename(there / "photos.lance")
    monkeypatch.chdir(there)
    store = strop.open_store("photos.lance")
    assert store[:] == programs
    assert store.to_arrow() == table
    assert check(store)["problems"] == []
    found = torch.cat([batch["field"] for batch in store.fields(batch=28)])
    torch.testing.assert_close(found, fields)
    assert len(store.search(like=store.keys[0], k=5).hits) == 5
    assert store.picture(0, 16).shape == (3, 16, 16)


def test_every_changed_byte_of_a_data_file_is_found(path, tmp_path):
    """A changed byte either changes no value, or the store refuses to serve the fragment."""
    file = sorted((tmp_path / "photos.lance" / "data").iterdir())[1]
    whole = file.read_bytes()
    reference = strop.open_store(path).to_arrow()
    named = []
    for place in range(0, len(whole), 29):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert Store(path).to_arrow() == reference
        except FormatError as error:
            named.append(str(error))
    assert len(named) > 5
    assert all(file.name in text or path in text for text in named)


def test_a_truncated_file_is_named(path, tmp_path):
    for file in (tmp_path / "photos.lance" / "data").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(FormatError, match=r"\.lance"):
        strop.open_store(path)[0]


VALUES = st.lists(st.one_of(st.none(), st.text(max_size=5)), min_size=1, max_size=8)


@settings(max_examples=60)
@given(VALUES, st.data())
def test_a_check_sees_every_change_of_a_value(values, data):
    table = with_checks(pa.table({"a": pa.array(values, pa.string()), "b": range(len(values))}))
    assert not len(damaged_rows(table))
    row = data.draw(st.integers(0, len(values) - 1))
    other = data.draw(st.one_of(st.none(), st.text(max_size=5)).filter(lambda v: v != values[row]))
    changed = [*values[:row], other, *values[row + 1 :]]
    table = table.set_column(0, "a", pa.array(changed, pa.string()))
    assert damaged_rows(table).tolist() == [row]
    assert damaged_rows(table.slice(row)).tolist() == [0]
