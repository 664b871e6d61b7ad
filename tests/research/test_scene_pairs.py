"""Programs with their scenes: rendered on the device, cached in a file, split for a test."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from spelled import spelled_pairs, subject_of

from scene_pairs import (
    ScenePairs,
    encode_pairs,
    load_pairs,
    pairs_of,
    save_pairs,
    training_and_test,
)
from strop.analysis.subject import Subject
from strop.data.rendered import write_scenes
from strop.data.spec import open_dataset
from strop.errors import DataError, FormatError

SPEC = "scenes:?n=3&seed=4&size=64"


@pytest.fixture
def subject(tokenizer, tmp_path) -> Subject:
    return Subject(
        tokenizer=tokenizer, dataset=open_dataset(SPEC), data=SPEC, folder=tmp_path / "out"
    )


def test_rendered_pairs_are_those_of_the_dataset(subject, tokenizer, monkeypatch):
    short, long = encode_pairs(subject, SPEC), pairs_of(subject)
    assert short.program == long.program.named(())
    for one, other in zip(short.scenes, long.scenes, strict=True):
        assert [each.words for each in one] == [each.words for each in other]
        for a, b in zip(one, other, strict=True):
            assert a[4:] == pytest.approx(b[4:], abs=1e-4)
    monkeypatch.setattr(tokenizer, "encode", None)  # the second time nothing is encoded
    again = encode_pairs(subject, SPEC)
    assert again.program == short.program
    for one, other in zip(again.scenes, short.scenes, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a[4:] == pytest.approx(b[4:], abs=6e-4)


def test_cached_pairs_are_those_of_the_model_and_the_data(subject, make_tokenizer, tmp_path):
    folder = tmp_path / "clevr"
    write_scenes(folder, n=3, size=64, seed=4)
    spec = f"clevr:{folder}?split=train"

    def files() -> set[str]:
        encode_pairs(subject, spec)
        return {path.name for path in subject.folder.glob("pairs-*")}

    assert len(files()) == len(files()) == 1
    image = next(iter(folder.rglob("*.png")))
    os.utime(image, ns=(1, 1))
    assert len(files()) == 2, "a file of the data has changed"
    subject.tokenizer = make_tokenizer(seed=1)
    assert len(files()) == 3, "another model"
    subject.tokenizer = copy.deepcopy(subject.tokenizer)
    with torch.no_grad():
        next(subject.tokenizer.length_head.parameters()).add_(1)
    assert len(files()) == 4, "other lengths"


def test_pairs_round_trip_through_a_file(tmp_path):
    path = tmp_path / "pairs.jsonl"
    pairs = spelled_pairs(5)
    save_pairs(pairs, path)
    assert load_pairs(path).program == pairs.program
    assert list(load_pairs(path).scenes) == list(pairs.scenes)
    save_pairs(ScenePairs(pairs.program, ()), path)
    assert not load_pairs(path).scenes
    path.write_text("{}\n")
    with pytest.raises(FormatError):
        load_pairs(path)


def test_the_last_part_of_the_data_is_tested_on(tokenizer):
    pairs = spelled_pairs(10)
    train, test = training_and_test(subject_of(tokenizer, pairs), "", 0.3)
    assert [*train.scenes, *test.scenes] == pairs.scenes
    assert len(test) == 3
    with pytest.raises(DataError, match="leave none"):
        training_and_test(subject_of(tokenizer, pairs), "", 0.01)


def test_scenes_that_are_trained_on_are_refused(subject):
    more = "scenes:?n=5&seed=4&size=64"
    for _ in range(2):  # encoded, and read from the cache, which rounds positions
        with pytest.raises(DataError, match=r"3 of the 3 scenes to be tested on .*another seed"):
            training_and_test(subject, more, 0.2)
    others = more.replace("seed=4", "seed=5")
    train, test = training_and_test(subject, others, 0.2)
    assert (len(train), len(test)) == (5, 3)
