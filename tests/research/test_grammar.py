"""Grammars of a Markov chain of known entropy, and counts worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from chains import N, known_bits, markov, program_of
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from grammar import (
    CHAINS,
    NgramModel,
    Options,
    counted_bits,
    informative_bigrams,
    length_distance,
    run,
    symbols_of,
    training_and_test,
)
from strop.analysis.prior import load_prior
from strop.analysis.subject import Subject
from strop.data import ScenesDataset
from strop.data.record import Batch
from strop.data.spec import open_dataset
from strop.errors import DataError
from strop.model.tokenizer import Tokenizer
from strop.program import Program


def test_counting_recovers_the_entropy_of_a_chain():
    train, test = markov(3000), markov(1000, seed=1)
    bits = {name: each.mean() for name, each in counted_bits(train, test).items()}
    assert bits["bigram"] == pytest.approx(known_bits(test), rel=0.03)
    assert bits["trigram"] == pytest.approx(known_bits(test), rel=0.04)
    assert bits["uniform"] > bits["unigram"] > 1.3 * bits["bigram"]
    symbols = sum(map(len, symbols_of(test)))
    assert bits["uniform"] * 1000 == pytest.approx(symbols * math.log2(N + 1))


def test_witten_bell_smoothing_by_hand():
    # Seen: 0 0, 0 1. After 0: the code 0 once, 1 once, so two kinds of two events.
    counts = NgramModel(CHAINS["bigram"], [[0, 0], [0, 1]], 3)
    p0 = (3 + 2 / 3) / (4 + 2)  # of the code 0 wherever: three of four events, two kinds
    p2 = (0 + 2 / 3) / (4 + 2)
    assert counts.probability(0, [0]) == pytest.approx((1 + 2 * p0) / (2 + 2))
    assert counts.probability(2, [0]) == pytest.approx((0 + 2 * p2) / (2 + 2))
    assert counts.probability(0, [2]) == pytest.approx(p0), "unseen: the more general context"


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=8))
def test_probabilities_of_all_symbols_sum_to_one(sequences):
    for chain in CHAINS.values():
        counts = NgramModel(chain, sequences, 4)
        for past in ([], [3], sequences[0]):
            assert sum(counts.probability(s, past) for s in range(4)) == pytest.approx(1)


def test_informative_pairs_by_hand():
    table = np.zeros((3, 3), int)
    table[0, 1], table[1, 0], table[0, 0], table[2, 2] = 8, 6, 2, 1
    first, second = informative_bigrams(table)
    assert first[:3] == (1, 0, 6)
    assert second[:3] == (0, 1, 8), "a pair seen once is left out, however surprising"
    assert first[3] == pytest.approx(6 * 8 / 17)
    assert first[4] == pytest.approx(math.log2(6 * 17 / (6 * 8)))


def test_distances_of_lengths_are_scipys():
    random = np.random.default_rng(0)
    one, other = random.integers(1, 9, 200), random.integers(3, 12, 150)
    distance = length_distance(torch.tensor(one), torch.tensor(other))
    assert distance["kolmogorov_smirnov"] == pytest.approx(ks_2samp(one, other).statistic)
    p, q = (np.bincount(x, minlength=12) / len(x) for x in (one, other))
    assert distance["total_variation"] == pytest.approx(np.abs(p - q).sum() / 2)


def subject_of(tokenizer: Tokenizer, program: Program) -> Subject:
    """A subject that has encoded these programs; the images are blank."""
    images = torch.zeros(len(program), 3, 1, 1, dtype=torch.uint8)
    names = tuple(map(str, range(len(program))))
    records = Batch(images=images, names=names, indices=torch.arange(len(program)))
    subject = Subject(tokenizer=tokenizer, dataset=ScenesDataset(n=1, seed=0, size=64), data="none")
    subject.__dict__["_encoded"] = records, program, torch.zeros(0)
    return subject


def test_the_analysis_end_to_end(tokenizer, tmp_path):
    random = np.random.default_rng(0)
    codes = [random.integers(64, size=random.integers(1, 13)).tolist() for _ in range(60)]
    program = program_of(codes, 64, 12, tokenizer.identity.codes)
    findings = run(subject_of(tokenizer, program), Options(epochs=1, width=16, samples=20))
    numbers = findings.numbers
    assert (numbers["programs"], numbers["test_programs"]) == (48, 12)
    assert numbers["models"]["uniform"]["perplexity"] == pytest.approx(65)
    assert numbers["models"]["unigram"]["bits_per_image"].value > 0
    assert set(findings.figures) == {"models", "samples"}
    (tmp_path / "prior.safetensors").write_bytes(findings.files["prior.safetensors"])
    assert load_prior(tmp_path / "prior.safetensors").model == tokenizer.identity.codes


def test_training_programs_are_of_other_images(tokenizer):
    scenes = "scenes:?n={}&seed={}&size=64"
    test = Subject(tokenizer=tokenizer, dataset=open_dataset(scenes.format(3, 1)), data="test")
    train, same = training_and_test(test, scenes.format(5, 2))
    assert (len(train), len(same)) == (5, 3)
    expected = Subject(tokenizer=tokenizer, dataset=open_dataset(scenes.format(5, 2)), data="x")
    assert train == expected.program
    with pytest.raises(DataError, match="also trained on"):
        training_and_test(test, scenes.format(5, 1))
    with pytest.raises(DataError, match="leave none"):
        training_and_test(
            Subject(tokenizer=tokenizer, dataset=open_dataset(scenes.format(2, 1)), data="two"), ""
        )
