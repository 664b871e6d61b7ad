"""Training with tokens centred by position: positions share the codes they otherwise divide."""

from __future__ import annotations

import pytest
import torch
from tiny_training import K, tiny_centred_config, tiny_config, tiny_fields, tiny_preset
from torch import Tensor

from strop.model.checkpoint import load_folder
from strop.model.tokenizer import Tokenizer
from strop.training.loop import Result, train

HELD_OUT = 200


@pytest.fixture(scope="module")
def fields() -> Tensor:
    """(1000, 2, S, d): like a teacher's, they differ less from each other than from zero."""
    fields, random = tiny_fields(1000), torch.Generator().manual_seed(100)
    return fields + 5 * torch.randn(fields.shape[2:], generator=random).bfloat16()


@pytest.fixture(scope="module")
def results(fields) -> dict[str, Result]:
    """The same run without centring and with it."""
    models = {"plain": tiny_config(), "centred": tiny_centred_config()}
    return {
        name: train(
            tiny_preset(model=model, batch=16), fields[:-HELD_OUT], validation=fields[-HELD_OUT:]
        )
        for name, model in models.items()
    }


@torch.no_grad()
def codes_of(tokenizer: Tokenizer, fields: Tensor) -> Tensor:
    """(n, K) of fields that were not trained on."""
    field = fields[-HELD_OUT:, 0].float() * tokenizer.config.teacher.scale
    return tokenizer.quantizer(tokenizer.generator(field)).codes


def codes_per_position(codes: Tensor) -> float:
    return sum(len(position.unique()) for position in codes.T) / K


def test_each_position_uses_more_of_the_codes(results, fields):
    plain, centred = (
        codes_per_position(codes_of(results[name].tokenizer, fields))
        for name in ("plain", "centred")
    )
    assert centred > 1.5 * plain


def test_it_costs_no_quality(results):
    plain, centred = (results[name].metrics["r2_centred"] for name in ("plain", "centred"))
    assert centred > plain - 0.03


def test_a_folder_keeps_the_means(results, fields, tmp_path):
    tokenizer = results["centred"].tokenizer
    tokenizer.save_pretrained(tmp_path)
    loaded = load_folder(tmp_path)
    assert torch.equal(loaded.quantizer.centre, tokenizer.quantizer.centre)
    assert loaded._known_identity() == tokenizer._known_identity()
    expected = codes_of(tokenizer, fields)
    assert torch.equal(codes_of(loaded, fields), expected)
    loaded.quantizer.centre.zero_()
    assert not torch.equal(codes_of(loaded, fields), expected)
    tokenizer.save_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(load_folder(tmp_path).quantizer.centre, tokenizer.quantizer.centre)
