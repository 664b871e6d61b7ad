"""Programs by counting: how often a code follows what came before it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from strop.program import Program

Context = Callable[[Sequence[int]], Hashable]
"""What of the codes so far counts."""

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
"""Models by name: contexts from the widest to the narrowest."""


class Counts:
    """A model of programs from counts along a chain of contexts.

    A narrow context is mixed with the next wider one by Witten and Bell's rule: the wider weighs
    as much as the number of different symbols that the narrow one has seen. At the end of the
    chain all symbols are alike. There are N + 1 symbols, the codes and the end.
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
        """Of the next symbol, after the codes so far."""
        p = 1 / self.symbols
        for context, seen, totals in zip(self.chain, self.seen, self._totals, strict=True):
            at = context(past)
            if at in totals:
                kinds = len(seen[at])
                p = (seen[at][symbol] + kinds * p) / (totals[at] + kinds)
        return p

    def bits(self, sequences: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """`(N,)`: what an ideal entropy coder spends on each sequence."""
        return np.array(
            [
                -sum(math.log2(self.probability(symbol, s[:k])) for k, symbol in enumerate(s))
                for s in sequences
            ]
        )


def symbols_of(program: Program) -> list[list[int]]:
    """The active codes of each program and the end, which is the symbol N.

    After K codes the end is certain, so it is not written.
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


def mutual_information(table: NDArray[np.int64]) -> float:
    """Bits that a code tells about the next, from an `(N, N)` table of counts."""
    joint = table / table.sum()
    apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    held = joint > 0
    return float((joint[held] * np.log2(joint[held] / apart[held])).sum())


def informative_bigrams(
    table: NDArray[np.int64], most: int = 20, least: int = 5
) -> list[tuple[int, int, int, float, float]]:
    """Pairs (code, next code, count, expected count, PMI in bits) that tell most.

    Ranked by count times PMI, which is a pair's part in the mutual information; pairs seen fewer
    than `least` times are left out, for their PMI is noise.
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
    """Each program's active codes in a random order: the same bag, no grammar."""
    random = np.random.default_rng(seed)
    codes = program.codes.clone()
    for row, length in enumerate(program.lengths.tolist()):
        codes[row, :length] = codes[row, random.permutation(length)]
    return _like(program, codes)


def shuffled_across(program: Program, seed: int) -> Program:
    """At each position, codes dealt anew among the programs that reach it.

    What positions prefer is kept; what codes of one image have to do with each other is not.
    """
    random = np.random.default_rng(seed)
    codes = program.codes.clone()
    for k in range(program.capacity):
        rows = (program.lengths > k).nonzero().squeeze(1)
        codes[rows, k] = codes[rows[random.permutation(len(rows))], k]
    return _like(program, codes)


def _like(program: Program, codes: Tensor) -> Program:
    return Program(
        codes=codes,
        lengths=program.lengths,
        codebook_size=program.codebook_size,
        model=program.model,
    )
