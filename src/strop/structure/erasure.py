"""Counterfactual erasure: what each token of a program holds up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.model.tokenizer import Tokenizer
from strop.program import Program


@torch.no_grad()
def erasure(tokenizer: Tokenizer, program: Program, *, batch: int = 256) -> Tensor:
    """Erasure maps `(B, K, h, w)`: `1 - cos(Y_p, Y_-k,p)` for each token k and location p.

    `Y` is the field of the program and `Y_-k` that of the program with token k erased: a hole,
    with every other token at its own prefix position. A token that is not active holds nothing
    up, so its map is zero. The only token of a program cannot be erased: its map is NaN.

    All erasures of all programs are interpreted together, `batch` at a time.
    """
    rows = program.as_batch().to(tokenizer.device)
    grid = tokenizer.config.grid
    whole = tokenizer.interpret(rows)
    maps = torch.zeros(*rows.codes.shape, grid**2, device=whole.device)

    row, token = rows.active.nonzero(as_tuple=True)
    alone = rows.active.sum(dim=1) == 1
    maps[row[alone[row]], token[alone[row]]] = torch.nan
    row, token = row[~alone[row]], token[~alone[row]]
    for start in range(0, len(row), batch):
        r, k = row[start : start + batch], token[start : start + batch]
        without = tokenizer.interpret(rows[r].erase(k), batch=batch)
        maps[r, k] = 1 - F.cosine_similarity(whole[r], without, dim=-1)
    return maps.unflatten(-1, (grid, grid))
