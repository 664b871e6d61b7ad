"""The rungs of the ladder, and a reader of vectors."""

from __future__ import annotations

import pytest
import torch
from spelled import spelled_pairs

from code_transformer import Inputs, NetworkConfig
from ladder import RUNGS, Rungs, climb
from reader_network import Reader, fit_reader
from scene_scores import score

pytestmark = pytest.mark.slow

SMALL = NetworkConfig(width=48, depth=1, dropout=0.0)


def test_a_reader_of_one_hot_vectors_reads_what_is_spelled():
    pairs, test = spelled_pairs(1500), spelled_pairs(100, seed=1)
    size = pairs.program.codebook_size

    def one_hot(program) -> Inputs:
        return Inputs(torch.eye(size)[program.codes].half(), program.active)

    torch.manual_seed(0)
    reader = Reader(SMALL, size, pairs.program.capacity, vectors=True)
    fit_reader(reader, one_hot(pairs.program), pairs.scenes, epochs=16)
    scores = score(reader.read(one_hot(test.program)), test.scenes).intervals()
    assert scores["placed_accuracy"].value > 0.95
    assert scores["count_error"].value < 0.05


def test_the_rungs_are_those_of_the_model(tokenizer):
    rungs = Rungs(tokenizer, "scenes:?n=6&seed=1&size=64", whole=False)
    config = tokenizer.config
    shapes = {name: tuple(rungs[name].values.shape) for name in RUNGS}
    field = (6, config.grid**2, config.teacher.width)
    tokens = (6, config.max_length, config.quantizer.code_width)
    assert shapes == {
        "teacher": field,
        "raw": tokens,
        "quantized": tokens,
        "codes": tokens[:2],
        "interpreted": field,
    }
    assert len(rungs.scenes) == 6
    assert torch.equal(rungs["raw"].active, rungs.program.active)
    assert rungs["interpreted"].active.all()
    expected = tokenizer.interpret(rungs.program).half().cpu()
    torch.testing.assert_close(rungs["interpreted"].values, expected)
    whole = Rungs(tokenizer, "scenes:?n=6&seed=1&size=64", whole=True)
    assert whole["codes"].active.all()


def test_every_rung_is_climbed(tokenizer):
    train, test = (Rungs(tokenizer, f"scenes:?n=24&seed={seed}&size=64", False) for seed in (1, 2))
    for name in ("teacher", "codes"):
        scores = climb(train, test, name, SMALL, epochs=1, seed=0, note=lambda text: None)
        assert scores.scenes == 24
