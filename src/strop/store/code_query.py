"""Which programs have some codes and lack others: "17 and not (903 or 4)"."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from strop.errors import StoreError

if TYPE_CHECKING:
    from strop.store.store import Store

MAX_LENGTH = 1000
"""Characters of an expression."""

Rows = np.ndarray
"""(n,) bool: which of n programs fit."""

Has = Callable[[int], Rows]
"""Which programs have a code."""

_EXAMPLE = 'Write it like "17 and not (903 or 4)".'


def rows_with(store: Store, expression: str) -> np.ndarray:
    """The rows of a store whose programs fit an expression, ascending (m,) int64."""
    test = parse(expression, store.info.codebook_size)
    found, start = [np.zeros(0, dtype=np.int64)], 0
    for batch in store.batches(["codes"]):
        found.append(start + np.flatnonzero(test(_having(batch["codes"]))))
        start += len(batch)
    return np.concatenate(found)


def parse(expression: str, codebook_size: int) -> Callable[[Has], Rows]:
    """An expression of codes, `and`, `or`, `not` and parentheses; `StoreError` if it is wrong."""
    if len(expression) > MAX_LENGTH:
        raise StoreError(
            f"The expression has {len(expression):,} characters.", f"Give at most {MAX_LENGTH:,}."
        )
    wrong = StoreError(f"{expression!r} is not an expression of codes.", _EXAMPLE)
    try:
        tree = ast.parse(expression.strip().lower(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise wrong from error
    for node in ast.walk(tree):
        match node:
            case ast.BoolOp() | ast.And() | ast.Or() | ast.UnaryOp(ast.Not()) | ast.Not():
                pass
            case ast.Constant(int(code)) if code is not True and code is not False:
                if code >= codebook_size:
                    last = f"The codebook has the codes 0 to {codebook_size - 1:,}."
                    raise StoreError(f"There is no code {code}.", last)
            case _:
                raise wrong
    return lambda has: _fits(tree, has)


def _fits(node: ast.AST, has: Has) -> Rows:
    match node:
        case ast.BoolOp(operator, values):
            join = np.logical_and if isinstance(operator, ast.And) else np.logical_or
            return join.reduce([_fits(value, has) for value in values])
        case ast.UnaryOp(operand=operand):
            return ~_fits(operand, has)
        case ast.Constant(int(code)):
            return has(code)
    raise AssertionError(node)


def _having(codes: pa.ListArray) -> Has:
    offsets = codes.offsets.to_numpy()
    flat = codes.values.to_numpy()[offsets[0] : offsets[-1]]
    row = np.repeat(np.arange(len(codes)), np.diff(offsets))

    def has(code: int) -> Rows:
        found = np.zeros(len(codes), dtype=bool)
        found[row[flat == code]] = True
        return found

    return has
