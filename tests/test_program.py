"""Programs: every edit against a plain-list model, and files that come back exactly or say why."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from strop.errors import FormatError, ProgramError
from strop.program import Program

QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


# A plain-list model of a program: per row its codes, its length, and the set of its holes.

Row = tuple[list[int], int, set[int]]


def to_program(rows: list[Row], codebook_size: int, **more: object) -> Program:
    capacity = len(rows[0][0])
    return Program(
        codes=torch.tensor([codes for codes, _, _ in rows]),
        lengths=torch.tensor([length for _, length, _ in rows]),
        codebook_size=codebook_size,
        erased=torch.tensor([[k in holes for k in range(capacity)] for _, _, holes in rows]),
        **more,
    )


def to_rows(program: Program) -> list[Row]:
    return [
        (codes, length, {k for k, hole in enumerate(holes) if hole})
        for codes, length, holes in zip(
            program.codes.tolist(), program.lengths.tolist(), program.erased.tolist(), strict=True
        )
    ]


def readable(row: Row) -> bool:
    _, length, holes = row
    return any(k not in holes for k in range(length))


@st.composite
def programs(draw: st.DrawFn, names: bool = False) -> Program:
    capacity, size = draw(st.integers(1, 8)), draw(st.integers(1, 2000))
    row = st.tuples(
        st.lists(st.integers(0, size - 1), min_size=capacity, max_size=capacity),
        st.integers(1, capacity),
        st.sets(st.integers(0, capacity - 1)),
    ).filter(readable)
    rows = draw(st.lists(row, min_size=1, max_size=5))
    more = {"model": draw(st.text(max_size=12))}
    if names and draw(st.booleans()):
        more["names"] = tuple(draw(st.text()) for _ in rows)
    return to_program(rows, size, **more)


def check_edit(program: Program, edit, model) -> None:
    """`edit` of the program must be `model` of each row, or be refused where no token is left."""
    before = to_rows(program)
    expected = [model(list(codes), length, set(holes)) for codes, length, holes in before]
    if all(map(readable, expected)):
        edited = edit(program)
        assert to_rows(edited) == expected
        assert (edited.codebook_size, edited.model, edited.names) == (
            program.codebook_size,
            program.model,
            program.names,
        )
    else:
        with pytest.raises(ProgramError, match="remove the last token"):
            edit(program)
    assert to_rows(program) == before, "an edit changes nothing but its result"


@given(programs(), st.data())
def test_truncate(program, data):
    wanted = data.draw(st.integers(1, program.capacity))
    check_edit(program, lambda p: p.truncate(wanted), lambda c, n, h: (c, min(n, wanted), h))


@given(programs(), st.data())
def test_with_lengths(program, data):
    each = data.draw(
        st.lists(st.integers(1, program.capacity), min_size=len(program), max_size=len(program))
    )
    wanted = iter(each)
    check_edit(
        program,
        lambda p: p.with_lengths(torch.tensor(each)),
        lambda c, n, h: (c, next(wanted), h),
    )


@given(programs(), st.data())
def test_erase(program, data):
    position = data.draw(st.integers(0, program.capacity - 1))
    check_edit(
        program,
        lambda p: p.erase(position),
        lambda c, n, h: (c, n, h | {position} if position < n else h),
    )


@given(programs(), st.data())
def test_erase_at_one_position_per_row(program, data):
    each = [data.draw(st.integers(0, program.capacity - 1)) for _ in range(len(program))]
    positions = iter(each)

    def model(codes, length, holes):
        position = next(positions)
        return codes, length, holes | {position} if position < length else holes

    check_edit(program, lambda p: p.erase(torch.tensor(each)), model)


@given(programs(), st.data())
def test_delete(program, data):
    position = data.draw(st.integers(0, program.capacity - 1))

    def model(codes, length, holes):
        if position >= length:
            return codes, length, holes
        # What follows moves up, codes past the length too; the deleted one goes last.
        gone = codes.pop(position)
        moved = {k - (k > position) for k in holes if k != position}
        return [*codes, gone], length - 1, moved

    check_edit(program, lambda p: p.delete(position), model)


@given(programs(), st.data())
def test_replace(program, data):
    position = data.draw(st.integers(0, program.capacity - 1))
    code = data.draw(st.integers(0, program.codebook_size - 1))

    def model(codes, length, holes):
        if position < length:
            codes[position] = code
            holes.discard(position)
        return codes, length, holes

    check_edit(program, lambda p: p.replace(position, code), model)


@given(programs(), st.data())
def test_permute(program, data):
    lengths = program.lengths.tolist()
    orders = [data.draw(st.permutations(range(length))) for length in lengths]
    each = iter(orders)

    def model(codes, length, holes):
        order = next(each)
        moved = [codes[k] for k in order] + codes[length:]
        holes = {to for to, k in enumerate(order) if k in holes} | {k for k in holes if k >= length}
        return moved, length, holes

    check_edit(program, lambda p: p.permute(orders), model)


@given(programs(), st.data())
def test_permuting_there_and_back_is_nothing(program, data):
    shortest = int(program.lengths.min())
    assume(all(readable((codes, shortest, holes)) for codes, _, holes in to_rows(program)))
    program = program.truncate(shortest)
    order = data.draw(st.permutations(range(shortest)))
    back = sorted(range(len(order)), key=order.__getitem__)
    assert to_rows(program.permute(order).permute(back)) == to_rows(program)
    longer = [*order, *range(len(order), program.capacity)]
    assert to_rows(program.permute(longer)) == to_rows(program.permute(order))


@given(programs(names=True), st.data())
def test_slicing_picks_rows_like_a_list(program, data):
    rows = to_rows(program)
    indices = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), min_size=1, max_size=6))
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    assume(any(mask))
    start = data.draw(st.integers(0, len(rows) - 1))
    picks = [
        (indices, indices),
        (torch.tensor(indices), indices),
        (np.array(indices), indices),
        (torch.tensor(mask), [k for k, keep in enumerate(mask) if keep]),
        (slice(start, None), list(range(start, len(rows)))),
    ]
    for index, expected in picks:
        picked = program[index]
        assert to_rows(picked) == [rows[k] for k in expected]
        if program.names:
            assert picked.names == tuple(program.names[k] for k in expected)


@given(programs(names=True))
def test_a_single_program_is_cut_to_its_active_codes(program):
    for row, (codes, length, holes) in enumerate(to_rows(program)):
        for index in (row, row - len(program), np.int64(row), torch.tensor(row)):
            one = program[index]
            assert one.codes.tolist() == codes[:length]
            assert len(one) == one.capacity == int(one.lengths) == length
            assert one.erased.tolist() == [k in holes for k in range(length)]
            assert one.names == program.names[row : row + 1]
    assert [one.codes.tolist() for one in program] == [c[:n] for c, n, _ in to_rows(program)]


@given(programs(names=True), st.data())
def test_cat_undoes_slicing(program, data):
    cut = data.draw(st.integers(0, len(program)))
    parts = [
        program[rows]
        for rows in (slice(0, cut), slice(cut, None))
        if len(range(len(program))[rows])
    ]
    joined = Program.cat(parts)
    assert to_rows(joined) == to_rows(program)
    assert joined.names == program.names
    assert joined == program


@given(programs())
def test_equality_looks_at_what_is_active(program):
    within = torch.arange(program.capacity) < program.lengths[:, None]
    size = program.codebook_size
    other = dataclasses.replace(
        program, codes=torch.where(within, program.codes, (program.codes + 1) % size)
    )
    assert other == program
    if size > 1:
        changed = dataclasses.replace(
            program, codes=torch.where(within, (program.codes + 1) % size, program.codes)
        )
        assert changed != program
    assert dataclasses.replace(program, model=program.model + "x") != program
    assert program != "a program"


@given(programs())
def test_active_is_inside_the_length_and_not_erased(program):
    assert program.active.tolist() == [
        [k < length and k not in holes for k in range(program.capacity)]
        for _, length, holes in to_rows(program)
    ]


# Refusals.


def plain(codes=((1, 2, 3), (4, 5, 6)), lengths=(3, 2), size=10, **more) -> Program:
    return Program(
        codes=torch.tensor(codes), lengths=torch.tensor(lengths), codebook_size=size, **more
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plain(lengths=(0, 2)), r"length of 0 is outside \[1, 3\]. Give a length from 1"),
        (lambda: plain(lengths=(3, 4)), r"length of 4 is outside \[1, 3\]"),
        (lambda: plain(size=6), r"code of 6 is outside \[0, 5\]. Give a code from 0 to 5"),
        (lambda: plain(codes=((1, -2, 3), (4, 5, 6))), r"code of -2 is outside \[0, 9\]"),
        (lambda: plain(codes=((1.0, 2.0),), lengths=(1,)), r"codes are torch.float32. Give"),
        (lambda: plain(lengths=(3.0, 2.0)), r"lengths are torch.float32"),
        (lambda: plain(lengths=(3, 2, 1)), r"lengths .*\(3,\), codes \(2, 3\). Give one length"),
        (lambda: plain(codes=(((1,),),), lengths=(1,)), r"shape \(1, 1, 1\). Give \(B, K\)"),
        (lambda: plain(codes=((), ()), lengths=(1, 1)), r"codes are|codes have the shape"),
        (lambda: plain(size=0), r"codebook size is 0"),
        (lambda: plain(size=2.5), r"codebook size is 2.5"),
        (lambda: plain(names=("a",)), r"1 names for 2 programs"),
        (lambda: plain(erased=torch.zeros(2, 3)), r"erased is torch.float32"),
        (lambda: plain(erased=torch.ones(2, 3, dtype=torch.bool)), r"no token left"),
        (lambda: Program(codes=[1], lengths=[1], codebook_size=2), r"codes are list. Give"),
        (lambda: plain().truncate(0), r"length of 0 is outside \[1, 3\]"),
        (lambda: plain().truncate(4), r"length of 4 is outside"),
        (lambda: plain().with_lengths(torch.tensor([1, 9])), r"length of 9 is outside"),
        (lambda: plain().truncate(1.5), r"1.5 is not a whole number"),
        (lambda: plain().truncate(True), r"True is not a whole number"),
        (lambda: plain().erase(3), r"position of 3 is outside \[0, 2\]"),
        (lambda: plain().erase(-1), r"position of -1 is outside"),
        (lambda: plain().erase(torch.tensor([0.5, 1])), r"is not a whole number"),
        (lambda: plain().erase(torch.tensor([0, 1, 2])), r"\(3,\) numbers .* one per row"),
        (lambda: plain().replace(0, 10), r"code of 10 is outside \[0, 9\]"),
        (lambda: plain().replace(5, 1), r"position of 5 is outside"),
        (lambda: plain().permute([0, 1, 1]), r"not an order of the 3 active tokens of row 0"),
        (lambda: plain().permute([2, 1, 0]), r"\[2, 1\] is not an order of the 2 active .* row 1"),
        (lambda: plain().permute([0]), r"is not an order"),
        (lambda: plain().permute([[0, 1, 2]] * 3), r"3 orders for 2 programs"),
        (lambda: plain()[5], r"no row 5. The rows of this batch are 0 to 1"),
        (lambda: plain()[[0, 7]], r"no row"),
        (lambda: plain()[plain().lengths > 9], r"picks no program. Pick some of the 2"),
        (lambda: Program.cat([plain()[0], plain()[1]]), r"differ in capacity: .*program\[0:1\]"),
        (lambda: plain()["a"], r"no row 'a'"),
        (lambda: plain()[0][0], r"single program, which has no rows"),
        (lambda: Program.cat([]), r"nothing to join"),
        (lambda: Program.cat([plain(), plain(size=11)]), r"differ in codebook_size: 10 and 11"),
        (lambda: Program.cat([plain(), plain(model="x")]), r"differ in model: '' and 'x'"),
        (
            lambda: Program.cat([plain(), plain(codes=((1, 2),), lengths=(1,))]),
            r"differ in capacity: 3 and 2",
        ),
        (lambda: plain(lengths=(1, 1)).erase(0), r"remove the last token"),
        (lambda: plain(lengths=(1, 2)).delete(0), r"remove the last token"),
        (lambda: plain(lengths=(2, 2)).erase(0).truncate(1), r"remove the last token"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ProgramError, match=message) as caught:
        make()
    assert caught.value.remedy


def test_a_program_cannot_be_changed():
    program = plain()
    with pytest.raises(dataclasses.FrozenInstanceError):
        program.codebook_size = 3
    with pytest.raises(TypeError):
        hash(program)


def test_programs_leave_their_device_whole_to_be_compared_and_saved(tmp_path, monkeypatch):
    moved = []
    move = Program.to
    monkeypatch.setattr(
        Program, "to", lambda self, device: moved.append(device) or move(self, device)
    )
    assert plain() == plain()
    assert moved == ["cpu", "cpu"]
    plain().save(tmp_path / "programs.jsonl")
    assert moved == ["cpu"] * 3


def test_numbers_of_numpy_are_numbers():
    assert plain().erase(np.int64(1)) == plain().erase(1)
    assert plain().truncate(np.int32(1)) == plain().truncate(1)


def test_bits_are_lengths_times_the_bits_of_a_code():
    assert plain(size=1024).bits.tolist() == [30, 20]


# How it looks.


def test_it_prints_readably():
    program = plain(names=("a.png", "b.png")).erase(0)
    assert repr(program).splitlines() == [
        "2 programs (K = 3, 10 codes in the codebook)",
        "  a.png    3: · 2 3",
        "  b.png    2: · 5",
    ]
    assert repr(plain()[0]).startswith("Program of 3 codes")
    assert "... and 12 more" in repr(Program.cat([plain()] * 10))


def test_names_cannot_break_out_of_the_notebook_table():
    html = plain(names=("<script>alert(1)</script>", "b"))._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert html.count("<span") == 5


# Files.


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@QUICK
@given(program=programs(names=True))
def test_a_file_gives_the_exact_program_back(tmp_path, suffix, program):
    path = tmp_path / f"programs{suffix}"
    program.save(path)
    loaded = Program.load(path)
    assert to_rows(loaded) == to_rows(program)
    assert loaded.names == program.names
    assert (loaded.model, loaded.codebook_size) == (program.model, program.codebook_size)
    assert loaded == program


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_single_program_is_saved_as_a_batch_of_one(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    plain(names=("a", "b"))[1].save(path)
    loaded = Program.load(path)
    assert to_rows(loaded) == [([4, 5], 2, set())]
    assert loaded.names == ("b",)


def test_jsonl_names_any_file_and_parquet_says_what_it_cannot(tmp_path):
    """File names on disk need not be UTF-8; Python carries such bytes as lone surrogates."""
    program = plain(names=("a", "caf\udce9.png"))
    program.save(tmp_path / "a.jsonl")
    assert Program.load(tmp_path / "a.jsonl").names == program.names
    with pytest.raises(FormatError, match=r"caf.*not.*UTF-8.*\.jsonl"):
        program.save(tmp_path / "a.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_other_tools_can_read_the_files(tmp_path):
    plain(names=("a", "b")).erase(0).save(tmp_path / "a.parquet")
    plain(names=("a", "b")).erase(0).save(tmp_path / "a.jsonl")
    expected = {"name": "b", "length": 2, "codes": [4, 5], "rest": [6], "erased": [0]}
    assert pq.read_table(tmp_path / "a.parquet").to_pylist()[1] == expected
    line = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[1])
    assert expected.items() <= line.items()
    assert line["format"] == "strop.program/1"


def test_saving_replaces_the_old_file_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    plain().save(path)
    before = path.read_bytes()

    def fail(table, where, **_):
        Path(where).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(OSError, match="No space"):
        plain(size=20).save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.parquet"]


@pytest.mark.parametrize("name", ["a.csv", "a", "a.json"])
def test_other_suffixes_are_refused(tmp_path, name):
    for use in (plain().save, Program.load):
        with pytest.raises(FormatError, match=r"end in .parquet or .jsonl"):
            use(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["none.parquet", "none.jsonl"])
def test_a_missing_file_or_a_folder_is_named(tmp_path, name):
    with pytest.raises(FormatError, match=r"no file .*none.* Check the path"):
        Program.load(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(FormatError):
        Program.load(tmp_path / name)


HEADER = {"format": "strop.program/1", "codebook_size": 10, "model": "m"}
ROW = {"name": "a", "length": 2, "codes": [1, 2], "rest": [3], "erased": []}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"is not a strop program file"),
        ([{**HEADER, **ROW, "format": "strop.model/1"}], r"is not a strop program file"),
        ([{**HEADER, **ROW, "format": "strop.program/2"}], r"newer than this strop .* Upgrade"),
        ([{**HEADER, **ROW, "format": "strop.program/" + "9" * 5000}], r"is not a strop program"),
        ([{**HEADER, **ROW, "length": 3}], r"do not agree in length"),
        ([{**HEADER, **ROW}, {**HEADER, **ROW, "rest": []}], r"do not agree in length"),
        ([{**HEADER, **ROW}, {**HEADER, **ROW, "model": "x"}], r"different models"),
        ([{**HEADER, **ROW, "codes": [1, 10]}], r"code of 10 is outside \[0, 9\]"),
        ([{**HEADER, **ROW, "codes": [1, -1]}], r"code of -1"),
        ([{**HEADER, **ROW, "codes": [1, 2.0]}], r"list of whole numbers"),
        ([{**HEADER, **ROW, "codes": [1, True]}], r"list of whole numbers"),
        ([{**HEADER, **ROW, "codes": [1, 10**30]}], r"does not hold programs|outside"),
        ([{**HEADER, **ROW, "codes": "12"}], r"list of whole numbers"),
        ([{**HEADER, **ROW, "codes": None}], r"list of whole numbers"),
        ([{**HEADER, **ROW, "codes": [], "length": 0}], r"length of 0"),
        ([{**HEADER, **ROW, "codes": [], "rest": [], "length": 0}], r"holds|impossible"),
        ([{**HEADER, **ROW, "erased": [3]}], r"hole outside"),
        ([{**HEADER, **ROW, "erased": [-1]}], r"hole outside"),
        ([{**HEADER, **ROW, "erased": [0, 1]}], r"no token left"),
        ([{**HEADER, **ROW, "codebook_size": 0}], r"codebook size is 0"),
        ([{**HEADER, **ROW, "codebook_size": "10"}], r"codebook size is '10'|does not hold"),
        ([{**HEADER, **ROW, "codebook_size": None}], r"codebook size is None|does not hold"),
        ([{**HEADER}], r"does not hold programs"),
        ([[1, 2]], r"Line 1 .* is not an object"),
    ],
)
def test_lines_that_are_no_programs_are_refused(tmp_path, rows, message):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(FormatError, match=message) as caught:
        Program.load(path)
    assert caught.value.remedy


def test_tables_that_are_no_programs_are_refused(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"a": [1, 2]})
    pq.write_table(table, path)
    with pytest.raises(FormatError, match=r"is not a strop program file"):
        Program.load(path)
    for metadata in ("{", "[]", "3", json.dumps(HEADER)):
        pq.write_table(table.replace_schema_metadata({"strop": metadata}), path)
        with pytest.raises(FormatError):
            Program.load(path)


def save_table(path, lists: pa.Array, **changes: object) -> None:
    """A file of one program, with a valid header and without a digest."""
    nothing = pa.array([[]], pa.list_(pa.int32()))
    columns = {"name": ["a"], "length": pa.array([len(lists.values)], pa.int32())}
    columns |= {"codes": lists, "rest": nothing, "erased": nothing, **changes}
    table = pa.table(columns).replace_schema_metadata({"strop": json.dumps(HEADER)})
    pq.write_table(table, path, compression="zstd")


def test_a_small_file_of_many_codes_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    count = 60_000_000
    zeros = pa.array(np.zeros(count, np.int32))
    save_table(path, pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), zeros))
    assert path.stat().st_size < 4000
    monkeypatch.setattr(pq, "ParquetFile", lambda *_, **__: pytest.fail("it was decoded"))
    with pytest.raises(FormatError, match=r"claims 60,000,\d+ values in"):
        Program.load(path)


def test_a_small_file_of_a_long_name_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    save_table(path, pa.array([[1]], pa.list_(pa.int32())), name=["a" * 100_000_000])
    monkeypatch.setattr(pq, "ParquetFile", lambda *_, **__: pytest.fail("it was decoded"))
    with pytest.raises(FormatError, match=r"claims 1\d\d,\d+,\d+ bytes in"):
        Program.load(path)


def test_more_codes_than_any_model_writes_are_refused(tmp_path):
    save_table(tmp_path / "a.parquet", pa.array([[1] * 5000], pa.list_(pa.int32())))
    with pytest.raises(FormatError, match=r"has 5,000 codes, more than 4,096"):
        Program.load(tmp_path / "a.parquet")


def test_files_of_0_1_0_have_no_digest(tmp_path):
    save_table(tmp_path / "a.parquet", pa.array([[1, 2]], pa.list_(pa.int32())))
    assert Program.load(tmp_path / "a.parquet").codes.tolist() == [[1, 2]]


@pytest.mark.parametrize("column", ["codes", "rest", "erased", "length", "name"])
def test_columns_of_another_type_are_refused(tmp_path, column):
    changed = {column: pa.array([{"a": 1}])}
    codes = pa.array([[1, 2]], pa.list_(pa.int32()))
    save_table(tmp_path / "a.parquet", codes, **changed)
    if column == "name":
        assert Program.load(tmp_path / "a.parquet").names == ("{'a': 1}",)
    else:
        with pytest.raises(FormatError):
            Program.load(tmp_path / "a.parquet")


def test_an_altered_parquet_file_never_gives_another_program(tmp_path):
    """Every byte of a file, header and footer included, with one bit flipped."""
    path = tmp_path / "a.parquet"
    program = plain(names=("a", "b"))
    program.save(path)
    content = path.read_bytes()
    refused = 0
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 1 << (position % 8)
        path.write_bytes(flipped)
        try:
            loaded = Program.load(path)
        except FormatError:
            refused += 1
        else:
            assert loaded == program, position
            assert loaded.names == program.names, position
    assert refused > 200


def test_a_damaged_footer_does_not_end_the_process(tmp_path):
    """Arrow aborts if it is asked for the columns of some damaged footers."""
    path = tmp_path / "a.parquet"
    plain().save(path)
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    dice = random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[len(content) - 8 - dice.randrange(length) - 1] = dice.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(FormatError):
            Program.load(path)


@pytest.mark.parametrize("name", ["a\0b.parquet", "a" * 5000 + ".jsonl"])
def test_impossible_names_of_files_are_refused(name):
    with pytest.raises(FormatError):
        Program.load(name)


def mutated(content: bytes, dice: random.Random) -> bytes:
    """A few flips, cuts and insertions."""
    damaged = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        position = dice.randrange(len(damaged) or 1)
        match dice.randrange(4):
            case 0:
                damaged[position : position + 1] = bytes([dice.randrange(256)])
            case 1:
                del damaged[position : position + dice.randint(1, 16)]
            case 2:
                damaged[position:position] = dice.randbytes(dice.randint(1, 16))
            case 3:
                damaged = damaged[:position]
    return bytes(damaged)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@settings(QUICK, max_examples=250)
@given(program=programs(names=True), seed=st.integers(0, 2**32))
def test_a_mutated_file_gives_a_valid_program_or_a_format_error(tmp_path, suffix, program, seed):
    path = tmp_path / f"a{suffix}"
    program.save(path)
    path.write_bytes(mutated(path.read_bytes(), random.Random(seed)))
    with contextlib.suppress(FormatError):
        loaded = Program.load(path)
        loaded._check()
        assert all(map(readable, to_rows(loaded)))


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_any_cut_of_a_file_is_refused_or_is_whole_lines(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    plain(names=("a", "b")).save(path)
    content = path.read_bytes()
    for end in range(0, len(content), max(1, len(content) // 60)):
        path.write_bytes(content[:end])
        try:
            loaded = Program.load(path)
        except FormatError:
            continue
        assert suffix == ".jsonl"
        assert to_rows(loaded) == to_rows(plain()[: len(loaded)])


def test_programs_one_by_one_are_cut_where_they_are_longer():
    program = plain(lengths=(3, 1))
    assert [int(row.truncate(2).lengths) for row in program] == [2, 1]
    assert Program.cat([program[0:1], program[1:2]]) == program


# Quality.


def rated_program() -> Program:
    quality = torch.tensor([0.5, 0.75, 0.875])
    codes = torch.arange(12).view(3, 4)
    lengths = torch.tensor([2, 3, 4])
    return Program(codes=codes, lengths=lengths, codebook_size=12, quality=quality)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_files_keep_the_quality(tmp_path, suffix):
    program = rated_program()
    program.save(tmp_path / f"a{suffix}")
    again = Program.load(tmp_path / f"a{suffix}")
    assert again == program
    assert torch.equal(again.quality, program.quality)
    dataclasses.replace(program, quality=None).save(tmp_path / f"b{suffix}")
    assert Program.load(tmp_path / f"b{suffix}").quality is None
    assert b"quality" not in (tmp_path / f"b{suffix}").read_bytes()


def test_rows_keep_their_quality_and_edits_drop_it():
    program = rated_program()
    assert program[1].quality == 0.75
    assert program[[2, 0]].quality.tolist() == [0.875, 0.5]
    assert program[1].as_batch().quality.tolist() == [0.75]
    assert Program.cat([program[:1], program[1:]]).quality.tolist() == program.quality.tolist()
    bare = dataclasses.replace(program, quality=None)
    assert Program.cat([program, bare]).quality is None
    assert program == bare
    assert program.to("cpu").quality is not None
    for edited in (
        program.truncate(1),
        program.with_lengths(4),
        program.erase(0),
        program.delete(0),
        program.replace(0, 5),
        program[:1].permute([1, 0]),
    ):
        assert edited.quality is None


@pytest.mark.parametrize("quality", [torch.ones(2), torch.ones(3, dtype=torch.float64)])
def test_a_quality_that_does_not_fit_is_refused(quality):
    with pytest.raises(ProgramError, match=r"quality is .*Give a float32 number per program"):
        dataclasses.replace(rated_program(), quality=quality, check=True)


# Conversions.


def test_conversions_hold_the_active_codes():
    program = Program(
        codes=torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]]),
        lengths=torch.tensor([3, 1]),
        codebook_size=9,
        names=("a", "b"),
    ).erase(1)
    assert program.to_numpy().tolist() == [[5, -1, 7], [1, -1, -1]]
    assert program[0].to_numpy().tolist() == [5, -1, 7]
    assert program.to_arrow().column("codes").to_pylist() == [[5, 6, 7], [1]]
    frame = program.to_pandas()
    assert frame["name"].tolist() == ["a", "b"]
    assert [codes.tolist() for codes in frame["erased"]] == [[1], []]


def test_language_model_input_leaves_out_holes_and_pads():
    program = Program(
        codes=torch.tensor([[5, 6, 7], [1, 2, 3]]), lengths=torch.tensor([3, 1]), codebook_size=9
    ).erase(1)
    given = program.to_lm()
    assert given["input_ids"].tolist() == [[9, 5, 7, 10], [9, 1, 10, 11]]
    assert given["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    with pytest.raises(ProgramError, match="ids below 9 are codes"):
        program.to_lm(bos=3)
    given = program[1].to_lm(bos=20, eos=21, pad=0)
    assert given["input_ids"].tolist() == [[20, 1, 21]]
