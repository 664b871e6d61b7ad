"""Avoids an attention kernel of cuDNN with wrong gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from strop.model.short_attention import serves
from strop.model.tokenizer import TokenizerConfig

_TILE = 128
"""Tile size over keys of cuDNN's backward kernel on Hopper."""


@contextlib.contextmanager
def sound_attention(*keys: int) -> Iterator[None]:
    """A context without cuDNN's attention if its gradients may be NaN for these numbers of keys.

    If the last tile is half full, as with the 64 locations of 128 px, the other half is scored 0
    instead of masked. Where all scores of a query are far below 0, its gradient overflows, although
    its output is right (pytorch/pytorch#196678, torch 2.11 and later).
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
    """Numbers of keys of the attention calls that PyTorch's kernels compute on a GPU."""
    locations, k = config.grid**2, config.max_length
    generator, interpreter = config.generator, config.interpreter
    masked = [(k, locations + k, generator.width // generator.heads)]
    masked.append((locations, k, interpreter.width // interpreter.heads))
    return [
        locations,
        *(keys for queries, keys, width in masked if not serves(queries, keys, width)),
    ]
