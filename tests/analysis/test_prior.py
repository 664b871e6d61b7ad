"""The prior in integers: its entropy, its exactness, and the range coder that uses it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from chains import K, N, known_bits, markov, program_of
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from strop.analysis.prior import (
    STEPS,
    TENSORS,
    Prior,
    from_triangle,
    integer_softmax,
    load_prior,
)
from strop.analysis.prior_training import PriorNetwork, to_integers, train_prior
from strop.analysis.program_coding import LANES, decode_programs, encode_programs
from strop.analysis.range_coder import TOTAL, RangeDecoder, encode
from strop.errors import FormatError, ModelError, ProgramError
from strop.program import Program
from strop.random import seeded


@pytest.fixture(scope="module")
def prior() -> Prior:
    return train_prior(markov(1500), epochs=40)


def random_prior(codes: int, capacity: int, seed: int = 0) -> Prior:
    random = torch.Generator().manual_seed(seed)

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-127, 128, shape, generator=random).to(torch.int8)

    return Prior(
        table=integers(capacity, codes),
        embed=integers(codes, 5),
        mix=integers(capacity * (capacity - 1) // 2, 5, 5),
        out=integers(codes, 5),
        factor=torch.linspace(5e-6, 2e-5, capacity, dtype=torch.double),
        lengths=torch.randint(0, 9, (capacity,), generator=random) + 1,
    )


def draw_program(count: int, codes: int, capacity: int, seed: int = 0) -> Program:
    random = torch.Generator().manual_seed(seed)
    return Program(
        codes=torch.randint(codes, (count, capacity), generator=random),
        lengths=torch.randint(1, capacity + 1, (count,), generator=random),
        codebook_size=codes,
    )


def test_the_prior_recovers_the_entropy_of_a_chain(prior):
    test = markov(1000, seed=1)
    assert prior.bits(test).mean() == pytest.approx(known_bits(test), rel=0.05)
    assert torch.equal(test.entropy_bits(prior), prior.bits(test))


def test_samples_of_the_prior_are_of_the_chain(prior):
    drawn = prior.sample(1000, seed=3)
    assert torch.equal(drawn.codes, prior.sample(1000, seed=3).codes)
    held_out = markov(1000, seed=1)
    one, other = (
        np.bincount(each.lengths, minlength=K + 1) / len(each) for each in (drawn, held_out)
    )
    assert np.abs(one - other).sum() / 2 < 0.12
    steps = (drawn.codes[:, 1:] - drawn.codes[:, :-1]) % N
    follows = np.isin(steps[drawn.active[:, 1:]], (0, 1))
    assert follows.mean() > 0.95
    assert drawn.lengths.min() >= 1


def test_surprise_detects_programs_of_another_chain(prior):
    own = markov(200, seed=1)
    backwards = own.codes.clone()
    for row, length in enumerate(own.lengths.tolist()):
        backwards[row, :length] = own.codes[row, :length].flip(0)
    other = Program(codes=backwards, lengths=own.lengths, codebook_size=N)
    long = own.lengths > 6
    scores = torch.cat([prior.surprise(other)[long], prior.surprise(own)[long]])
    assert roc_auc_score(torch.arange(len(scores)) < long.sum(), scores) > 0.8


def test_probabilities_of_all_programs_sum_to_one():
    small = random_prior(3, 2)
    every = [[a] for a in range(3)] + [[a, b] for a in range(3) for b in range(3)]
    share = 2.0 ** -small.bits(program_of(every, 3, 2))
    assert float(share.sum()) == pytest.approx(1, abs=1e-9)


def test_logits_by_hand():
    prior = random_prior(3, 3)
    past = torch.tensor([[2, 0]])
    mix = from_triangle(prior.mix.long(), 3)[2]
    context = sum(mix[j] @ prior.embed[code].long() for j, code in enumerate([2, 0]))
    term = (prior.out.long() @ context * prior.factor[2]).floor()
    odds = 2.0 ** ((2 * prior.table[2].double() + term) / STEPS)
    found = prior.frequencies(past, first=2)[0, 0].double() / TOTAL
    assert torch.allclose(found, odds / odds.sum(), atol=4 / TOTAL)


def test_a_code_depends_on_those_before_it_only():
    prior, program = random_prior(30, 9), draw_program(4, 30, 9)
    whole = prior.frequencies(program.codes[:, :-1])
    for k in range(9):
        assert torch.equal(whole[:, k], prior.frequencies(program.codes[:, :k], first=k)[:, 0])
    assert not torch.equal(whole[0, 5], whole[1, 5])
    # A prefix costs the same as a program that was cut.
    whole_bits, cut = prior.bits(program.with_lengths(9)), prior.bits(program.with_lengths(4))
    assert (whole_bits > cut - 8).all()
    inactive = replace(program.with_lengths(4), codes=program.codes.clone())
    inactive.codes[:, 4:] = 0
    assert torch.equal(prior.bits(inactive), cut)


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=300))
def test_frequencies_are_proper_whatever_the_logits(logits):
    values = torch.tensor(logits, dtype=torch.double)
    found = integer_softmax(values)
    assert int(found.sum()) == TOTAL
    assert int(found.min()) >= 1
    exact = torch.softmax(values / STEPS * math.log(2), 0)
    assert torch.allclose(found.double() / TOTAL, exact, atol=(len(logits) + 2) / TOTAL)


def test_rounding_to_integers_costs_little(prior):
    program = markov(1500)
    with seeded(0):
        network = PriorNetwork(program, 8)
        torch.nn.init.normal_(network.mix, std=0.1)
    codes = markov(300, seed=2)
    log_p = network(codes.codes).detach().log_softmax(-1).gather(-1, codes.codes[..., None])[..., 0]
    exact = -(log_p * codes.active).sum(1) / math.log(2)
    rounded = to_integers(network, program)
    lengths = 16 - rounded.length_frequencies.double().log2()[codes.lengths - 1]
    assert (rounded.bits(codes) - lengths).mean() == pytest.approx(float(exact.mean()), rel=0.02)


def test_a_prior_round_trips_through_a_file(prior, tmp_path):
    path = tmp_path / "prior.safetensors"
    path.write_bytes(prior.to_bytes())
    test = markov(20, seed=5)
    assert torch.equal(load_prior(path).bits(test), prior.bits(test))
    assert torch.equal(load_prior(tmp_path).bits(test), prior.bits(test)), "the folder of a model"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(FormatError):
        load_prior(path)
    path.unlink()
    with pytest.raises(ModelError, match="no prior"):
        load_prior(tmp_path)


def test_files_with_impossible_tensors_are_refused(prior, tmp_path):
    path = tmp_path / "prior.safetensors"
    for name in TENSORS:
        tensor = getattr(prior, name)
        for wrong in (tensor[..., None], tensor.to(torch.int16)):
            path.write_bytes(replace(prior, **{name: wrong}).to_bytes())
            with pytest.raises(FormatError):
                load_prior(path)
    path.write_bytes(replace(prior, lengths=torch.zeros(K, dtype=torch.int64)).to_bytes())
    with pytest.raises(FormatError):
        load_prior(path)


def test_programs_of_another_prior_are_refused(prior):
    with pytest.raises(ProgramError, match="not written for this prior"):
        prior.bits(program_of([[1]], N + 1, K))
    with pytest.raises(ProgramError, match="of model"):
        replace(prior, model="a-b").bits(program_of([[1]], N, K, "c-d"))
    with pytest.raises(ProgramError, match="erased"):
        prior.bits(program_of([[1, 2]], N, K).erase(0))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3 * LANES), st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))
def test_coded_programs_come_back(count, codes, capacity, seed):
    prior = random_prior(codes, capacity, seed)
    program = draw_program(count, codes, capacity, seed)
    stream = encode_programs(program, prior)
    found = decode_programs(stream, count, prior)
    assert torch.equal(found.lengths, program.lengths)
    assert found == program
    # A lane ends with a state of 16 bits beyond its initial one.
    lanes = min(LANES, count)
    spent = float(prior.bits(program).sum())
    assert spent - 1 <= 8 * len(stream) <= spent + 33 * lanes


def test_damaged_streams_are_refused():
    prior, program = random_prior(20, 6), draw_program(90, 20, 6)
    stream = encode_programs(program, prior)
    for place in range(0, len(stream), 7):
        damaged = bytearray(stream)
        damaged[place] ^= 0x10
        with pytest.raises(FormatError):
            decode_programs(bytes(damaged), 90, prior)
    for cut in (stream[:-2], stream[:-1], stream[:10], stream + b"\0\0", b""):
        with pytest.raises(FormatError):
            decode_programs(cut, 90, prior)


@given(st.integers(1, 30), st.integers(1, 7), st.integers(0, 999))
def test_the_range_coder_returns_symbols(rows, lanes, seed):
    random = np.random.default_rng(seed)
    weights = random.integers(1, 1000, (rows, lanes, 11)) ** 2
    odds = 1 + weights * (TOTAL - 11) // weights.sum(-1, keepdims=True)
    odds[..., 0] += TOTAL - odds.sum(-1)
    starts = odds.cumsum(-1) - odds
    symbols = random.integers(11, size=(rows, lanes, 1))
    active = random.random((rows, lanes)) < 0.7
    first, width = (np.take_along_axis(each, symbols, -1)[..., 0] for each in (starts, odds))
    decoder = RangeDecoder(encode(first, width, active), lanes)
    for row in range(rows):
        slot = decoder.peek()
        found = (starts[row] <= slot[:, None]).sum(-1) - 1
        assert (found == symbols[row, :, 0])[active[row]].all()
        decoder.advance(first[row], width[row], active[row])
    decoder.finish()


def test_frequencies_do_not_depend_on_the_batch_or_threads():
    prior, program = random_prior(200, 16), draw_program(70, 200, 16)
    together = prior.frequencies(program.codes[:, :-1])
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            alone = torch.cat([prior.frequencies(row[None, :-1]) for row in program.codes])
            assert torch.equal(alone, together)
    finally:
        torch.set_num_threads(before)
