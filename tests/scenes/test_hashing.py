from __future__ import annotations

import torch

from strop.scenes import hashing

MASK = (1 << 64) - 1


def splitmix(value):
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def test_mix_is_splitmix64():
    values = [0, 1, 2**62 + 12345, 2**63 + 99, MASK]
    signed = torch.tensor([v - (1 << 64) if v >> 63 else v for v in values])
    assert [v & MASK for v in hashing.mix(signed).tolist()] == [splitmix(v) for v in values]


def test_numbers_are_uniform_and_independent_of_the_batch():
    keys = hashing.key(3, torch.arange(5000))
    numbers = hashing.uniform(keys, 4)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert (numbers.mean(dim=0) - 0.5).abs().max() < 0.02
    assert torch.corrcoef(numbers.T).fill_diagonal_(0).abs().max() < 0.05
    alone = hashing.uniform(hashing.key(3, torch.tensor([4321])), 2)
    assert torch.equal(alone[0], numbers[4321, :2])


def test_seeds_and_counters_give_other_numbers():
    index = torch.arange(3)
    keys = {tuple(hashing.key(seed, index).tolist()) for seed in (0, 1, 2, -1, 2**40)}
    assert len(keys) == 5
    a = hashing.key(0, torch.tensor([1]), torch.tensor([2]))
    b = hashing.key(0, torch.tensor([2]), torch.tensor([1]))
    assert a.item() != b.item()
