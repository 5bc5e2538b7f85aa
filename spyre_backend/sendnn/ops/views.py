"""Operators that compute nothing: each element is an element of the operand, found at another position."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from spyre_backend.program.expr import ZERO, Expr, add, mul
from spyre_backend.sendnn.index import Index, reshaped
from spyre_backend.sendnn.ops.table import lowers
from spyre_backend.sendnn.tensors import Tensor, Traits

if TYPE_CHECKING:
    from spyre_backend.sendnn.graph import Graph

aten = torch.ops.aten


def view(
    graph: Graph, x: Tensor, position: Callable[[Index], Index], rows: frozenset[tuple[int, int]] = frozenset()
) -> Tensor:
    """The result of the current operator, whose element at `index` is that of `x` at `position(index)`."""
    found = graph.output(lambda block, index: x.read(block, position(index)), _through(x, rows))
    found.origin, found.base = x.origin, x
    return found


def part(shape: Sequence[int], x: Tensor, position: Callable[[Index], Index]) -> Tensor:
    """A view that is not itself a result of the graph."""
    at = lambda block, index: x.read(block, position(index))  # noqa: E731
    return Tensor(tuple(shape), x.dtype, at, _through(x, frozenset()), x.graph, x.origin, base=x)


def _through(x: Tensor, rows: frozenset[tuple[int, int]]) -> Traits:
    return replace(x.traits_here, rows=rows)


@lowers(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.view_copy.default,
    aten._reshape_alias.default,
)
def reshape(graph: Graph, x: Tensor, size: Sequence[int], *_: Any) -> Tensor:
    shape = tuple(map(int, graph.node.meta["val"].shape))
    return view(graph, x, lambda index: reshaped(index, shape, x.shape))


@lowers(aten.view.dtype)
def view_dtype(graph: Graph, x: Tensor, dtype: torch.dtype) -> Tensor:
    target = graph.dtype(dtype)
    if target.itemsize != x.dtype.itemsize:
        graph.refuse("it reads the bits of elements of another size")

    def at(block: Any, index: Index) -> str:
        return block.cast(block.bitcast(block.cast(x.read(block, index), x.dtype), target), found.compute_dtype)

    found = graph.output(at, x.traits_here)
    return found


@lowers(aten.permute.default, aten.permute_copy.default)
def permute(graph: Graph, x: Tensor, dims: Sequence[int]) -> Tensor:
    order = [dim % len(x.shape) for dim in dims]
    return view(graph, x, lambda index: tuple(index[order.index(dim)] for dim in range(len(order))))


@lowers(aten.transpose.int, aten.transpose_copy.int)
def transpose(graph: Graph, x: Tensor, dim0: int, dim1: int) -> Tensor:
    order = list(range(len(x.shape)))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(graph, x, order)


@lowers(aten.t.default, aten.t_copy.default)
def t(graph: Graph, x: Tensor) -> Tensor:
    return permute(graph, x, list(reversed(range(len(x.shape)))))


@lowers(aten.expand.default, aten.expand_copy.default)
def expand(graph: Graph, x: Tensor, size: Sequence[int], **_: Any) -> Tensor:
    lead = len(size) - len(x.shape)
    return view(
        graph,
        x,
        lambda index: tuple(ZERO if length == 1 else at for at, length in zip(index[lead:], x.shape, strict=True)),
        x.traits_here.rows,
    )


@lowers(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(graph: Graph, x: Tensor, dim: int) -> Tensor:
    dim %= len(x.shape) + 1
    return view(graph, x, lambda index: index[:dim] + index[dim + 1 :])


@lowers(
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze_copy.default,
    aten.squeeze_copy.dim,
    aten.squeeze_copy.dims,
)
def squeeze(graph: Graph, x: Tensor, dims: int | Sequence[int] | None = None) -> Tensor:
    shape = tuple(map(int, graph.node.meta["val"].shape))
    return view(graph, x, lambda index: reshaped(index, shape, x.shape))


@lowers(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(
    graph: Graph, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    dim %= len(x.shape)
    first = bounds(start, 0, x.shape[dim])
    return view(graph, x, lambda index: _moved(index, dim, lambda at: add(first, mul(step, at))))


def bounds(value: int | None, default: int, size: int) -> int:
    """A start or an end as Python's slices take it."""
    if value is None:
        return default
    return max(0, min(value + size if value < 0 else value, size))


def _moved(index: Index, dim: int, change: Callable[[Expr], Expr]) -> Index:
    return (*index[:dim], change(index[dim]), *index[dim + 1 :])


@lowers(aten.select.int, aten.select_copy.int)
def select(graph: Graph, x: Tensor, dim: int, at: int) -> Tensor:
    dim %= len(x.shape)
    chosen = add(at % x.shape[dim])
    return view(graph, x, lambda index: (*index[:dim], chosen, *index[dim:]))


@lowers(
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.chunk.default,
    aten.unsafe_split.Tensor,
    aten.split_copy.Tensor,
    aten.split_with_sizes_copy.default,
    aten.unsafe_split_with_sizes.default,
    aten.unsafe_chunk.default,
)
def split(graph: Graph, x: Tensor, sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    dim %= len(x.shape)
    found, start = [], 0
    for each in graph.node.meta["val"]:
        found.append(part(tuple(map(int, each.shape)), x, _shifted(dim, start)))
        start += int(each.shape[dim])
    return tuple(found)


def _shifted(dim: int, start: int) -> Callable[[Index], Index]:
    return lambda index: _moved(index, dim, lambda at: add(start, at))


@lowers(aten.unbind.int, aten.unbind_copy.int)
def unbind(graph: Graph, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    dim %= len(x.shape)
    shape = x.shape[:dim] + x.shape[dim + 1 :]
    return tuple(part(shape, x, _fixed(dim, at)) for at in range(x.shape[dim]))


def _fixed(dim: int, at: int) -> Callable[[Index], Index]:
    return lambda index: (*index[:dim], add(at), *index[dim:])


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(graph: Graph, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    first, second = dim1 % len(x.shape), dim2 % len(x.shape)

    def position(index: Index) -> Index:
        others, along = iter(index[:-1]), index[-1]
        return tuple(
            add(max(-offset, 0), along)
            if dim == first
            else add(max(offset, 0), along)
            if dim == second
            else next(others)
            for dim in range(len(x.shape))
        )

    return view(graph, x, position)


@lowers(aten.flip.default)
def flip(graph: Graph, x: Tensor, dims: Sequence[int]) -> Tensor:
    turned = {dim % len(x.shape) for dim in dims} if x.shape else set()
    return view(
        graph,
        x,
        lambda index: tuple(
            add(x.shape[dim] - 1, mul(-1, at)) if dim in turned else at for dim, at in enumerate(index)
        ),
    )


@lowers(aten.unfold.default, aten.unfold_copy.default)
def unfold(graph: Graph, x: Tensor, dim: int, size: int, step: int) -> Tensor:
    if not x.shape:
        return view(graph, x, lambda index: ())
    dim %= len(x.shape)
    return view(graph, x, lambda index: _moved(index[:-1], dim, lambda at: add(mul(step, at), index[-1])))


@lowers(aten.view_as_real.default, aten.view_as_complex.default, aten.as_strided.default)
def needs_memory(graph: Graph, *_: Any, **__: Any) -> Tensor:
    return graph.refuse("it looks at how the operand lies in memory")


@lowers(
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten.lift.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.alias_copy.default,
    aten.detach_copy.default,
    aten.positive.default,
)
def same(graph: Graph, x: Tensor, **_: Any) -> Tensor:
    return view(graph, x, lambda index: index, x.traits_here.rows)


@lowers(operator.getitem)
def getitem(graph: Graph, results: Sequence[Any], at: int) -> Any:
    return results[at]


_VIEWS = (
    "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "unsqueeze",
    "squeeze", "slice", "select", "split", "split_with_sizes", "unsafe_split", "chunk", "unbind",
    "diagonal", "alias", "detach", "clone", "lift_fresh", "lift_fresh_copy",
)  # fmt: skip

VIEWS = frozenset(
    {
        operator.getitem,
        *(
            overload
            for packet in _VIEWS
            for overload in (getattr(getattr(aten, packet), name) for name in getattr(aten, packet).overloads())
        ),
    }
)
"""Operators through which a result is used as often as their result is."""
