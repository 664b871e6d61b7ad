"""The script that trains the prior of a bundled model."""

from __future__ import annotations

import sys

import pytest
import torch

import bundle_prior
from strop.analysis.prior import load_prior
from strop.program import Program

pytestmark = pytest.mark.slow


def test_a_prior_lands_beside_the_weights(make_tokenizer, tmp_path, monkeypatch):
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    config = tokenizer.config
    random = torch.Generator().manual_seed(0)
    shape = (60, config.max_length)
    program = Program(
        codes=torch.randint(config.quantizer.codes, shape, generator=random),
        lengths=torch.randint(1, config.max_length + 1, shape[:1], generator=random),
        codebook_size=config.quantizer.codes,
        model=tokenizer.identity.codes,
    )
    program.save(tmp_path / "programs.parquet")
    arguments = [str(tmp_path / "model"), str(tmp_path / "programs.parquet"), "--epochs", "1"]
    monkeypatch.setattr(sys, "argv", ["bundle_prior.py", *arguments])
    bundle_prior.main()
    prior = load_prior(tmp_path / "model")
    assert prior.model == tokenizer.identity.codes
    assert prior.lengths.unique().tolist() == [1]
    assert len(program.entropy_bits(prior)) == 60
