"""Programs with their scenes: made on the device, kept in a file, split for a test."""

from __future__ import annotations

import pytest
from spelled import encoded_of, spelled_pairs

from strop.data.spec import open_dataset
from strop.errors import DataError, FormatError
from strop.structure.pairs import (
    Pairs,
    encode_pairs,
    load_pairs,
    pairs_of,
    save_pairs,
    training_and_test,
)
from strop.structure.reader import Options, run, train_reader
from strop.structure.study import Job, encode_dataset

SPEC = "scenes:?n=3&seed=4&size=64"


def test_the_short_way_to_pairs_leads_where_the_long_one_does(tokenizer, tmp_path, monkeypatch):
    short = encode_pairs(tokenizer, SPEC, Job(tmp_path))
    long = pairs_of(encode_dataset(tokenizer, open_dataset(SPEC), SPEC))
    assert short.program == long.program
    for one, other in zip(short.scenes, long.scenes, strict=True):
        assert [thing.words for thing in one] == [thing.words for thing in other]
        for a, b in zip(one, other, strict=True):
            assert a[4:] == pytest.approx(b[4:], abs=1e-4)
    monkeypatch.setattr(tokenizer, "encode", None)  # the second time nothing is encoded
    again = encode_pairs(tokenizer, SPEC, Job(tmp_path))
    assert again.program == short.program
    for one, other in zip(again.scenes, short.scenes, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a[4:] == pytest.approx(b[4:], abs=6e-4)


def test_pairs_round_trip_through_a_file(tmp_path):
    path = tmp_path / "pairs.jsonl"
    pairs = spelled_pairs(5)
    save_pairs(pairs, path)
    assert load_pairs(path).program == pairs.program
    assert list(load_pairs(path).scenes) == list(pairs.scenes)
    save_pairs(Pairs(pairs.program, ()), path)
    assert not load_pairs(path).scenes
    path.write_text("{}\n")
    with pytest.raises(FormatError):
        load_pairs(path)


def test_the_last_part_of_the_data_is_the_test(tokenizer, tmp_path):
    pairs = spelled_pairs(10)
    train, test = training_and_test(tokenizer, encoded_of(pairs), "", 0.3, Job(tmp_path))
    assert [*train.scenes, *test.scenes] == pairs.scenes
    assert len(test) == 3
    with pytest.raises(DataError, match="leave none"):
        training_and_test(tokenizer, encoded_of(pairs), "", 0.01, Job(tmp_path))


def test_scenes_that_are_learnt_from_are_no_test(tokenizer, tmp_path):
    encoded = encode_dataset(tokenizer, open_dataset(SPEC), SPEC)
    more = "scenes:?n=5&seed=4&size=64"
    for _ in range(2):  # made, and read back from their file, which rounds places
        with pytest.raises(DataError, match=r"3 of the 3 scenes to be tested on .*another seed"):
            training_and_test(tokenizer, encoded, more, 0.2, Job(tmp_path))
    others = more.replace("seed=4", "seed=5")
    learnt, test = training_and_test(tokenizer, encoded, others, 0.2, Job(tmp_path))
    assert (len(learnt), len(test)) == (5, 3)


def test_nothing_is_read_without_scenes():
    with pytest.raises(DataError, match="without scenes"):
        train_reader(Pairs(spelled_pairs(4).program, ()), Options().reader, epochs=1)


def test_the_reader_study_end_to_end(tokenizer, tmp_path):
    options = Options(epochs=1, curve=2, width=16, depth=1)
    findings = run(tokenizer, encoded_of(spelled_pairs(200)), options, Job(tmp_path))
    scores = findings.numbers["scores"]
    assert list(scores) == ["naive", "reader, 40 pairs", "reader, 160 pairs"]
    assert scores["naive"]["scenes"] == 40
    assert set(scores["naive"]["attributes"]) == {"shape", "color", "size", "material"}
    assert [table.rows[0][0] for table in findings.tables] == ["naive", "Naive baseline"]
    assert set(findings.figures) == {"curve", "scenes"}
