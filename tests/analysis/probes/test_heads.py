"""Heads read what they should, in the order they should, and nothing else."""

from __future__ import annotations

import torch

from strop.analysis.probes.heads import (
    READER,
    FieldReader,
    InterpreterReader,
    Probe,
    QueryReader,
    Tokens,
    make_probe,
)


def some_tokens(seed: int = 0, images: int = 3, length: int = 6, width: int = 8) -> Tokens:
    random = torch.Generator().manual_seed(seed)
    vectors = torch.randn(images, length, width, generator=random)
    lengths = torch.randint(2, length + 1, (images,), generator=random)
    return Tokens(vectors, torch.arange(length) < lengths[:, None])


def test_queries_see_a_set():
    reader = QueryReader(8, 4)
    tokens = some_tokens()
    result = reader(tokens)
    assert result.shape == (3, 4, 8)
    torch.testing.assert_close(reader(tokens.shuffled(1)), result)


def interpreter_reader(ordered: bool) -> InterpreterReader:
    torch.manual_seed(0)
    return InterpreterReader(8, 6, 4, ordered).eval()


def test_an_interpreter_reads_an_order_or_a_set():
    tokens = some_tokens()
    as_set, in_order = interpreter_reader(False), interpreter_reader(True)
    assert as_set(tokens).shape == (3, 4, READER.width)
    torch.testing.assert_close(as_set(tokens.shuffled(1)), as_set(tokens))
    assert (in_order(tokens.shuffled(1)) - in_order(tokens)).abs().max() > 1e-3
    # Training must not bring the positions back.
    as_set(tokens).square().sum().backward()
    assert as_set.interpreter.prefix_positions.grad is None


def test_inactive_tokens_leave_no_trace():
    tokens = some_tokens()
    noise = torch.randn_like(tokens.vectors)
    other = Tokens(torch.where(tokens.active[..., None], tokens.vectors, noise), tokens.active)
    assert not tokens.active.all()
    readers = (QueryReader(8, 4), interpreter_reader(False), interpreter_reader(True))
    for reader in readers:
        torch.testing.assert_close(reader(other), reader(tokens))


def test_shuffling_keeps_the_codes_and_the_length():
    tokens = some_tokens(images=20)
    shuffled = tokens.shuffled(3)
    assert torch.equal(shuffled.active, tokens.active)
    assert torch.equal(shuffled.vectors, tokens.shuffled(3).vectors)
    assert not torch.equal(shuffled.vectors, tokens.vectors)
    for row in range(20):
        here = tokens.active[row]
        before = tokens.vectors[row][here].sort(dim=0).values
        assert torch.equal(shuffled.vectors[row][here].sort(dim=0).values, before)


def test_fields_are_read_as_they_are_or_pooled_by_their_mean():
    field = torch.randn(2, 5, 3)
    assert torch.equal(FieldReader(pooled=False)(field.half()), field.half().float())
    pooled = FieldReader(pooled=True)(field)
    torch.testing.assert_close(pooled, field.mean(dim=1, keepdim=True))


def test_probes_are_made_for_what_they_read():
    cases = [
        (FieldReader, torch.randn(2, 4, 8), True, False),
        (QueryReader, some_tokens(), True, False),
        (InterpreterReader, some_tokens(), True, True),
        (InterpreterReader, some_tokens(), False, False),
    ]
    for kind, representation, pooling, sequence in cases:
        probe = make_probe(representation, 3, locations=4, sequence=sequence, pooling=pooling)
        assert isinstance(probe, Probe)
        assert isinstance(probe.reader, kind)
        if isinstance(probe.reader, InterpreterReader):
            assert probe.reader.interpreter.prefix_positions.requires_grad == sequence
