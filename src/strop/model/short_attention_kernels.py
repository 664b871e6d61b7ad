# mypy: ignore-errors
# What follows is Triton, which reads it with types of its own.
"""The GPU's part of `short_attention`: one kernel forward, two backward.

Names in all of them:

    n, m      how many queries and keys; i and j are indices of theirs
    width     of a head; the heads of a row lie side by side in memory
    x_batch   with x_row the strides of x; what a kernel writes is contiguous (B, N, heads, width)
    active    (B, m) which keys exist; if None, query i sees key j where j <= m - n + i
    lse       (B, heads, n) log2 of the sum of 2^score over visible keys

Scores are fp32 and to base 2; the gradients of q and k are scaled once, at the end. A program takes
one head of one image, neighbours the heads beside it, so that together they read whole rows.
"""

import triton
import triton.language as tl

_HIDDEN = tl.constexpr(-1e30)  # finite, so that a block without a visible key is no NaN
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows(pointer, rows, stride, count, width: tl.constexpr):
    """`(rows, width)` from memory; zeros for rows that do not exist."""
    pointers = pointer + rows[:, None] * stride + tl.arange(0, width)[None, :]
    return tl.load(pointers, mask=rows[:, None] < count, other=0.0)


@triton.jit
def _store_rows(pointer, values, rows, stride, count, width: tl.constexpr):
    pointers = pointer + rows[:, None] * stride + tl.arange(0, width)[None, :]
    tl.store(pointers, values.to(pointer.dtype.element_ty), mask=rows[:, None] < count)


@triton.jit
def _visible(i, j, active, batch, n, m):
    """Which queries i see which keys j; the two broadcast against each other."""
    if active is None:
        visible = j <= m - n + i
    else:
        visible = tl.load(active + batch * m + j, mask=j < m, other=0) != 0
    return visible


@triton.jit
def forward(
    q, k, v, active, out, lse,
    q_batch, q_row, k_batch, k_row, v_batch, v_row,
    heads, n, m, scale,
    width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """A block of queries over all keys, by online softmax."""
    blocks = tl.cdiv(n, block)
    head = tl.program_id(0) % heads
    i = tl.program_id(0) // heads % blocks * block + tl.arange(0, block)
    batch = (tl.program_id(0) // (heads * blocks)).to(tl.int64)
    q += batch * q_batch + head * width
    k += batch * k_batch + head * width
    v += batch * v_batch + head * width
    out += (batch * n * heads + head) * width
    lse += (batch * heads + head) * n

    queries = _rows(q, i, q_row, n, width)
    highest = tl.full((block,), _HIDDEN, tl.float32)
    total = tl.zeros((block,), tl.float32)
    mixed = tl.zeros((block, width), tl.float32)
    for start in range(0, m, block):
        j = start + tl.arange(0, block)
        keys = _rows(k, j, k_row, m, width)
        values = _rows(v, j, v_row, m, width)
        visible = _visible(i[:, None], j[None, :], active, batch, n, m)
        scores = tl.where(visible, tl.dot(queries, tl.trans(keys)) * (scale * _LOG2_E), _HIDDEN)
        before, highest = highest, tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - highest[:, None])
        fade = tl.exp2(before - highest)
        total = total * fade + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(values.dtype), values, mixed * fade[:, None])
    _store_rows(out, mixed / total[:, None], i, heads * width, n, width)
    tl.store(lse + i, highest + tl.log2(total), mask=i < n)


@triton.jit
def _weights_and_slopes(queries, keys, values, grad, lse, visible, scale):
    """Both `(keys, queries)`: attention weights, and the loss's slopes by them."""
    scores = tl.where(visible, tl.dot(keys, tl.trans(queries)) * (scale * _LOG2_E), _HIDDEN)
    return tl.exp2(scores - lse[None, :]), tl.dot(values, tl.trans(grad))


@triton.jit
def backward_few_queries(
    q, k, v, active, out, lse, grad, q_grad, k_grad, v_grad,
    q_batch, q_row, k_batch, k_row, v_batch, v_row, grad_batch, grad_row,
    heads, n, m, scale,
    width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """All queries stay in one block; the keys go by, and their gradients are done with them."""
    head = tl.program_id(0) % heads
    batch = (tl.program_id(0) // heads).to(tl.int64)
    q += batch * q_batch + head * width
    k += batch * k_batch + head * width
    v += batch * v_batch + head * width
    grad += batch * grad_batch + head * width
    out += (batch * n * heads + head) * width
    q_grad += (batch * n * heads + head) * width
    k_grad += (batch * m * heads + head) * width
    v_grad += (batch * m * heads + head) * width
    lse += (batch * heads + head) * n

    i = tl.arange(0, block)
    queries = _rows(q, i, q_row, n, width)
    out_grad = _rows(grad, i, grad_row, n, width)
    result = _rows(out, i, heads * width, n, width)
    mean_slope = tl.sum(result.to(tl.float32) * out_grad.to(tl.float32), 1)
    sums = tl.load(lse + i, mask=i < n, other=0.0)
    queries_grad = tl.zeros((block, width), tl.float32)
    for start in range(0, m, block):
        j = start + tl.arange(0, block)
        keys = _rows(k, j, k_row, m, width)
        values = _rows(v, j, v_row, m, width)
        visible = _visible(i[None, :], j[:, None], active, batch, n, m)
        weights, slopes = _weights_and_slopes(queries, keys, values, out_grad, sums, visible, scale)
        scores_grad = (weights * (slopes - mean_slope[None, :])).to(queries.dtype)
        values_grad = tl.dot(weights.to(queries.dtype), out_grad)
        keys_grad = tl.dot(scores_grad, queries) * scale
        queries_grad = tl.dot(tl.trans(scores_grad), keys, queries_grad)
        _store_rows(v_grad, values_grad, j, heads * width, m, width)
        _store_rows(k_grad, keys_grad, j, heads * width, m, width)
    _store_rows(q_grad, queries_grad * scale, i, heads * width, n, width)


@triton.jit
def backward_few_keys(
    q, k, v, active, lse, grad, q_grad, k_grad, v_grad,
    q_batch, q_row, k_batch, k_row, v_batch, v_row, grad_batch, grad_row,
    heads, n, m, scale,
    width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """All keys stay in one block; the queries go by, and their gradients are done with them."""
    head = tl.program_id(0) % heads
    batch = (tl.program_id(0) // heads).to(tl.int64)
    q += batch * q_batch + head * width
    k += batch * k_batch + head * width
    v += batch * v_batch + head * width
    grad += batch * grad_batch + head * width
    q_grad += (batch * n * heads + head) * width
    k_grad += (batch * m * heads + head) * width
    v_grad += (batch * m * heads + head) * width
    lse += (batch * heads + head) * n

    j = tl.arange(0, block)
    keys = _rows(k, j, k_row, m, width)
    values = _rows(v, j, v_row, m, width)
    keys_grad = tl.zeros((block, width), tl.float32)
    values_grad = tl.zeros((block, width), tl.float32)
    for start in range(0, n, block):
        i = start + tl.arange(0, block)
        queries = _rows(q, i, q_row, n, width)
        out_grad = _rows(grad, i, grad_row, n, width)
        sums = tl.load(lse + i, mask=i < n, other=0.0)
        visible = _visible(i[None, :], j[:, None], active, batch, n, m)
        weights, slopes = _weights_and_slopes(queries, keys, values, out_grad, sums, visible, scale)
        # Every key is here, so the mean slope needs no reading of the output.
        mean_slope = tl.sum(weights * slopes, 0)
        scores_grad = (weights * (slopes - mean_slope[None, :])).to(queries.dtype)
        values_grad = tl.dot(weights.to(queries.dtype), out_grad, values_grad)
        keys_grad = tl.dot(scores_grad, queries, keys_grad)
        queries_grad = tl.dot(tl.trans(scores_grad), keys) * scale
        _store_rows(q_grad, queries_grad, i, heads * width, n, width)
    _store_rows(v_grad, values_grad, j, heads * width, m, width)
    _store_rows(k_grad, keys_grad * scale, j, heads * width, m, width)
