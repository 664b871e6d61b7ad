"""Vectors of three tensors, which are contiguous on a CPU and fused on a GPU."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Vector = tuple[Tensor, Tensor, Tensor]
"""x, y and z (or red, green and blue) as separate tensors of one shape."""


def vector(value: Tensor) -> Vector:
    """A tensor (..., 3) as a vector of tensors (...)."""
    x, y, z = value.unbind(-1)
    return x, y, z


def each(function: Callable[..., Tensor], *vectors: Vector) -> Vector:
    """`function` of the x, of the y and of the z parts of `vectors`."""
    x, y, z = (function(*parts) for parts in zip(*vectors, strict=True))
    return x, y, z


def dot(a: Vector, b: Vector) -> Tensor:
    """The inner product."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
