"""Which of PyTorch's attention kernels a run may use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from strop.model.short_attention import serves
from strop.model.tokenizer import TokenizerConfig

_TILE = 128
"""Keys that cuDNN's backward kernel takes at a time on Hopper."""


@contextlib.contextmanager
def sound_attention(*keys: int) -> Iterator[None]:
    """Without cuDNN's attention where its gradients over so many keys may not be numbers.

    With half a tile left over, as with the 64 locations of 128 px, the other half is scored 0
    instead of hidden; where the scores of a query are all far below that, its gradient overflows
    while its output is right (pytorch/pytorch#196678, from torch 2.11 on).
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(
        before and all(count % _TILE != _TILE // 2 for count in keys)
    )
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def attended(config: TokenizerConfig) -> list[int]:
    """How many keys PyTorch's own attention goes over on a GPU: all where ours is not at work."""
    locations, k = config.grid**2, config.max_length
    generator, interpreter = config.generator, config.interpreter
    masked = [(k, locations + k, generator.width // generator.heads)]
    masked.append((locations, k, interpreter.width // interpreter.heads))
    return [
        locations,
        *(keys for queries, keys, width in masked if not serves(queries, keys, width)),
    ]
