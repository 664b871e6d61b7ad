"""Programs to bytes under a prior, and back, exactly."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from strop.analysis.prior import Prior
from strop.analysis.range_coder import Integers, RangeDecoder, encode
from strop.program import Program

LANES = 32
"""Programs that are decoded at once; each lane costs four bytes."""
_CHUNK = 64  # programs whose frequencies are in memory at once


def encode_programs(program: Program, prior: Prior) -> bytes:
    """B programs as bytes. Only active codes are kept."""
    rows = prior.check(program)
    lanes = min(LANES, len(rows))
    rounds = -(-len(rows) // lanes)
    # A round has a row for the lengths, and one for each position.
    shape = (rounds * lanes, 1 + prior.capacity)
    starts, frequencies = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    active = np.zeros(shape, bool)
    active[: len(rows), 0] = True
    active[: len(rows), 1:] = rows.active.numpy()
    count = len(rows)
    starts[:count, 0], frequencies[:count, 0] = _interval(
        prior.length_frequencies.expand(count, -1), rows.lengths - 1
    )
    for first in range(0, count, _CHUNK):
        part = slice(first, min(first + _CHUNK, count))
        longest = int(rows.lengths[part].max())
        codes = rows.codes[part, :longest]
        starts[part, 1 : longest + 1], frequencies[part, 1 : longest + 1] = _interval(
            prior.frequencies(codes[:, :-1]), codes
        )

    def by_round(values: np.ndarray) -> np.ndarray:
        return values.reshape(rounds, lanes, -1).transpose(0, 2, 1).reshape(-1, lanes)

    return encode(by_round(starts), by_round(frequencies), by_round(active))


def decode_programs(data: bytes, count: int, prior: Prior) -> Program:
    """The `count` programs that `encode_programs` wrote; `FormatError` for other bytes."""
    lanes = min(LANES, count)
    decoder = RangeDecoder(data, lanes)
    lengths = torch.zeros(count, dtype=torch.int64)
    codes = torch.zeros(count, prior.capacity, dtype=torch.int64)
    for first in range(0, count, lanes):
        some = min(lanes, count - first)  # the last round may not fill all lanes
        there = np.arange(lanes) < some
        found = 1 + _read(decoder, prior.length_frequencies.expand(lanes, -1), there)
        lengths[first : first + some] = found[:some]
        written = codes.new_zeros(lanes, 0)
        for k in range(int(found[:some].max())):
            odds = prior.frequencies(written, first=k)[:, 0]
            code = _read(decoder, odds, there & (found > k).numpy())
            written = torch.cat([written, code[:, None]], dim=1)
        codes[first : first + some, : written.shape[1]] = written[:some]
    decoder.finish()
    inside = torch.arange(prior.capacity) < lengths[:, None]
    return Program(
        codes=codes.where(inside, 0),
        lengths=lengths,
        codebook_size=prior.codebook_size,
        model=prior.model,
    )


def _interval(frequencies: Tensor, symbols: Tensor) -> tuple[Integers, Integers]:
    """Frequencies `(..., N)` to the start and the frequency of symbols `(...)`."""
    at = symbols[..., None]
    own = frequencies.gather(-1, at)
    return (frequencies.cumsum(-1).gather(-1, at) - own)[..., 0].numpy(), own[..., 0].numpy()


def _read(decoder: RangeDecoder, frequencies: Tensor, active: np.ndarray) -> Tensor:
    """The next symbols `(n,)`, given frequencies `(n, N)`."""
    slots = torch.from_numpy(decoder.peek())
    symbols = torch.searchsorted(frequencies.cumsum(-1), slots[:, None], right=True)[:, 0]
    decoder.advance(*_interval(frequencies, symbols), active)
    return symbols
