"""The engine batches concurrent requests and runs the teacher once per image."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from strop.errors import ProgramError
from strop.inspector import engine as engines
from strop.inspector.engine import Batcher, Engine
from strop.program import Program


@pytest.fixture
def engine(tokenizer):
    return Engine(tokenizer)


@pytest.fixture
def teacher_runs(tokenizer):
    """A list that grows by one whenever the teacher runs."""
    runs: list[int] = []
    handle = tokenizer.teacher.register_forward_hook(lambda *_: runs.append(1))
    yield runs
    handle.remove()


def test_an_image_goes_through_the_teacher_once(engine, tokenizer, images, teacher_runs):
    made = engine.analyse(images[0])
    assert engine.analyse(images[0].clone()) is made
    assert len(teacher_runs) == 1
    assert made.program == tokenizer.encode(images[0])
    assert torch.allclose(made.field, tokenizer.field(images[0]))


def test_the_cache_keeps_recently_used_images(tokenizer, images, teacher_runs, monkeypatch):
    monkeypatch.setattr(engines, "CACHE_SIZE", 2)
    engine = Engine(tokenizer)
    for number in (0, 1, 0, 2):  # 0 was used after 1
        engine.analyse(images[number])
    assert len(teacher_runs) == 3
    engine.analyse(images[0])
    assert len(teacher_runs) == 3
    engine.analyse(images[1])
    assert len(teacher_runs) == 4


def test_programs_of_any_length_and_width_are_interpreted_together(engine, tokenizer, images):
    whole = tokenizer.encode(images, length=torch.tensor([1, 3, 12, 7, 5, 2]))
    narrow = [row.as_batch() for row in whole]  # cut to their active codes
    with ThreadPoolExecutor(6) as pool:
        fields = list(pool.map(engine.interpret, narrow))
    assert torch.allclose(torch.cat(fields), tokenizer.interpret(whole), atol=1e-5)
    assert torch.allclose(engine.interpret(whole), tokenizer.interpret(whole), atol=1e-5)


def test_a_program_of_another_model_fails_alone(engine, tokenizer, images):
    ours = tokenizer.encode(images[0])
    foreign = Program(codes=ours.codes, lengths=ours.lengths, codebook_size=64, model="another")
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(engine.interpret, each) for each in [ours, foreign] * 4]
    for number, future in enumerate(futures):
        if number % 2:
            with pytest.raises(ProgramError, match="another"):
                future.result()
        else:
            assert torch.allclose(future.result(), tokenizer.interpret(ours), atol=1e-5)


# Batches.


def test_waiting_items_form_batches():
    sizes, gate = [], threading.Event()

    def work(items):
        gate.wait()
        sizes.append(len(items))
        return [item * 10 for item in items]

    batcher = partial(Batcher(max_batch=4), work)
    with ThreadPoolExecutor(9) as pool:
        futures = [pool.submit(batcher, number) for number in range(9)]
        time.sleep(0.2)  # one is being processed, eight wait
        gate.set()
        assert [future.result(5) for future in futures] == [10 * n for n in range(9)]
    assert max(sizes) == 4
    assert len(sizes) <= 4


def test_an_error_fails_its_own_item_only():
    gate = threading.Event()

    def work(items):
        gate.wait()
        if "bad" in items:
            raise ValueError("bad")
        return items

    batcher = partial(Batcher(max_batch=8), work)
    with ThreadPoolExecutor(6) as pool:
        futures = {name: pool.submit(batcher, name) for name in ("a", "b", "bad", "c")}
        time.sleep(0.1)
        gate.set()
        assert [futures[name].result(5) for name in "abc"] == list("abc")
        with pytest.raises(ValueError, match="bad"):
            futures["bad"].result(5)
    assert batcher("after") == "after"


def test_a_short_request_does_not_wait_for_a_long_study():
    finished = []

    def work(items):
        time.sleep(0.01)
        return items

    batcher = partial(Batcher(max_batch=1), work)

    def long_study():
        for number in range(40):
            batcher(number)
        finished.append("long")

    study = threading.Thread(target=long_study)
    study.start()
    time.sleep(0.05)
    batcher("short")
    finished.append("short")
    study.join(10)
    assert finished == ["short", "long"]


def test_urgent_items_go_first_and_in_batches_of_their_own():
    done, gate = [], threading.Event()

    def work(items):
        gate.wait()
        done.append(sorted(items))
        return items

    batcher = partial(Batcher(max_batch=8), work)
    with ThreadPoolExecutor(6) as pool:
        pool.submit(batcher, "first")
        time.sleep(0.1)  # being processed, and blocked at the gate
        for item in ("study a", "study b"):
            pool.submit(batcher, item)
        time.sleep(0.1)
        for item in ("drag a", "drag b"):
            pool.submit(batcher, item, urgent=True)
        time.sleep(0.1)
        gate.set()
    assert done == [["first"], ["drag a", "drag b"], ["study a", "study b"]]
