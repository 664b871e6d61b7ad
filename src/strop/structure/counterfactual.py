"""Counterfactuals: the field of a program beside that of the program without a token, or two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.model.tokenizer import Tokenizer
from strop.program import Program

Edit = Literal["erase", "delete", "replace"]
_AT_ONCE = 16  # programs between two reports of progress


@torch.no_grad()
def erasure(
    tokenizer: Tokenizer,
    program: Program,
    *,
    edit: Edit = "erase",
    batch: int = 256,
    seed: int = 0,
) -> Tensor:
    """Erasure maps `(B, K, h, w)`: `1 - cos(Y_p, Y_-k,p)` for each token k and location p.

    `Y` is the field of the program and `Y_-k` that of the program with token k erased: a hole,
    with every other token at its own prefix position. A token that is not active holds nothing
    up, so its map is zero. The only token of a program cannot be erased: its map is NaN.

    Other edits: "delete" closes the gap, "replace" puts a random other code, drawn by `seed`,
    in the token's place. All edits of all programs are interpreted together, `batch` at a time.
    """
    rows = program.as_batch().to(tokenizer.device)
    grid = tokenizer.config.grid
    maps = torch.zeros(*rows.codes.shape, grid**2, device=rows.codes.device)
    alone = rows.active.sum(dim=1) == 1
    maps[rows.active & alone[:, None]] = torch.nan
    edits = (rows.active & ~alone[:, None]).nonzero()
    offsets = _offsets(len(edits), program.codebook_size, seed).to(edits.device)
    for part, shift, whole in _blocks(tokenizer, rows, edits, offsets, batch):
        row, token = part.unbind(dim=1)
        without = tokenizer.interpret(_edited(rows[row], token, edit, shift), batch=batch)
        maps[row, token] = 1 - F.cosine_similarity(whole, without, dim=-1)
    return maps.unflatten(-1, (grid, grid))


def erasure_maps(
    tokenizer: Tokenizer,
    program: Program,
    watch: Callable[[str, int, int], None],
    *,
    edit: Edit = "erase",
    seed: int = 0,
) -> Tensor:
    """`erasure` of many programs, on the CPU, telling `watch` how far it is."""
    parts = []
    for start in range(0, len(program), _AT_ONCE):
        part = program[start : start + _AT_ONCE]
        parts.append(erasure(tokenizer, part, edit=edit, seed=seed + start).cpu())
        watch(f"maps by {edit}", start + len(part), len(program))
    return torch.cat(parts)


@torch.no_grad()
def pair_erasure(
    tokenizer: Tokenizer, program: Program, pairs: Tensor, *, batch: int = 256
) -> Iterator[tuple[Tensor, Tensor]]:
    """Maps of erasing two tokens together, in chunks: `(n, 3)` pairs and `(n, S)` their maps.

    `pairs` `(P, 3)` holds row, i and j, ordered by row. A pair that would take out all that a
    program has is NaN. Nothing is kept between chunks of at most `batch` pairs, so that memory
    does not grow with their number.
    """
    rows = program.as_batch().to(tokenizer.device)
    pairs = pairs.to(tokenizer.device)
    for part, _, whole in _blocks(tokenizer, rows, pairs, pairs, batch):
        row, i, j = part.unbind(dim=1)
        left = rows.active[row].scatter(1, part[:, 1:], False).any(dim=1)
        maps = torch.full(whole.shape[:2], torch.nan, device=whole.device)
        if left.any():
            without = tokenizer.interpret(rows[row[left]].erase(i[left]).erase(j[left]))
            maps[left] = 1 - F.cosine_similarity(whole[left], without, dim=-1)
        yield part, maps


def rows_within(tokenizer: Tokenizer, memory: float) -> int:
    """How many programs may be interpreted together within `memory` GiB; at least one."""
    config = tokenizer.config
    widest = max(config.interpreter.feedforward, 4 * config.interpreter.width)
    # A layer holds its input, its hidden units and their activation; then there are two fields.
    floats = config.grid**2 * (3 * widest + 2 * config.teacher.width)
    return max(1, int(memory * 2**30 / (4 * floats)))


def _blocks(
    tokenizer: Tokenizer, rows: Program, edits: Tensor, beside: Tensor, batch: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Edits `(n, ...)` by row, what stands `beside` them, and the whole fields of their rows.

    Whole programs are interpreted `batch` at a time, just before their edits.
    """
    for start in range(0, len(rows), batch):
        inside = (edits[:, 0] >= start) & (edits[:, 0] < start + batch)
        if not inside.any():
            continue
        whole = tokenizer.interpret(rows[start : start + batch], batch=batch)
        for part, other in zip(
            edits[inside].split(batch), beside[inside].split(batch), strict=True
        ):
            yield part, other, whole[part[:, 0] - start]


def _offsets(count: int, codes: int, seed: int) -> Tensor:
    """`(count,)` steps from a code to a random other one, at least 1 unless there is no other."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(1, max(codes, 2), (count,), generator=random)


def _edited(program: Program, token: Tensor, edit: Edit, offset: Tensor) -> Program:
    if edit == "erase":
        return program.erase(token)
    if edit == "delete":
        return program.delete(token)
    own = program.codes.gather(1, token[:, None])[:, 0]
    return program.replace(token, (own + offset) % program.codebook_size)
