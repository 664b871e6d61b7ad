"""Random numbers that are a pure function of a counter, equal on every device.

A stateful generator would tie a scene to its place in a batch and to the device that drew it.
Here each number is a hash of (seed, index, ...), in 64-bit integers that wrap, so that scene
`i` never depends on who asked for scene `i - 1`.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """`value` modulo 2**64 as the int64 with the same bits."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def mix(value: Tensor) -> Tensor:
    """The splitmix64 finaliser, elementwise: int64 to int64 of the same shape."""
    value = (value ^ _shift(value, 30)) * _signed(_FIRST)
    value = (value ^ _shift(value, 27)) * _signed(_SECOND)
    return value ^ _shift(value, 31)


def key(seed: int, *parts: Tensor) -> Tensor:
    """One int64 key for each element of the broadcast `parts`, which are int64 counters."""
    state = mix(torch.tensor(_signed(seed * 2 + 1), device=parts[0].device))
    for part in parts:
        state = mix(state + part * _signed(_STEP) + _signed(_STEP))
    return state


def uniform(keys: Tensor, count: int) -> Tensor:
    """`count` float64 numbers in [0, 1) for each key: (...) to (..., count)."""
    counters = torch.arange(1, count + 1, device=keys.device) * _signed(_STEP)
    bits = mix(keys.unsqueeze(-1) + counters)
    return _shift(bits, 11).to(torch.float64) * 2.0**-53
