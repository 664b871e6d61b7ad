"""The planted model is what it says: the studies' tests lean on it."""

from __future__ import annotations

import torch
from planted import BLOCK, LENGTH, SHARED, PlantedDataset

import strop


def test_it_reads_images_without_error(planted, planted_encoded):
    dataset, program = PlantedDataset(), planted_encoded.program
    assert program.lengths.tolist() == dataset.lengths.tolist()
    assert (program.codes == dataset.codes)[program.active].all()
    field = planted.field(planted_encoded.records.images)
    torch.testing.assert_close(planted.interpret(program), field)


def test_erasure_finds_exactly_what_each_token_owns(planted, planted_encoded):
    program = planted_encoded.program
    maps = strop.erasure(planted, program)
    for token in range(LENGTH):
        owned = (token == BLOCK).float() * program.active[:, token, None, None]
        assert torch.equal(maps[:, token], owned)
    assert not maps[..., BLOCK == SHARED].any(), "one of two tokens holds the shared block"
