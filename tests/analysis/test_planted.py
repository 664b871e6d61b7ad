"""The planted model has the properties that other tests rely on."""

from __future__ import annotations

import torch
from planted import BLOCK, LENGTH, SHARED

import strop


def test_it_encodes_images_without_error(planted):
    dataset, program = planted.dataset, planted.program
    assert program.lengths.tolist() == dataset.lengths.tolist()
    assert (program.codes == dataset.codes)[program.active].all()
    assert torch.equal(planted.tokenizer.interpret(program), planted.fields)


def test_erasure_finds_exactly_what_each_token_owns(planted):
    program = planted.program
    maps = strop.erasure(planted.tokenizer, program)
    for token in range(LENGTH):
        owned = (token == BLOCK).float() * program.active[:, token, None, None]
        assert torch.equal(maps[:, token], owned)
    assert not maps[..., BLOCK == SHARED].any(), "the other token still holds the shared block"
