"""Search a store: similar images, similar regions, programs with given codes."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor

from strop.config import in_range
from strop.errors import FormatError, StoreError, parsing
from strop.images import ImageLike, content_box, source_box, to_tensor
from strop.model.length_rule import LengthRule
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.store.index import Descriptor, Index, fields_of, find_index, fit_descriptor
from strop.store.schema import DAMAGED

if TYPE_CHECKING:
    from strop.store.store import Store

SMALL = 1024
"""A store of so many programs is searched without an index: all of them are interpreted."""

CANDIDATES = 200
"""Images whose patches are compared with those of a region."""

Box = tuple[float, float, float, float]
"""x, y, width and height in pixels of an image."""

Window = tuple[int, int, int, int]
"""The first and last + 1 row, and the first and last + 1 column, of patches."""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """An image that was found.

    row            in the store
    score          cosine similarity to the query; None if only codes were asked for
    region         of a search for a region: the part of this image that is most like it
    """

    row: int
    key: str
    source: str
    length: int
    width: int
    height: int
    score: float | None = None
    region: Box | None = None


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a search found.

    hits       the nearest first; of a search for codes alone, in the order of the store
    program    the program of the query after edits, a batch of one; None for codes alone
    total      how many programs of the store have the codes, if codes were asked for
    unindexed  how many programs were not searched, because the index does not have them yet
    """

    hits: list[Hit]
    program: Program | None
    total: int | None
    unindexed: int


def search(
    store: Store,
    query: ImageLike | Program | None = None,
    *,
    k: int = 20,
    region: Box | None = None,
    like: str | None = None,
    without: int | Sequence[int] = (),
    codes: str | None = None,
) -> Results:
    """The `k` images that are most similar to a query.

    query    an image or a program
    region   of the image, (x, y, width, height) in its pixels: find images with a similar part
    like     the key of a row, in place of a query
    without  positions of tokens that are erased from the program of the query
    codes    only programs that have some codes and lack others, such as "17 and not 903"; it may
             be given alone
    """
    k = in_range(k, "k", 1, error=StoreError)
    if codes is not None and not isinstance(codes, str):
        raise StoreError(f"codes is {codes!r:.60}.", 'Give a text such as "17 and not 903".')
    if region is not None and (isinstance(region, str) or len(region) != 4):
        raise StoreError(f"region is {region!r:.60}.", "Give (x, y, width, height) in pixels.")
    if query is not None and like is not None:
        raise StoreError("Both a query and a key are given.", "Give one of them.")
    if region is not None and (query is None or isinstance(query, Program)):
        raise StoreError("A region is given without an image.", "Give the image that it is of.")
    rows = None if codes is None else rows_with(store, codes)
    if query is None and like is None:
        if rows is None:
            raise StoreError("Nothing is searched for.", "Give an image, a key, or codes.")
        if without:
            raise StoreError("Tokens are erased of no program.", "Give an image or a key.")
        hits = _hits(store, rows[:k], None)
        return Results(hits=hits, program=None, total=len(rows), unindexed=0)
    index = _index(store)
    own = None if like is None else store.row_of(like)
    program, size = _encoded(store, query) if own is None else (store.programs([own]), (0, 0))
    for position in [without] if isinstance(without, int) else without:
        if not 0 <= position < program.lengths[0]:
            last = int(program.lengths[0]) - 1
            raise StoreError(
                f"The program of the query has no token {position}.", f"It has 0 to {last}."
            )
        program = program.erase(position)
    field = store.model.interpret(program)
    window = None if region is None else _window(region, size, store.model)
    if window is not None:
        field = inside(field, window)
    wanted = k if window is None else max(k, CANDIDATES)
    found, scores = _nearest(index, index.descriptor(field)[0], wanted, rows, own)
    windows = None
    if window is not None and len(found):
        scores, windows = _matches(store, index.descriptor, field, window, found)
        order = np.argsort(-scores, kind="stable")[:k]
        found, scores, windows = found[order], scores[order], [windows[i] for i in order]
    return Results(
        hits=_hits(store, found, scores, windows),
        program=program,
        total=None if rows is None else len(rows),
        unindexed=len(store) - index.rows,
    )


def match_region(
    patches: Tensor, region: Tensor, shape: tuple[int, int]
) -> tuple[Tensor, list[Window]]:
    """How much images have something like a region: scores (B,), and the most similar windows.

    Each patch of the region, (s, d), is compared with its nearest patch of the image, of (B, S, d);
    the score is their mean cosine. The window is that of the region's shape in which the patches
    are nearest to some patch of the region.
    """
    cosines = patches @ region.T  # (B, S, s)
    grid = math.isqrt(patches.shape[1])
    near = cosines.amax(dim=2).view(-1, 1, grid, grid)
    means = F.avg_pool2d(near, shape, stride=1)
    across = means.shape[-1]
    corners = [divmod(place, across) for place in means.flatten(1).argmax(dim=1).tolist()]
    windows = [(top, top + shape[0], left, left + shape[1]) for top, left in corners]
    return cosines.amax(dim=1).mean(dim=1), windows


def _matches(
    store: Store, descriptor: Descriptor, region: Tensor, window: Window, rows: np.ndarray
) -> tuple[np.ndarray, list[Window]]:
    """`match_region` with the programs of rows."""
    shape = window[1] - window[0], window[3] - window[2]
    wanted = descriptor.patches(region)[0]
    scores, windows = [], []
    table = store.read(rows, columns=["codes", "length"])
    for fields in fields_of(store, table):
        score, found = match_region(descriptor.patches(fields), wanted, shape)
        scores.append(score)
        windows += found
    return torch.cat(scores).cpu().numpy(), windows


class Memory:
    """The vectors of a small store, in place of its index."""

    def __init__(self, store: Store) -> None:
        self.descriptor = fit_descriptor(store).to(store.model.device)
        self.rows = len(store)
        table = store.read(columns=["codes", "length"])
        self._vectors = torch.cat([self.descriptor(part) for part in fields_of(store, table)])

    def nearest(self, vector: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Index.nearest`."""
        scores, rows = (self._vectors @ vector).topk(min(k, self.rows))
        return rows.cpu().numpy(), scores.cpu().numpy()

    def vectors(self, rows: np.ndarray) -> Tensor:
        """See `Index.vectors`."""
        return self._vectors[torch.as_tensor(rows, device=self._vectors.device)]


def _index(store: Store) -> Index | Memory:
    """The index of a store, or its vectors in memory if it is small."""
    if store.index is None:
        store.index = find_index(store)
    if store.index is None:
        if not len(store):
            raise StoreError(f"The store {store.path} has no programs.", "Encode some images.")
        if len(store) > SMALL:
            raise StoreError(
                f"The store {store.path} has {len(store):,} programs and no index.",
                f"Build it: strop index {store.path}",
            )
        store.index = Memory(store)
    return store.index


def _nearest(
    index: Index | Memory, vector: Tensor, k: int, among: np.ndarray | None, own: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """The `k` rows whose vectors are nearest, and their cosines; all of `among` are compared.

    The row `own` is left out.
    """
    if among is None:
        rows, scores = index.nearest(vector, k + 1)
    else:
        rows, parts = among[among < index.rows], [np.zeros(0, dtype=np.float32)]
        for start in range(0, len(rows), 1 << 16):
            vectors = index.vectors(rows[start : start + (1 << 16)]).to(vector)
            parts.append((vectors @ vector).cpu().numpy())
        scores = np.concatenate(parts)
        order = np.argsort(-scores, kind="stable")[: k + 1]
        rows, scores = rows[order], scores[order]
    others = np.flatnonzero(rows != (-1 if own is None else own))[:k]
    return rows[others], scores[others]


def _encoded(store: Store, query: ImageLike | Program | None) -> tuple[Program, tuple[int, int]]:
    """The program of a query, a batch of one, and the (width, height) of the image."""
    if isinstance(query, Program):
        program = query.as_batch()
        if len(program) != 1:
            raise StoreError(f"The query is {len(program)} programs.", "Give one.")
        return program, (0, 0)
    assert query is not None
    image = to_tensor(query)
    with parsing(FormatError, f"The store {store.path} has no valid rule of lengths", DAMAGED):
        rule = LengthRule(**json.loads(store.info.length_rule))
    program = store.model.encode(image, **vars(rule))
    return program.as_batch(), (image.shape[2], image.shape[1])


def _window(region: Box, size: tuple[int, int], tokenizer: Tokenizer) -> Window:
    """The patches whose centres are in a region of an image, or the one that is nearest."""
    x, y, width, height = region
    right, bottom = (side + 0.5 for side in size)  # half a pixel for rounding
    fits = x >= -0.5 and y >= -0.5 and x + width <= right and y + height <= bottom
    if not (width > 0 and height > 0 and fits):
        raise StoreError(
            f"The region {x:g},{y:g},{width:g},{height:g} is not within the image.",
            f"Give x,y,width,height in pixels; the image has {size[0]} x {size[1]}.",
        )
    left, top, across, down = _placement(size, tokenizer)
    grid = tokenizer.config.grid

    def span(start: float, stop: float) -> tuple[int, int]:
        first = min(max(math.ceil(start * grid - 0.5), 0), grid - 1)
        return first, min(max(math.ceil(stop * grid - 0.5), first + 1), grid)

    rows = span((y - top) / down, (y + height - top) / down)
    return *rows, *span((x - left) / across, (x + width - left) / across)


def _box(window: Window, size: tuple[int, int], tokenizer: Tokenizer) -> Box:
    """Patches as a part of the image, in pixels."""
    left, top, across, down = _placement(size, tokenizer)
    grid = tokenizer.config.grid
    first_row, last_row, first_column, last_column = window
    x, right = (min(max(left + c * across / grid, 0), size[0]) for c in (first_column, last_column))
    y, bottom = (min(max(top + r * down / grid, 0), size[1]) for r in (first_row, last_row))
    return x, y, right - x, bottom - y


def _placement(size: tuple[int, int], tokenizer: Tokenizer) -> Box:
    """Where the square that the model sees lies in an image: left, top, width and height."""
    config = tokenizer.config
    left, top, right, bottom = source_box(*size, config.fit)
    a, b, c, d = content_box(*size, config.image_size, config.fit)
    across, down = (right - left) / (c - a), (bottom - top) / (d - b)
    side = config.image_size
    return left - a * across, top - b * down, side * across, side * down


def inside(field: Tensor, window: Window) -> Tensor:
    """The patches of a window: (1, S, d) to (1, s, d)."""
    grid = math.isqrt(field.shape[1])
    top, bottom, left, right = window
    return field.unflatten(1, (grid, grid))[:, top:bottom, left:right].flatten(1, 2)


def _hits(
    store: Store,
    rows: np.ndarray,
    scores: np.ndarray | None,
    windows: Sequence[Window] | None = None,
) -> list[Hit]:
    if not len(rows):
        return []
    columns = ["key", "source", "length", "width", "height"]
    found = []
    for place, about in enumerate(store.read(rows, columns=columns).to_pylist()):
        size = about["width"], about["height"]
        found.append(
            Hit(
                row=int(rows[place]),
                score=None if scores is None else round(float(scores[place]), 4),
                region=None if windows is None else _box(windows[place], size, store.model),
                **about,
            )
        )
    return found


# Programs by codes.

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
    return lambda code: np.bincount(row[flat == code], minlength=len(codes)) > 0
