# mypy: ignore-errors
# What follows is Triton, which reads it with types of its own.
"""The GPU's part of `fused_linear`: one kernel.

Names:

    x          (m, k) rows, fp32 or half precision; w (n, k); both contiguous
    b          (n,) bias, or None
    gamma, beta  (k,) weights of the LayerNorm before, or None
    scale      (n,) factors after, or None
    residual   (m, n) what is added last, or None
    rotation   (2, t, half) cosines and sines of positions; row i has the position i % t, and the
               columns below `rotated` are heads of 2 half channels each; or None
    out        (m, n)
"""

import triton
import triton.language as tl


@triton.jit
def _rotate(values, rotation, rows, first, t, rotated,
            half: tl.constexpr, rows_in: tl.constexpr, columns_in: tl.constexpr):  # fmt: skip
    """Rotate the heads in `values` (rows, columns), whose first column is `first`."""
    heads: tl.constexpr = columns_in // (2 * half)
    at = (rows % t)[:, None] * half + tl.arange(0, half)[None, :]
    turns = first + tl.arange(0, heads) * 2 * half < rotated
    turns = turns[None, :, None]
    cosine = tl.where(turns, tl.load(rotation + at)[:, None, :], 1.0)
    sine = tl.where(turns, tl.load(rotation + t * half + at)[:, None, :], 0.0)
    pairs = tl.permute(tl.reshape(values, (rows_in, heads, 2, half)), (0, 1, 3, 2))
    left, right = tl.split(pairs)
    pairs = tl.join(left * cosine - right * sine, right * cosine + left * sine)
    return tl.reshape(tl.permute(pairs, (0, 1, 3, 2)), (rows_in, columns_in))


@triton.jit
def linear(
    x, w, b, gamma, beta, scale, residual, rotation, out,
    m, n, t, rotated, epsilon,
    k: tl.constexpr, half: tl.constexpr, gelu: tl.constexpr,
    rows_in: tl.constexpr, columns_in: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """A tile of the output. Neighbouring programs share rows, which stay in the cache."""
    across = tl.cdiv(n, columns_in)
    first = tl.program_id(0) % across * columns_in
    i = tl.program_id(0) // across * rows_in + tl.arange(0, rows_in)
    j = first + tl.arange(0, columns_in)
    c = tl.arange(0, step)
    inside = i[:, None] < m
    row = x + i.to(tl.int64)[:, None] * k

    if gamma is not None:
        total = tl.zeros((rows_in,), tl.float32)
        squares = tl.zeros((rows_in,), tl.float32)
        for start in range(0, k, step):
            part = tl.load(row + (start + c)[None, :], mask=inside, other=0.0).to(tl.float32)
            total += tl.sum(part, 1)
            squares += tl.sum(part * part, 1)
        mean = total / k
        spread = tl.rsqrt(tl.maximum(squares / k - mean * mean, 0.0) + epsilon)

    sums = tl.zeros((rows_in, columns_in), tl.float32)
    for start in range(0, k, step):
        part = tl.load(row + (start + c)[None, :], mask=inside, other=0.0)
        if gamma is not None:
            part = (part.to(tl.float32) - mean[:, None]) * spread[:, None]
            part = part * tl.load(gamma + start + c)[None, :] + tl.load(beta + start + c)[None, :]
        weights = tl.load(w + j[None, :] * k + (start + c)[:, None], mask=j[None, :] < n, other=0.0)
        sums = tl.dot(part.to(weights.dtype), weights, sums)

    if b is not None:
        sums += tl.load(b + j, mask=j < n, other=0.0).to(tl.float32)[None, :]
    if rotation is not None:
        sums = _rotate(sums, rotation, i, first, t, rotated, half, rows_in, columns_in)
    if gelu:
        sums = 0.5 * sums * (1.0 + tl.erf(sums * 0.7071067811865476))
    if scale is not None:
        sums *= tl.load(scale + j, mask=j < n, other=0.0).to(tl.float32)[None, :]
    place = i.to(tl.int64)[:, None] * n + j[None, :]
    kept = inside & (j[None, :] < n)
    if residual is not None:
        sums += tl.load(residual + place, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=kept)
