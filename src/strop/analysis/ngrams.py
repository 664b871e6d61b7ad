"""N-gram models of programs, bigram counts, and shuffled programs as controls."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from strop.program import Program

Context = Callable[[Sequence[int]], Hashable]
"""The part of the codes so far that predicts the next one."""

CHAINS: dict[str, tuple[Context, ...]] = {
    "uniform": (),
    "unigram": (lambda past: 0,),
    "position": (lambda past: 0, lambda past: len(past)),
    "bigram": (lambda past: 0, lambda past: tuple(past[-1:])),
    "trigram": (lambda past: 0, lambda past: tuple(past[-1:]), lambda past: tuple(past[-2:])),
    "position and last": (
        lambda past: 0,
        lambda past: len(past),
        lambda past: (len(past), *past[-1:]),
    ),
}
"""Models by name: contexts from the most general to the most specific."""


class NgramModel:
    """A model of programs from counts along a chain of contexts.

    Witten-Bell smoothing mixes a context with the next more general one, whose weight is the number
    of distinct symbols seen in the specific one. The most general model is uniform. There are
    N + 1 symbols, the codes and the end.
    """

    def __init__(self, chain: Sequence[Context], sequences: Sequence[Sequence[int]], symbols: int):
        self.chain = chain
        self.symbols = symbols
        self.seen: list[dict[Hashable, Counter[int]]] = [defaultdict(Counter) for _ in chain]
        for sequence in sequences:
            for k, symbol in enumerate(sequence):
                past = sequence[:k]
                for context, seen in zip(chain, self.seen, strict=True):
                    seen[context(past)][symbol] += 1
        self._totals = [{at: seen[at].total() for at in seen} for seen in self.seen]

    def probability(self, symbol: int, past: Sequence[int]) -> float:
        """The probability of the next symbol after the codes so far."""
        p = 1 / self.symbols
        for context, seen, totals in zip(self.chain, self.seen, self._totals, strict=True):
            at = context(past)
            if at in totals:
                kinds = len(seen[at])
                p = (seen[at][symbol] + kinds * p) / (totals[at] + kinds)
        return p

    def bits(self, sequences: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """`(N,)`: the bits that an ideal entropy coder spends on each sequence."""
        return np.array(
            [
                -sum(math.log2(self.probability(symbol, s[:k])) for k, symbol in enumerate(s))
                for s in sequences
            ]
        )


def symbols_of(program: Program) -> list[list[int]]:
    """The active codes of each program and the end, which is symbol N.

    After K codes a program must end, so the end is left out.
    """
    end = program.codebook_size
    return [
        codes if len(codes) == program.capacity else [*codes, end]
        for codes in (row.codes.tolist() for row in program.as_batch())
    ]


def neighbours(program: Program) -> NDArray[np.int64]:
    """`(M, 2)`: every active code and the one after it, over all programs."""
    codes, lengths = program.codes.cpu().numpy(), program.lengths.cpu().numpy()
    both = np.arange(1, codes.shape[1]) < lengths[:, None]
    return np.stack([codes[:, :-1][both], codes[:, 1:][both]], axis=1)


def bigram_table(pairs: NDArray[np.int64], codes: int) -> NDArray[np.int64]:
    """`(N, N)` counts of (code, next code)."""
    return np.bincount(pairs[:, 0] * codes + pairs[:, 1], minlength=codes**2).reshape(codes, codes)


def informative_bigrams(
    table: NDArray[np.int64], most: int = 20, least: int = 5
) -> list[tuple[int, int, int, float, float]]:
    """The most informative pairs (code, next code, count, expected count, PMI in bits).

    They are ranked by count times PMI, a pair's contribution to the mutual information. Pairs seen
    fewer than `least` times are left out, because their PMI is noise.
    """
    total = table.sum()
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / total
    with np.errstate(divide="ignore", invalid="ignore"):
        pmi = np.log2(table / expected)
    weight = np.where(table >= least, table * np.nan_to_num(pmi), -np.inf)
    order = np.argsort(-weight, axis=None, kind="stable")[:most]
    return [
        (int(a), int(b), int(table[a, b]), float(expected[a, b]), float(pmi[a, b]))
        for a, b in (divmod(int(flat), len(table)) for flat in order)
        if weight[a, b] > 0
    ]


def shuffled_within(program: Program, seed: int) -> Program:
    """Programs with their active codes in a random order."""
    random = np.random.default_rng(seed)
    codes = program.codes.clone()
    for row, length in enumerate(program.lengths.tolist()):
        codes[row, :length] = codes[row, random.permutation(length)]
    return replace(program, codes=codes)


def shuffled_across(program: Program, seed: int) -> Program:
    """At each position, codes permuted among the programs that reach it.

    This keeps the distribution of codes at each position, and removes the dependence between the
    codes of one image.
    """
    random = np.random.default_rng(seed)
    codes = program.codes.clone()
    for k in range(program.capacity):
        rows = (program.lengths > k).nonzero().squeeze(1)
        codes[rows, k] = codes[rows[random.permutation(len(rows))], k]
    return replace(program, codes=codes)
