"""A range coder: symbols of known probabilities to bytes and back, exactly, in integers.

It is the range variant of asymmetric numeral systems (Duda 2013), on n lanes at once. Each lane has
a state in [2^16, 2^32); all lanes share one stream of 16-bit words. Frequencies are integers that
sum to `TOTAL`. A symbol costs 16 - log2(frequency) bits, and a lane 32 bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strop.errors import FormatError

WORD = 16
TOTAL = 1 << WORD
"""The sum of the frequencies of all symbols."""

Integers = NDArray[np.int64]


def encode(starts: Integers, frequencies: Integers, active: NDArray[np.bool_]) -> bytes:
    """Symbols `(T, n)` to bytes, for a `RangeDecoder` that reads row after row.

    starts       the sum of the frequencies of all smaller symbols, in [0, TOTAL)
    frequencies  at least 1 where active
    active       False where a lane has no symbol in a row
    """
    state = np.full(starts.shape[1], TOTAL, np.int64)
    words: list[NDArray[np.uint16]] = []  # in the opposite order of reading
    for start, frequency, codes in zip(starts[::-1], frequencies[::-1], active[::-1], strict=True):
        x, f = state[codes], frequency[codes]
        full = x >= f << WORD
        words.append((x[full][::-1] & (TOTAL - 1)).astype(np.uint16))
        x = np.where(full, x >> WORD, x)
        state[codes] = ((x // f) << WORD) + x % f + start[codes]
    words.append(np.stack([state >> WORD, state & (TOTAL - 1)], axis=1)[::-1, ::-1].ravel())
    return np.concatenate(words)[::-1].astype("<u2").tobytes()


class RangeDecoder:
    """Reads what `encode` wrote, row after row: `peek`, find the symbols, `advance`."""

    def __init__(self, data: bytes, lanes: int) -> None:
        if len(data) % 2 or len(data) < 4 * lanes:
            raise FormatError("The coded stream is cut off.", _DAMAGED)
        words = np.frombuffer(data, "<u2").astype(np.int64)
        first = words[: 2 * lanes].reshape(lanes, 2)
        self._state = (first[:, 0] << WORD) + first[:, 1]
        self._words = words[2 * lanes :]

    def peek(self) -> Integers:
        """`(n,)` a number in [start, start + frequency) of each lane's next symbol."""
        return self._state & (TOTAL - 1)

    def advance(self, starts: Integers, frequencies: Integers, active: NDArray[np.bool_]) -> None:
        """Move past the next symbols `(n,)` of the active lanes."""
        x = frequencies * (self._state >> WORD) + self.peek() - starts
        short = active & (x < TOTAL)
        count = int(short.sum())
        if count > len(self._words):
            raise FormatError("The coded stream is cut off.", _DAMAGED)
        x[short] = (x[short] << WORD) + self._words[:count]
        self._words = self._words[count:]
        self._state = np.where(active, x, self._state)

    def finish(self) -> None:
        """`FormatError` unless the stream ends here, in the state in which the encoder began."""
        if len(self._words) or (self._state != TOTAL).any():
            raise FormatError("The coded stream does not decode to programs.", _DAMAGED)


_DAMAGED = "The file is damaged, or was written with another prior."
