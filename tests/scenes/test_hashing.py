from __future__ import annotations

import numpy as np
import torch

from strop.scenes import hashing

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15


def splitmix(value):
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def test_keys_and_numbers_are_splitmix64():
    counters = [0, 1, 2**62 + 12345, -99, 2**63 - 1]
    for seed in (0, 1, -5, 2**62 + 12345, 2**63 - 1):
        keys = hashing.key(seed, np.array(counters), np.array([7]))
        expected = []
        for counter in counters:
            state = splitmix((2 * seed + 1) & MASK)
            for part in (counter, 7):
                state = splitmix((state + part * STEP + STEP) & MASK)
            expected.append(state)
        assert keys.tolist() == expected
        numbers = hashing.uniform(keys, 3)
        assert numbers.tolist() == [
            [(splitmix((key + i * STEP) & MASK) >> 11) * 2.0**-53 for i in (1, 2, 3)]
            for key in expected
        ]


def test_numbers_are_uniform_and_independent_of_the_batch():
    keys = hashing.key(3, np.arange(5000))
    numbers = hashing.uniform(keys, 4)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert (numbers.mean(dim=0) - 0.5).abs().max() < 0.02
    assert torch.corrcoef(numbers.T).fill_diagonal_(0).abs().max() < 0.05
    alone = hashing.uniform(hashing.key(3, np.array([4321])), 2)
    assert torch.equal(alone[0], numbers[4321, :2])


def test_seeds_and_counters_give_other_numbers():
    index = np.arange(3)
    keys = {tuple(hashing.key(seed, index).tolist()) for seed in (0, 1, 2, -1, 2**40)}
    assert len(keys) == 5
    a = hashing.key(0, np.array([1]), np.array([2]))
    b = hashing.key(0, np.array([2]), np.array([1]))
    assert a.item() != b.item()
