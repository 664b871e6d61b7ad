"""Programs of a Markov chain of known entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from strop.program import Program

N, K, STOP = 4, 12, 0.15
# Each code is followed by itself or its successor, three to one.
CHAIN = 0.75 * np.eye(N) + 0.25 * np.roll(np.eye(N), 1, axis=1)


def entropy(*p: float) -> float:
    return -sum(x * math.log2(x) for x in p)


def markov(count: int, seed: int = 0) -> Program:
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        codes = [int(random.integers(N))]
        while len(codes) < K and random.random() >= STOP:
            codes.append(int(random.choice(N, p=CHAIN[codes[-1]])))
        rows.append(codes)
    return program_of(rows, N, K)


def known_bits(program: Program) -> float:
    """What the chain's own entropy gives for programs of these lengths, per image."""
    # After its first code, a program decides after each code whether to stop, but for the last.
    decisions = np.minimum(program.lengths.numpy(), program.capacity - 1)
    return math.log2(N) + decisions.mean() * (
        entropy(STOP, 1 - STOP) + (1 - STOP) * entropy(0.75, 0.25)
    )


def program_of(
    codes: Sequence[Sequence[int]], codebook_size: int, capacity: int, model: str = ""
) -> Program:
    """A batch of programs from lists of active codes."""
    padded = torch.zeros(len(codes), capacity, dtype=torch.int64)
    for row, active in enumerate(codes):
        padded[row, : len(active)] = torch.tensor(active)
    lengths = torch.tensor([len(active) for active in codes])
    return Program(codes=padded, lengths=lengths, codebook_size=codebook_size, model=model)
