"""Matrix products and convolutions: sums of products over reduction axes, with what follows them in one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from spyre_backend.program import DType
from spyre_backend.program.expr import Expr, floordiv, mod, mul
from spyre_backend.program.expr import add as plus
from spyre_backend.program.opcodes import Elementwise as E
from spyre_backend.sendnn.block import Block, compute_dtype
from spyre_backend.sendnn.index import Index
from spyre_backend.sendnn.ops.pointwise import broadcast
from spyre_backend.sendnn.ops.table import lowers
from spyre_backend.sendnn.tensors import Tensor, Traits, joined

if TYPE_CHECKING:
    from spyre_backend.sendnn.graph import Graph

aten = torch.ops.aten


def products(graph: Graph, *operands: Tensor | None) -> Traits:
    """The traits of a sum of products of the operands, which are put into memory if they are dear to compute."""
    given = [graph.whole(each) for each in operands if each is not None]
    return joined(given) | Traits(depth=2, multiplies=True)


@lowers(aten.mm.default, aten.bmm.default)
def matmul(graph: Graph, a: Tensor, b: Tensor) -> Tensor:
    traits, kind = products(graph, a, b), compute_dtype(graph.dtype(graph.node.meta["val"].dtype))
    return graph.output(lambda block, index: product(block, a, b, index, kind), traits)


def product(block: Block, a: Tensor, b: Tensor, index: Index, kind: DType) -> str:
    """One element of `a @ b`."""
    (*batch, row, column), size = index, a.shape[-1]
    over = block.inner_axes([size], index)
    left = block.cast(a.read(block, (*batch, row, *over)), kind)
    right = block.cast(b.read(block, (*batch, *over, column)), kind)
    return block.matmul(left, right, over) if size else block.constant(0, kind)


@lowers(aten.addmm.default, aten.baddbmm.default)
def addmm(graph: Graph, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    traits, kind = products(graph, a, b), compute_dtype(graph.dtype(graph.node.meta["val"].dtype))

    def at(block: Block, index: Index) -> str:
        found = product(block, a, b, index, kind)
        if alpha != 1:
            found = block.compute(E.MUL, found, alpha)
        if beta == 0:
            return found  # whatever the bias is, NaN included
        offset = block.cast(bias.read(block, broadcast(bias, index)), kind)
        return block.compute(E.ADD, found, offset if beta == 1 else block.compute(E.MUL, offset, beta))

    return graph.output(at, traits | joined([bias]))


@lowers(aten.mv.default)
def mv(graph: Graph, a: Tensor, b: Tensor) -> Tensor:
    traits, kind = products(graph, a, b), compute_dtype(a.dtype)

    def at(block: Block, index: Index) -> str:
        over = block.inner_axes([a.shape[1]], index)
        return block.matmul(
            block.cast(a.read(block, (*index, *over)), kind), block.cast(b.read(block, over), kind), over
        )

    return graph.output(at, traits)


@lowers(aten.dot.default, aten.vdot.default)
def dot(graph: Graph, a: Tensor, b: Tensor) -> Tensor:
    traits, kind = products(graph, a, b), compute_dtype(a.dtype)

    def at(block: Block, index: Index) -> str:
        over = block.inner_axes([a.shape[0]], index)
        return block.matmul(block.cast(a.read(block, over), kind), block.cast(b.read(block, over), kind), over)

    return graph.output(at, traits)


@lowers(aten._grouped_mm.default, "transformers.grouped_mm_fallback.default")
def grouped_mm(graph: Graph, x: Tensor, weight: Tensor, ends: Tensor, bias: Any = None, *_: Any) -> Tensor:
    """Rows of `[s, k]`, sorted by group, times the `[k, n]` of their group; `ends[g]` is the row after the last of it.

    Which rows those are is known only when it runs, and a program has plain sizes: each row meets the weights of all
    groups, and those of the others count nothing.
    """
    if len(x.shape) != 2 or len(weight.shape) != 3 or bias is not None:
        graph.refuse("groups of other sizes than rows")
    traits, kind = products(graph, x, weight, graph.keep(ends)), compute_dtype(x.dtype)

    def at(block: Block, index: Index) -> str:
        row, column = index
        group, inner = over = block.inner_axes([weight.shape[0], x.shape[1]], index)
        place = block.position(row)
        with block.masked(block.compute(E.GE, block.position(plus(group, -1)), 0)):
            start = block.cast(ends.read(block, (plus(group, -1),)), DType.INT64)  # that of the first is 0
        end = block.cast(ends.read(block, (group,)), DType.INT64)
        member = block.compute(E.LOGICAL_AND, block.compute(E.GE, place, start), block.compute(E.LT, place, end))
        value = block.cast(x.read(block, (row, inner)), kind)
        value = block.compute(E.WHERE, member, value, block.constant(0, kind))
        return block.matmul(value, block.cast(weight.read(block, (group, inner, column)), kind), over)

    return graph.output(at, traits)


@lowers(aten.convolution.default)
def convolution(
    graph: Graph,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    dims = len(weight.shape) - 2
    if len(x.shape) != dims + 2:
        graph.refuse("a convolution without a batch")
    steps, pads, spread = (list(each) * (dims if len(each) == 1 else 1) for each in (stride, padding, dilation))
    traits, kind = products(graph, x, weight), compute_dtype(x.dtype)
    # of a group, and in the order in which the weight has them: `[out, in, *kernel]`, transposed `[in, out, *kernel]`
    made, summed = (
        (weight.shape[1], weight.shape[0] // groups) if transposed else (weight.shape[0] // groups, weight.shape[1])
    )

    def sources(block: Block, place: Sequence[Expr], tap: Sequence[Expr]) -> tuple[list[Expr], str | None]:
        """Where the elements lie that meet a kernel element at a place, and the condition that there are any."""
        found, inside = [], None
        for at, k, step, gap, pad, size in zip(place, tap, steps, spread, pads, x.shape[2:], strict=True):
            reach = plus(at, pad, mul(-gap, k)) if transposed else plus(mul(step, at), mul(gap, k), -pad)
            where = floordiv(reach, step) if transposed else reach
            value, conditions = block.position(where), []
            if pad or transposed:
                conditions = [block.compute(E.GE, value, 0), block.compute(E.LT, value, size)]
            if transposed and step > 1:
                conditions.append(block.compute(E.EQ, block.position(mod(reach, step)), 0))
            for condition in conditions:
                inside = condition if inside is None else block.compute(E.LOGICAL_AND, inside, condition)
            found.append(where)
        return found, inside

    def at(block: Block, index: Index) -> str:
        batch, channel, *place = index
        inner, *tap = over = block.inner_axes([summed, *weight.shape[2:]], index)
        group = floordiv(channel, made) if groups > 1 else 0
        source, inside = sources(block, place, tap)
        first = plus(mul(summed, group), inner)  # channel of the operand
        where = (batch, first, *source)
        if inside is None:
            value = x.read(block, where)
        else:
            with block.masked(inside):
                value = x.read(block, where)
            if x.memory is None:  # what is computed of nothing need not be 0
                value = block.compute(E.WHERE, inside, value, block.constant(0, block.dtypes[value]))
        last = mod(channel, made) if groups > 1 and transposed else channel
        kernel = weight.read(block, (first, last, *tap) if transposed else (channel, inner, *tap))
        found = block.matmul(block.cast(value, kind), block.cast(kernel, kind), over)
        return found if bias is None else block.compute(E.ADD, found, block.cast(bias.read(block, (channel,)), kind))

    return graph.output(at, traits | joined([bias] if bias is not None else []))
