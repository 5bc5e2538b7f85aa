"""Operators that read or write at computed positions, and those that put tensors together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from spyre_backend.program import DType
from spyre_backend.program.expr import ZERO, Expr, Sym, add, floordiv, mod
from spyre_backend.program.opcodes import Elementwise as E
from spyre_backend.program.opcodes import StoreMode
from spyre_backend.sendnn.block import Block, compute_dtype
from spyre_backend.sendnn.index import Index
from spyre_backend.sendnn.ops.pointwise import broadcast
from spyre_backend.sendnn.ops.table import lowers
from spyre_backend.sendnn.ops.views import bounds, part, view
from spyre_backend.sendnn.tensors import Tensor, Traits, joined, never

if TYPE_CHECKING:
    from spyre_backend.sendnn.graph import Graph

aten = torch.ops.aten


def looked_up(block: Block, indices: Tensor, index: Index, size: int, *, wraps: bool = True) -> Expr:
    """A computed position along a dimension of `size`; one below 0 counts from the end, if it `wraps`."""
    value = block.cast(indices.read(block, broadcast(indices, index)), DType.INT64)
    if wraps:
        negative = block.compute(E.LT, value, 0)
        value = block.compute(E.WHERE, negative, block.compute(E.ADD, value, size), value)
    block.check(value, size)
    return Sym(value)


@lowers(aten.embedding.default)
def embedding(graph: Graph, weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    table, which = graph.whole(weight), graph.whole(indices)
    size = weight.shape[0]

    def at(block: Block, index: Index) -> str:
        return table.read(block, (looked_up(block, which, index[:-1], size, wraps=False), index[-1]))

    return graph.output(at, joined([table, which]) | Traits(depth=3))


@lowers(aten.index_select.default)
def index_select(graph: Graph, x: Tensor, dim: int, indices: Tensor) -> Tensor:
    if not x.shape:
        return graph.output(lambda block, index: x.read(block, ()), joined([x]))
    source, which, dim = graph.whole(x), graph.whole(indices), dim % len(x.shape)

    def at(block: Block, index: Index) -> str:
        chosen = looked_up(block, which, (index[dim],)[: len(which.shape)], x.shape[dim], wraps=False)
        return source.read(block, (*index[:dim], chosen, *index[dim + 1 :]))

    return graph.output(at, joined([source, which]) | Traits(depth=3))


@lowers(aten.gather.default)
def gather(graph: Graph, x: Tensor, dim: int, indices: Tensor, **_: Any) -> Tensor:
    source, which = graph.whole(x), graph.whole(indices)
    if not x.shape:
        return graph.output(lambda block, index: source.read(block, ()), joined([source, which]))
    dim %= len(x.shape)

    def at(block: Block, index: Index) -> str:
        chosen = looked_up(block, which, index, x.shape[dim], wraps=False)
        return source.read(block, (*index[:dim], chosen, *index[dim + 1 :]))

    return graph.output(at, joined([source, which]) | Traits(depth=3))


def _places(
    graph: Graph, shape: Sequence[int], indices: Sequence[Tensor | None]
) -> tuple[list[Tensor | None], list[int], tuple[int, ...], int]:
    """Indices as `x[indices]` takes them: each of them, the dimensions that they replace, the shape that they have
    together, and where that stands in the result."""
    given = [graph.whole(each) if each is not None else None for each in indices]
    if any(each is not None and each.dtype in (DType.BOOL, DType.UINT8) for each in given):
        graph.refuse("the size of its result depends on the values of a mask")
    dims = [dim for dim, each in enumerate(given) if each is not None]
    common = torch.broadcast_shapes(*(each.shape for each in given if each is not None))
    together = dims == list(range(dims[0], dims[-1] + 1))
    return given, dims, tuple(common), dims[0] if together else 0


def _located(
    block: Block,
    x_shape: Sequence[int],
    given: Sequence[Tensor | None],
    dims: list[int],
    common: tuple[int, ...],
    start: int,
    index: Index,
) -> Index:
    """Where in `x` the element of `x[indices]` at `index` lies."""
    chosen, rest = index[start : start + len(common)], iter(index[:start] + index[start + len(common) :])
    return tuple(
        looked_up(block, given[dim], chosen, size) if dim in dims else next(rest)  # type: ignore[arg-type]
        for dim, size in enumerate(x_shape)
    )


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_(graph: Graph, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    source = graph.whole(x)
    given, dims, common, start = _places(graph, x.shape, indices)

    def at(block: Block, index: Index) -> str:
        return source.read(block, _located(block, x.shape, given, dims, common, start, index))

    return graph.output(at, joined([source, *(each for each in given if each is not None)]) | Traits(depth=3))


# ---- writing --------------------------------------------------------------------------------------------------------


def _scattered(graph: Graph, x: Tensor, shape: Sequence[int], write: Any) -> Tensor:
    """A copy of `x` into which a second program writes, over `shape`, what `write(block, index)` says: a position in
    the copy, a value, how it is combined and, if not everywhere, under which condition."""
    result = graph.output(lambda block, index: x.read(block, index), joined([x]))
    graph.keep(result)
    graph.write(result)
    assert result.memory is not None
    block = Block()
    position: Index = tuple(block.axis(size) for size in shape)
    block.origins[graph.operator] = None
    with graph.recording(block, None, position):
        target, value, mode, *mask = write(block, position)
        block.store(result.memory, target, value, mode, *mask)
    result.origin = "scatter"
    return result


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    graph: Graph, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    given, dims, common, start = _places(graph, x.shape, indices)
    others = [size for dim, size in enumerate(x.shape) if dim not in dims]
    shape = (*others[:start], *common, *others[start:])
    source = graph.whole(values)
    mode = StoreMode.ADD if accumulate else StoreMode.OVERWRITE

    def write(block: Block, index: Index) -> Any:
        where = _located(block, x.shape, given, dims, common, start, index)
        return where, source.read(block, broadcast(source, index)), mode

    return _scattered(graph, x, shape, write)


@lowers(aten.histc.default)
def histc(graph: Graph, x: Tensor, bins: int = 100, low: float = 0, high: float = 0) -> Tensor:
    """How many values lie in each of the equal parts of `[low, high]`, of which the last one is closed."""
    if low >= high:
        graph.refuse("its range depends on the values")
    source, shape = graph.whole(x), x.shape
    zeros = graph.output(lambda block, index: block.constant(0, compute_dtype(x.dtype)), Traits())

    def write(block: Block, index: Index) -> Any:
        value = block.cast(source.read(block, index), DType.FLOAT32)
        inside = block.compute(E.LOGICAL_AND, block.compute(E.GE, value, low), block.compute(E.LE, value, high))
        scaled = block.compute(E.TRUEDIV, block.compute(E.MUL, block.compute(E.SUB, value, low), bins), high - low)
        place = block.compute(E.MINIMUM, block.cast(block.compute(E.FLOOR, scaled), DType.INT64), bins - 1)
        return (Sym(place),), block.constant(1, compute_dtype(x.dtype)), StoreMode.ADD, inside

    return _scattered(graph, zeros, shape, write)


_REDUCE = {"add": StoreMode.ADD, "sum": StoreMode.ADD, "multiply": StoreMode.PROD, "prod": StoreMode.PROD,
           "amax": StoreMode.MAX, "amin": StoreMode.MIN}  # fmt: skip


@lowers(
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
    aten.scatter.reduce,
    aten.scatter.value_reduce,
    aten.scatter_reduce.two,
)
def scatter(
    graph: Graph,
    x: Tensor,
    dim: int,
    indices: Tensor,
    source: Any,
    reduce: str | None = None,
    *,
    include_self: bool = True,
) -> Tensor:
    if not include_self or reduce == "mean" or not x.shape:
        graph.refuse("it leaves out what was there")
    dim %= len(x.shape)
    which = graph.whole(indices)
    values = graph.whole(source) if isinstance(source, Tensor) else source
    adds = graph.node.target is aten.scatter_add.default
    mode = StoreMode.ADD if adds else _REDUCE[reduce] if reduce is not None else StoreMode.OVERWRITE

    def write(block: Block, index: Index) -> Any:
        chosen = looked_up(block, which, index, x.shape[dim], wraps=False)
        kind = compute_dtype(x.dtype)
        value = values.read(block, index) if isinstance(values, Tensor) else block.constant(values, kind)
        return (*index[:dim], chosen, *index[dim + 1 :]), value, mode

    return _scattered(graph, x, which.shape, write)


@lowers(aten.index_copy.default, aten.index_add.default, aten.index_fill.int_Scalar)
def index_copy(graph: Graph, x: Tensor, dim: int, indices: Tensor, source: Any, *, alpha: float = 1) -> Tensor:
    if not x.shape or not indices.shape:
        graph.refuse("it takes tensors with dimensions")
    dim %= len(x.shape)
    which = graph.whole(indices)
    values = graph.whole(source) if isinstance(source, Tensor) else source
    mode = StoreMode.ADD if graph.node.target is aten.index_add.default else StoreMode.OVERWRITE
    shape = (*x.shape[:dim], which.shape[0], *x.shape[dim + 1 :])

    def write(block: Block, index: Index) -> Any:
        chosen = looked_up(block, which, (index[dim],), x.shape[dim], wraps=False)
        kind = compute_dtype(x.dtype)
        value = (
            block.cast(values.read(block, index), kind) if isinstance(values, Tensor) else block.constant(values, kind)
        )
        value = value if alpha == 1 else block.compute(E.MUL, value, alpha)
        return (*index[:dim], chosen, *index[dim + 1 :]), value, mode

    return _scattered(graph, x, shape, write)


# ---- parts of a whole -----------------------------------------------------------------------------------------------


def chosen(block: Block, condition: str, inside: Any, outside: Any) -> str:
    """`inside()` where the condition holds, else `outside()`; neither reads memory where it is not chosen."""
    with block.masked(condition):
        first = inside()
    with block.masked(block.compute(E.LOGICAL_NOT, condition)):
        second = outside()
    return block.compute(E.WHERE, condition, first, second)


def within(block: Block, position: Expr, low: int | None, high: int | None) -> str | None:
    """Whether a position lies in `[low, high)`; None if there is nothing to ask."""
    value = block.position(position)
    found = None if low is None else block.compute(E.GE, value, low)
    if high is not None:
        below = block.compute(E.LT, value, high)
        found = below if found is None else block.compute(E.LOGICAL_AND, found, below)
    return found


@lowers(aten.cat.default)
def cat(graph: Graph, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    result = graph.node.meta["val"]
    kind = compute_dtype(graph.dtype(result.dtype))
    parts = [graph.whole(each) for each in tensors if each.shape != (0,) or len(result.shape) == 1]
    dim %= len(result.shape)
    starts = [sum(each.shape[dim] for each in parts[:number]) for number in range(len(parts))]
    pieces = [(each, start) for each, start in zip(parts, starts, strict=True) if each.shape[dim]]
    parts_read = joined([each for each, _ in pieces]) if pieces else Traits()
    if not graph.fits(parts_read):
        return _piece_by_piece(graph, pieces, dim)

    def at(block: Block, index: Index) -> str:
        return read(block, index, pieces) if pieces else block.constant(0, kind)

    def read(block: Block, index: Index, rest: list[tuple[Tensor, int]]) -> str:
        (piece, start), *others = rest
        where = (*index[:dim], add(index[dim], -start), *index[dim + 1 :])
        if not others:
            return block.cast(piece.read(block, where), kind)
        before = within(block, index[dim], None, others[0][1])
        assert before is not None
        return chosen(
            block, before, lambda: block.cast(piece.read(block, where), kind), lambda: read(block, index, others)
        )

    return graph.output(at, parts_read | Traits(depth=4))


def _piece_by_piece(graph: Graph, pieces: Sequence[tuple[Tensor, int]], dim: int) -> Tensor:
    """More pieces than one kernel may read, each written where it belongs by a program of its own."""
    result = graph.output(never, Traits())
    graph.keep(result)
    assert result.memory is not None
    for piece, start in pieces:
        block = Block()
        index = tuple(block.axis(size) for size in piece.shape)
        block.origins[graph.operator] = None
        with graph.recording(block, None, index):
            value = block.cast(piece.read(block, index), result.compute_dtype)
            block.store(result.memory, (*index[:dim], add(index[dim], start), *index[dim + 1 :]), value)
    result.ready = True
    return result


@lowers(aten.stack.default)
def stack(graph: Graph, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    rank = len(tensors[0].shape)
    dim %= rank + 1
    lifted = [
        part((*each.shape[:dim], 1, *each.shape[dim:]), each, lambda index: (*index[:dim], *index[dim + 1 :]))
        for each in map(graph.whole, tensors)
    ]
    return cat(graph, lifted, dim)


@lowers(aten.constant_pad_nd.default)
def constant_pad(graph: Graph, x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    source, rank = graph.whole(x), len(x.shape)
    before = {rank - 1 - k: pad[2 * k] for k in range(len(pad) // 2)}
    after = {rank - 1 - k: pad[2 * k + 1] for k in range(len(pad) // 2)}

    def at(block: Block, index: Index) -> str:
        inside = None
        for dim in before:
            if before[dim] > 0 or after[dim] > 0:
                found = within(block, index[dim], before[dim], before[dim] + x.shape[dim])
                inside = found if inside is None else block.compute(E.LOGICAL_AND, inside, found)  # type: ignore[arg-type]
        where = tuple(add(at, -before.get(dim, 0)) for dim, at in enumerate(index))
        if inside is None:
            return source.read(block, where)
        return chosen(block, inside, lambda: source.read(block, where), lambda: block.constant(value, x.compute_dtype))

    return graph.output(at, joined([source]) | Traits(depth=4))


@lowers(aten.slice_scatter.default)
def slice_scatter(
    graph: Graph,
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    base, part, dim = graph.whole(x), graph.whole(source), dim % len(x.shape)
    low, high = bounds(start, 0, x.shape[dim]), bounds(end, x.shape[dim], x.shape[dim])

    def at(block: Block, index: Index) -> str:
        inside = within(block, index[dim], low, max(low, high))
        assert inside is not None
        if step != 1:
            offset = block.compute(E.REMAINDER, block.position(add(index[dim], -low)), step)
            inside = block.compute(E.LOGICAL_AND, inside, block.compute(E.EQ, offset, 0))
        where = (*index[:dim], floordiv(add(index[dim], -low), step), *index[dim + 1 :])
        return chosen(
            block,
            inside,
            lambda: block.cast(part.read(block, where), base.compute_dtype),
            lambda: base.read(block, index),
        )

    return graph.output(at, joined([base, part]) | Traits(depth=5))


@lowers(aten.select_scatter.default)
def select_scatter(graph: Graph, x: Tensor, source: Tensor, dim: int, at_: int) -> Tensor:
    base, part, dim = graph.whole(x), graph.whole(source), dim % len(x.shape)
    place = at_ % x.shape[dim]

    def at(block: Block, index: Index) -> str:
        here = block.compute(E.EQ, block.position(index[dim]), place)
        where = (*index[:dim], *index[dim + 1 :])
        return chosen(
            block,
            here,
            lambda: block.cast(part.read(block, where), base.compute_dtype),
            lambda: base.read(block, index),
        )

    return graph.output(at, joined([base, part]) | Traits(depth=4))


@lowers(aten.repeat.default)
def repeat(graph: Graph, x: Tensor, times: Sequence[int]) -> Tensor:
    lead = len(times) - len(x.shape)
    return view(
        graph,
        graph.whole(x),
        lambda index: tuple(
            ZERO if size == 1 else at if count == 1 else mod(at, size)
            for at, size, count in zip(index[lead:], x.shape, times[lead:], strict=True)
        ),
    )


@lowers(aten.roll.default)
def roll(graph: Graph, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        graph.refuse("it rolls a flattened tensor")
    moves: dict[int, int] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        moves[dim % len(x.shape)] = moves.get(dim % len(x.shape), 0) + shift
    return view(
        graph,
        graph.whole(x),
        lambda index: tuple(
            mod(add(at, -moves[dim] % x.shape[dim]), x.shape[dim]) if dim in moves and x.shape[dim] else at
            for dim, at in enumerate(index)
        ),
    )
