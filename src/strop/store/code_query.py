"""Which programs have some codes and lack others: "17 and not (903 or 4)"."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from strop.errors import StoreError

if TYPE_CHECKING:
    from strop.store.store import Store

MAX_LENGTH = 1000
"""Characters of an expression."""

MAX_DEPTH = 50
"""Parentheses of an expression."""

Rows = np.ndarray
"""(n,) bool: which of n programs fit."""

Test = Callable[[Callable[[int], Rows]], Rows]
"""From a function that tells which programs have a code, to those that fit."""

_TOKENS = re.compile(r"\s*(\d+|and\b|or\b|not\b|[()])", re.IGNORECASE)
_EXAMPLE = 'Write it like "17 and not (903 or 4)".'


def rows_with(store: Store, expression: str) -> np.ndarray:
    """The rows of a store whose programs fit an expression, ascending (m,) int64."""
    test = parse(expression, store.info.codebook_size)
    found, start = [np.zeros(0, dtype=np.int64)], 0
    for batch in store.batches(["codes"]):
        found.append(start + np.flatnonzero(test(_having(batch["codes"]))))
        start += len(batch)
    return np.concatenate(found)


def parse(expression: str, codebook_size: int) -> Test:
    """An expression of codes, `and`, `or`, `not` and parentheses; `StoreError` if it is wrong."""
    if len(expression) > MAX_LENGTH:
        raise StoreError(
            f"The expression has {len(expression):,} characters.", f"Give at most {MAX_LENGTH:,}."
        )
    tokens = _tokens(expression)
    if tokens.count("(") > MAX_DEPTH:
        raise StoreError(f"The expression has more than {MAX_DEPTH} parentheses.", _EXAMPLE)
    test = _either(tokens, codebook_size)
    if tokens:
        raise StoreError(f"{expression!r} goes on after its end, at {tokens[-1]!r}.", _EXAMPLE)
    return test


def _having(codes: pa.ListArray) -> Callable[[int], Rows]:
    offsets = codes.offsets.to_numpy()
    flat = codes.values.to_numpy()[offsets[0] : offsets[-1]]
    row = np.repeat(np.arange(len(codes)), np.diff(offsets))

    def has(code: int) -> Rows:
        found = np.zeros(len(codes), dtype=bool)
        found[row[flat == code]] = True
        return found

    return has


def _tokens(expression: str) -> list[str]:
    """The tokens of an expression, last first."""
    tokens, place = [], 0
    text = expression.rstrip()
    while place < len(text):
        match = _TOKENS.match(text, place)
        if match is None:
            raise StoreError(f"{expression!r} cannot be read at {text[place:]!r}.", _EXAMPLE)
        tokens.append(match[1].lower())
        place = match.end()
    return tokens[::-1]


def _either(tokens: list[str], codebook_size: int) -> Test:
    tests = [_both(tokens, codebook_size)]
    while tokens and tokens[-1] == "or":
        tokens.pop()
        tests.append(_both(tokens, codebook_size))
    return lambda has: np.logical_or.reduce([test(has) for test in tests])


def _both(tokens: list[str], codebook_size: int) -> Test:
    tests = [_one(tokens, codebook_size)]
    while tokens and tokens[-1] == "and":
        tokens.pop()
        tests.append(_one(tokens, codebook_size))
    return lambda has: np.logical_and.reduce([test(has) for test in tests])


def _one(tokens: list[str], codebook_size: int) -> Test:
    token = tokens.pop() if tokens else ""
    if token == "not":
        negated = _one(tokens, codebook_size)
        return lambda has: ~negated(has)
    if token == "(":
        inner = _either(tokens, codebook_size)
        if not tokens or tokens.pop() != ")":
            raise StoreError("A parenthesis is not closed.", _EXAMPLE)
        return inner
    if not token.isdecimal():
        raise StoreError(f"A code is missing before {token!r}.", _EXAMPLE)
    code = int(token[:9])
    if code >= codebook_size:
        raise StoreError(
            f"There is no code {token}.", f"The codebook has the codes 0 to {codebook_size - 1:,}."
        )
    return lambda has: has(code)
