"""Tensors out of nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spyre_backend.program.opcodes import Elementwise as E
from spyre_backend.sendnn.block import Block, compute_dtype
from spyre_backend.sendnn.index import Index
from spyre_backend.sendnn.ops.table import lowers
from spyre_backend.sendnn.tensors import Tensor, Traits

if TYPE_CHECKING:
    from spyre_backend.sendnn.graph import Graph

aten = torch.ops.aten


def filled(graph: Graph, value: Any) -> Tensor:
    """The result of the current operator, each element of which is a number."""
    result = graph.dtype(graph.node.meta["val"].dtype)

    def at(block: Block, index: Index) -> str:
        return block.cast(block.constant(value, result), compute_dtype(result))

    return graph.output(at, Traits())


@lowers(aten.full.default, aten.new_full.default, aten.full_like.default)
def full(graph: Graph, _: Any, *args: Any, **__: Any) -> Tensor:
    return filled(graph, args[-1] if not isinstance(args[-1], Tensor) else graph.refuse("its value is a tensor"))


@lowers(aten.fill.Scalar)
def fill(graph: Graph, _: Tensor, value: Any) -> Tensor:
    return filled(graph, value)


@lowers(aten.fill.Tensor)
def fill_tensor(graph: Graph, x: Tensor, value: Tensor) -> Tensor:
    return graph.output(
        lambda block, index: block.cast(value.read(block, ()), compute_dtype(x.dtype)), value.traits_here
    )


@lowers(aten.scalar_tensor.default)
def scalar_tensor(graph: Graph, value: Any, **_: Any) -> Tensor:
    return filled(graph, value)


@lowers(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero.default)
def zeros(graph: Graph, *_: Any, **__: Any) -> Tensor:
    return filled(graph, 0)


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(graph: Graph, *_: Any, **__: Any) -> Tensor:
    return filled(graph, 1)


@lowers(
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.empty_strided.default,
    aten.new_empty_strided.default,
)
def empty(graph: Graph, *_: Any, **__: Any) -> Tensor:
    # nobody may depend on what it holds
    return filled(graph, 0)


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(graph: Graph, *args: Any, **_: Any) -> Tensor:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else 1)
    result = compute_dtype(graph.dtype(graph.node.meta["val"].dtype))

    def at(block: Block, index: Index) -> str:
        position = block.position(index[0], result)
        scaled = position if step == 1 else block.compute(E.MUL, position, step)
        return scaled if start == 0 else block.compute(E.ADD, scaled, start)

    return graph.output(at, Traits(depth=1))


@lowers(aten.linspace.default)
def linspace(graph: Graph, start: float, end: float, steps: int, **_: Any) -> Tensor:
    result = compute_dtype(graph.dtype(graph.node.meta["val"].dtype))
    if not result.is_float:
        graph.refuse("it has whole numbers")
    step = (end - start) / max(steps - 1, 1)

    def at(block: Block, index: Index) -> str:
        # the second half counts from the end, as PyTorch does it, so that the end is hit
        position = block.position(index[0], result)
        low = block.compute(E.ADD, block.compute(E.MUL, position, step), start)
        left = block.compute(E.SUB, block.constant(steps - 1, result), position)
        high = block.compute(E.SUB, block.constant(end, result), block.compute(E.MUL, left, step))
        return block.compute(E.WHERE, block.compute(E.LT, position, steps // 2), low, high)

    return graph.output(at, Traits(depth=6))


@lowers(aten.eye.default, aten.eye.m)
def eye(graph: Graph, *_: Any, **__: Any) -> Tensor:
    result = compute_dtype(graph.dtype(graph.node.meta["val"].dtype))

    def at(block: Block, index: Index) -> str:
        row, column = (block.position(each) for each in index)
        return block.cast(block.compute(E.EQ, row, column), result)

    return graph.output(at, Traits(depth=2))
