"""One model for all: each image goes through the teacher once, and little is kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from strop.errors import ProgramError
from strop.inspector import engine as engines
from strop.inspector.engine import Engine
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
    made = engine.encode(images[0])
    assert engine.encode(images[0].clone()) is made
    assert len(teacher_runs) == 1
    assert made.program == tokenizer.encode(images[0])
    assert torch.allclose(made.field, tokenizer.field(images[0]))


def test_only_the_last_images_are_remembered(engine, images, teacher_runs, monkeypatch):
    monkeypatch.setattr(engines, "REMEMBERED", 2)
    for number in (0, 1, 0, 2):  # 0 was used after 1
        engine.encode(images[number])
    assert len(teacher_runs) == 3
    engine.encode(images[0])
    assert len(teacher_runs) == 3
    engine.encode(images[1])
    assert len(teacher_runs) == 4


def test_programs_of_all_lengths_and_widths_are_interpreted_together(engine, tokenizer, images):
    whole = tokenizer.encode(images, length=torch.tensor([1, 3, 12, 7, 5, 2]))
    narrow = [row.as_batch() for row in whole]  # cut to their active codes
    with ThreadPoolExecutor(6) as pool:
        fields = list(pool.map(engine.interpret, narrow))
    assert torch.allclose(torch.cat(fields), tokenizer.interpret(whole), atol=1e-5)
    assert torch.allclose(engine.interpret(whole), tokenizer.interpret(whole), atol=1e-5)


def test_a_foreign_program_fails_alone(engine, tokenizer, images):
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
