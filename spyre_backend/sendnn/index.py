"""Positions: how an element of a view is found in its base."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from spyre_backend.program.expr import ZERO, Expr, add, floordiv, mod, mul

Index = tuple[Expr, ...]
"""A position along each dimension."""


def linear(index: Index, strides: Sequence[int], offset: int = 0) -> Expr:
    """The element at `index` of memory with these strides."""
    return add(offset, *(mul(stride, at) for at, stride in zip(index, strides, strict=True)))


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor, the last dimension innermost."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def reshaped(index: Index, shape: Sequence[int], base: Sequence[int]) -> Index:
    """Where an element of a view of `shape` lies in its base, of another shape with as many elements.

    Dimensions that the two share stay as they are: only what is merged or split becomes a division.
    """
    found: list[Expr] = []
    for dims, base_dims in _groups(shape, base):
        if len(base_dims) == 1 and len(dims) == 1:
            found.append(index[dims[0]])
            continue
        sizes = [base[dim] for dim in base_dims]
        within = linear(tuple(index[dim] for dim in dims), contiguous([shape[dim] for dim in dims]))
        for position, (size, stride) in enumerate(zip(sizes, contiguous(sizes), strict=True)):
            whole = floordiv(within, stride)
            found.append(ZERO if size == 1 else whole if position == 0 else mod(whole, size))
    return tuple(found)


def _groups(shape: Sequence[int], base: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The least runs of dimensions of both shapes that hold as many elements."""
    if not math.prod(shape):
        yield list(range(len(shape))), list(range(len(base)))
        return
    left = right = 0
    while left < len(shape) or right < len(base):
        dims: list[int] = []
        base_dims: list[int] = []
        size = base_size = 1
        while not dims or not base_dims or size != base_size:
            if right >= len(base) or (left < len(shape) and size <= base_size and (not dims or size != base_size)):
                if left >= len(shape):
                    break
                dims.append(left)
                size *= shape[left]
                left += 1
            else:
                base_dims.append(right)
                base_size *= base[right]
                right += 1
        yield dims, base_dims
