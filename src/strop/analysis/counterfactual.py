"""Counterfactual edits: the field of a program compared with its field without a token or two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.config import in_range, typed
from strop.errors import ProgramError, expect
from strop.model.tokenizer import Tokenizer, check_tokenizer
from strop.program import Program

Edit = Literal["erase", "delete", "replace"]
Removal = Literal["erase", "delete"]


@torch.no_grad()
def erasure(
    tokenizer: Tokenizer,
    program: Program,
    *,
    edit: Edit = "erase",
    batch: int = 256,
    seed: int = 0,
) -> Tensor:
    """Erasure maps of Section 4 `(B, K, h, w)`: `1 - cos(Y_p, Y_-k,p)`, token k, location p.

    `Y` is the field of the program and `Y_-k` the field of the program with token k erased: a
    hole, with all other tokens at their own prefix positions. The map of an inactive token is
    zero. The only token of a program cannot be erased: its map is NaN.

    Other edits: "delete" also moves the following tokens up; "replace" sets a random other code,
    drawn with `seed`. All edits of all programs are interpreted together, `batch` at a time.
    """
    check_tokenizer(tokenizer)
    expect(program, Program, "a program", ProgramError, "Call erasure(tokenizer, program).")
    typed(Edit, edit, "edit")
    batch = in_range(batch, "batch", 1)
    rows = program.as_batch().to(tokenizer.device)
    grid = tokenizer.config.grid
    maps = torch.zeros(*rows.codes.shape, grid**2, device=rows.codes.device)
    alone = rows.active.sum(dim=1) == 1
    maps[rows.active & alone[:, None]] = torch.nan
    edits = (rows.active & ~alone[:, None]).nonzero()
    random = torch.Generator().manual_seed(seed)
    # Steps from a code to another one: at least 1, unless there is only one code.
    steps = torch.randint(1, max(program.codebook_size, 2), (len(edits),), generator=random)
    beside = torch.cat([edits, steps[:, None].to(edits.device)], dim=1)
    for part, before in _chunks(tokenizer, rows, beside, batch):
        row, token, step = part.unbind(dim=1)
        after = tokenizer.interpret(_edited(rows[row], token, edit, step), batch=batch)
        maps[row, token] = 1 - F.cosine_similarity(before, after, dim=-1)
    return maps.unflatten(-1, (grid, grid))


@torch.no_grad()
def pair_erasure(
    tokenizer: Tokenizer,
    program: Program,
    pairs: Tensor,
    *,
    edit: Removal = "erase",
    batch: int = 256,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Maps of removing two tokens together, in chunks: pairs `(n, 3)` and their maps `(n, S)`.

    `pairs` `(P, 3)` holds row, i and j, with i before j, ordered by row. The map of a pair that
    holds all tokens of its program is NaN. A chunk has at most `batch` pairs and nothing is kept
    between chunks, so that memory does not grow with the number of pairs.
    """
    rows = program.as_batch().to(tokenizer.device)
    for part, before in _chunks(tokenizer, rows, pairs.to(tokenizer.device), batch):
        row, i, j = part.unbind(dim=1)
        left = rows.active[row].scatter(1, part[:, 1:], False).any(dim=1)
        maps = torch.full(before.shape[:2], torch.nan, device=before.device)
        if left.any():
            edited = rows[row[left]]
            for token in (j[left], i[left]):  # the later one first: deleting moves what follows
                edited = edited.erase(token) if edit == "erase" else edited.delete(token)
            after = tokenizer.interpret(edited)
            maps[left] = 1 - F.cosine_similarity(before[left], after, dim=-1)
        yield part, maps


def _chunks(
    tokenizer: Tokenizer, rows: Program, edits: Tensor, batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """At most `batch` edits `(n, ...)`, ordered by row, and the unedited fields of their rows.

    Unedited programs are interpreted `batch` at a time, just before their edits.
    """
    if not len(edits):
        return
    for some in edits[:, 0].unique().split(batch):
        fields = tokenizer.interpret(rows[some], batch=batch)
        for part in edits[torch.isin(edits[:, 0], some)].split(batch):
            yield part, fields[torch.searchsorted(some, part[:, 0].contiguous())]


def _edited(program: Program, token: Tensor, edit: Edit, step: Tensor) -> Program:
    if edit == "erase":
        return program.erase(token)
    if edit == "delete":
        return program.delete(token)
    own = program.codes.gather(1, token[:, None])[:, 0]
    return program.replace(token, (own + step) % program.codebook_size)
