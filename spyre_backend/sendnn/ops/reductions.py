"""Operators that reduce dimensions, and what is made of reductions: norms and softmax, each of them one program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from spyre_backend.program import DType
from spyre_backend.program.expr import ZERO, Sym, floordiv
from spyre_backend.program.opcodes import Elementwise as E
from spyre_backend.program.opcodes import Reduction
from spyre_backend.sendnn.block import Block, compute_dtype
from spyre_backend.sendnn.index import Index, contiguous, linear, reshaped
from spyre_backend.sendnn.ops.pointwise import where
from spyre_backend.sendnn.ops.table import lowers
from spyre_backend.sendnn.ops.views import part
from spyre_backend.sendnn.tensors import Tensor, Traits, joined

if TYPE_CHECKING:
    from spyre_backend.sendnn.graph import Graph

aten = torch.ops.aten
Dims = int | Sequence[int] | None


def dimensions(x: Tensor, dims: Dims) -> list[int]:
    """The dimensions that are meant, in order; none named means all."""
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        return list(range(len(x.shape)))
    given = [dims] if isinstance(dims, int) else dims
    return sorted({dim % max(len(x.shape), 1) for dim in given}) if x.shape else []


Over = tuple[Sym, ...]


def along(x: Tensor, dims: Sequence[int], keepdim: bool) -> Callable[[Block, Index], tuple[Index, Over]]:
    """Where the elements lie that one element of a result is reduced from, and the axes that they are reduced over."""

    def position(block: Block, index: Index) -> tuple[Index, Over]:
        kept = iter([at for dim, at in enumerate(index) if dim not in dims] if keepdim else index)
        outer = {dim: next(kept) for dim in range(len(x.shape)) if dim not in dims}
        over = block.inner_axes([x.shape[dim] for dim in dims], list(outer.values()))
        inner = dict(zip(dims, over, strict=True))
        return tuple(outer[dim] if dim in outer else inner[dim] for dim in range(len(x.shape))), over

    return position


def reduced(x: Tensor, dims: Sequence[int], keepdim: bool, depth: int = 1) -> Traits:
    """The traits of a result that is reduced from `x`. Without `keepdim` its rows are not those of `x`."""
    rows = frozenset((dim - len(x.shape), x.shape[dim]) for dim in dims) if keepdim else frozenset()
    before = x.traits_here
    return replace(before, rows=before.rows | rows if keepdim else rows, depth=before.depth + depth, reduces=True)


def reduction(
    graph: Graph,
    x: Tensor,
    dims: Dims,
    keepdim: bool,
    kind: Reduction,
    *,
    dtype: DType | None = None,
    before: Callable[[Block, str], str] = lambda block, value: value,
    after: Callable[[Block, str, int], str] = lambda block, value, count: value,
) -> Tensor:
    """The result of the current operator as a reduction of `before(x)` in `dtype`, and `after` of it and the count."""
    x, over_dims = graph.whole(x, rows=True), dimensions(x, dims)
    result = graph.dtype(graph.node.meta["val"].dtype)
    inside = dtype or compute_dtype(result)
    count = math.prod(x.shape[dim] for dim in over_dims)
    position = along(x, over_dims, keepdim)

    def at(block: Block, index: Index) -> str:
        where_, over = position(block, index)
        value = before(block, block.cast(x.read(block, where_), inside))
        if over:
            value = block.reduce(kind, (value,), over, inside)[0]
        return block.cast(after(block, value, count), compute_dtype(result))

    return graph.output(at, reduced(x, over_dims, keepdim))


@lowers(aten.sum.default, aten.sum.dim_IntList)
def sum_(graph: Graph, x: Tensor, dims: Dims = None, keepdim: bool = False, **_: Any) -> Tensor:
    return reduction(graph, x, dims, keepdim, Reduction.SUM)


@lowers(aten.mean.default, aten.mean.dim)
def mean(graph: Graph, x: Tensor, dims: Dims = None, keepdim: bool = False, **_: Any) -> Tensor:
    return reduction(graph, x, dims, keepdim, Reduction.SUM, after=_over_count)


def _over_count(block: Block, value: str, count: int) -> str:
    return block.compute(E.TRUEDIV, value, float(count))


@lowers(aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
def extremum(graph: Graph, x: Tensor, dims: Dims = None, keepdim: bool = False) -> Tensor:
    largest = graph.node.target in (aten.amax.default, aten.max.default)
    return reduction(graph, x, dims, keepdim, Reduction.MAX if largest else Reduction.MIN)


@lowers(aten.prod.default, aten.prod.dim_int)
def prod(graph: Graph, x: Tensor, dim: Dims = None, keepdim: bool = False, **_: Any) -> Tensor:
    return reduction(graph, x, dim, keepdim, Reduction.PROD)


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def any_(graph: Graph, x: Tensor, dims: Dims = None, keepdim: bool = False) -> Tensor:
    return reduction(graph, x, dims, keepdim, Reduction.ANY, dtype=DType.BOOL)


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def all_(graph: Graph, x: Tensor, dims: Dims = None, keepdim: bool = False) -> Tensor:
    def negated(block: Block, value: str, *_: Any) -> str:
        return block.compute(E.LOGICAL_NOT, value)

    return reduction(graph, x, dims, keepdim, Reduction.ANY, dtype=DType.BOOL, before=negated, after=negated)


@lowers(aten.argmax.default, aten.argmin.default)
def arg_extremum(graph: Graph, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    kind = Reduction.ARGMAX if graph.node.target is aten.argmax.default else Reduction.ARGMIN
    x, dims = graph.whole(x, rows=True), dimensions(x, dim)
    return graph.output(_positions(x, dims, keepdim, kind), reduced(x, dims, keepdim))


def _positions(x: Tensor, dims: Sequence[int], keepdim: bool, kind: Reduction) -> Callable[[Block, Index], str]:
    """The position of the first extremum, counted over the reduced dimensions."""
    position, strides = along(x, dims, keepdim), contiguous([x.shape[dim] for dim in dims])

    def at(block: Block, index: Index) -> str:
        where_, over = position(block, index)
        place = block.position(linear(over, strides))
        return (
            block.reduce(kind, (x.read(block, where_), place), over, DType.INT64)[0]
            if over
            else block.constant(0, DType.INT64)
        )

    return at


@lowers(aten.max.dim, aten.min.dim)
def extremum_with_position(graph: Graph, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    largest = graph.node.target is aten.max.dim
    x, dims = graph.whole(x, rows=True), dimensions(x, dim)
    position = along(x, dims, keepdim)

    def value(block: Block, index: Index) -> str:
        where_, over = position(block, index)
        found = x.read(block, where_)
        kind = Reduction.MAX if largest else Reduction.MIN
        return block.reduce(kind, (found,), over, block.dtypes[found])[0] if over else found

    traits = reduced(x, dims, keepdim)
    places = _positions(x, dims, keepdim, Reduction.ARGMAX if largest else Reduction.ARGMIN)
    return graph.output(value, traits, 0), graph.output(places, traits, 1)


# ---- variance and norms ---------------------------------------------------------------------------------------------


def moments(x: Tensor, dims: Sequence[int], keepdim: bool) -> Callable[[Block, Index], tuple[str, str, float]]:
    """Mean, sum of squared deviations, and how many elements they are of, in the dtype that `x` is computed in."""
    position = along(x, dims, keepdim)
    count = math.prod(x.shape[dim] for dim in dims)

    def at(block: Block, index: Index) -> tuple[str, str, float]:
        where_, over = position(block, index)
        value = x.read(block, where_)
        found, deviation, _ = block.reduce(Reduction.WELFORD, (value,), over, block.dtypes[value], results=3)
        return found, deviation, float(count)

    return at


def _variance(
    graph: Graph, x: Tensor, dims: Dims, correction: float | None, keepdim: bool
) -> tuple[Tensor, list[int], Any]:
    if not x.dtype.is_float:
        graph.refuse("it takes floating-point operands")
    x, over_dims = graph.whole(x, rows=True), dimensions(x, dims)
    of = moments(x, over_dims, keepdim)
    less = 1.0 if correction is None else float(correction)

    def variance(block: Block, index: Index) -> str:
        _, deviation, count = of(block, index)
        return block.compute(E.TRUEDIV, deviation, max(count - less, 0.0))

    return x, over_dims, variance


@lowers(aten.var.correction, aten.std.correction)
def var(
    graph: Graph, x: Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    x, over_dims, variance = _variance(graph, x, dims, correction, keepdim)
    root = graph.node.target is aten.std.correction

    def at(block: Block, index: Index) -> str:
        found = variance(block, index)
        return block.compute(E.SQRT, found) if root else found

    return graph.output(at, reduced(x, over_dims, keepdim))


@lowers(aten.var_mean.correction)
def var_mean(
    graph: Graph, x: Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    x, over_dims, variance = _variance(graph, x, dims, correction, keepdim)
    of, traits = moments(x, over_dims, keepdim), reduced(x, over_dims, keepdim)
    return graph.output(variance, traits, 0), graph.output(lambda block, index: of(block, index)[0], traits, 1)


def _normalised(
    graph: Graph, x: Tensor, dims: list[int], eps: float, scale: Callable[[Block, Index, str], str], extra: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised over `dims` and then scaled; the mean and the reciprocal deviation."""
    x = graph.whole(x, rows=True)
    of = moments(x, dims, keepdim=True)

    def statistics(block: Block, index: Index) -> tuple[str, str]:
        average, deviation, count = of(block, index)
        variance = block.compute(E.TRUEDIV, deviation, count)
        return average, block.compute(E.RSQRT, block.compute(E.ADD, variance, eps))

    def result(block: Block, index: Index) -> str:
        average, scaled = statistics(block, index)
        centred = block.compute(E.SUB, x.read(block, index), average)
        return scale(block, index, block.compute(E.MUL, centred, scaled))

    traits = reduced(x, dims, keepdim=True, depth=6)
    return (
        graph.output(result, traits | joined(extra), 0),
        graph.output(lambda block, index: statistics(block, index)[0], traits, 1, x.dtype),
        graph.output(lambda block, index: statistics(block, index)[1], traits, 2, x.dtype),
    )


def _affine(
    weight: Tensor | None, bias: Tensor | None, pick: Callable[[Index], Index]
) -> Callable[[Block, Index, str], str]:
    def scale(block: Block, index: Index, value: str) -> str:
        if weight is not None:
            value = block.compute(E.MUL, value, block.cast(weight.read(block, pick(index)), block.dtypes[value]))
        if bias is not None:
            value = block.compute(E.ADD, value, block.cast(bias.read(block, pick(index)), block.dtypes[value]))
        return value

    return scale


@lowers(aten.native_layer_norm.default)
def layer_norm(
    graph: Graph, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    rank = len(shape)
    dims = list(range(len(x.shape) - rank, len(x.shape)))
    given = [each for each in (weight, bias) if each is not None]
    return _normalised(graph, x, dims, eps, _affine(weight, bias, lambda index: index[-rank:]), given)


@lowers(aten.rms_norm.default, aten._fused_rms_norm.default)
def rms_norm(
    graph: Graph, x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Any:
    rank = len(shape)
    dims = list(range(len(x.shape) - rank, len(x.shape)))
    x = graph.whole(x, rows=True)
    small = torch.finfo(getattr(torch, x.compute_dtype.value)).eps if eps is None else eps
    position, count = along(x, dims, keepdim=True), float(math.prod(shape))
    scale = _affine(weight, None, lambda index: index[-rank:])

    def root(block: Block, index: Index) -> str:
        where_, over = position(block, index)
        value = x.read(block, where_)
        total = block.reduce(Reduction.SUM, (block.compute(E.MUL, value, value),), over, block.dtypes[value])[0]
        return block.compute(E.RSQRT, block.compute(E.ADD, block.compute(E.TRUEDIV, total, count), small))

    def result(block: Block, index: Index) -> str:
        return scale(block, index, block.compute(E.MUL, x.read(block, index), root(block, index)))

    traits = reduced(x, dims, keepdim=True, depth=5)
    both = traits | joined([weight] if weight is not None else [])
    if graph.node.target is aten.rms_norm.default:
        return graph.output(result, both)
    return graph.output(result, both, 0), graph.output(root, traits, 1)


@lowers(aten.native_group_norm.default)
def group_norm(
    graph: Graph,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    c: int,
    hw: int,
    groups: int,
    eps: float,
) -> Any:
    size = c // groups
    x = graph.whole(x)
    grouped = part((n, groups, size * hw), x, lambda index: reshaped(index, (n, groups, size * hw), x.shape))
    of = moments(grouped, [2], keepdim=True)
    scale = _affine(weight, bias, lambda index: (index[1],))

    def statistics(block: Block, index: Index) -> tuple[str, str]:
        average, deviation, count = of(block, index)
        return average, block.compute(E.RSQRT, block.compute(E.ADD, block.compute(E.TRUEDIV, deviation, count), eps))

    def result(block: Block, index: Index) -> str:
        average, scaled = statistics(block, (index[0], floordiv(index[1], size), ZERO))
        return scale(block, index, block.compute(E.MUL, block.compute(E.SUB, x.read(block, index), average), scaled))

    traits = reduced(grouped, [2], keepdim=False, depth=6)
    given = [each for each in (weight, bias) if each is not None]
    return (
        graph.output(result, traits | joined(given), 0),
        graph.output(lambda block, index: statistics(block, (*index, ZERO))[0], traits, 1),
        graph.output(lambda block, index: statistics(block, (*index, ZERO))[1], traits, 2),
    )


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm(
    graph: Graph,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    given = [each for each in (weight, bias, mean, var) if each is not None]
    scale = _affine(weight, bias, lambda index: (index[1],))

    def at(block: Block, index: Index) -> str:
        value = x.read(block, index)
        kind, channel = block.dtypes[value], (index[1],)
        spread = block.compute(E.ADD, block.cast(var.read(block, channel), kind), eps)
        centred = block.compute(E.SUB, value, block.cast(mean.read(block, channel), kind))
        return scale(block, index, block.compute(E.MUL, centred, block.compute(E.RSQRT, spread)))

    empty = Tensor(
        (0,), compute_dtype(x.dtype), lambda block, index: block.constant(0, compute_dtype(x.dtype)), graph=graph
    )
    return graph.output(at, joined([x, *given]) | Traits(depth=6), 0), empty, empty


# ---- softmax --------------------------------------------------------------------------------------------------------


@lowers(aten._softmax.default, aten._safe_softmax.default, aten._log_softmax.default)
def softmax(graph: Graph, x: Tensor, dim: int, half_to_float: Any = None, **_: Any) -> Tensor:
    x, dims = graph.whole(x, rows=True), dimensions(x, dim)
    position = along(x, dims, keepdim=True)
    is_log, is_safe = graph.node.target is aten._log_softmax.default, graph.node.target is aten._safe_softmax.default

    def at(block: Block, index: Index) -> str:
        outer, over = position(block, index)
        value = x.read(block, outer)
        kind = block.dtypes[value]
        top = block.reduce(Reduction.MAX, (value,), over, kind)[0]
        total = block.reduce(Reduction.SUM, (block.compute(E.EXP, block.compute(E.SUB, value, top)),), over, kind)[0]
        here = block.compute(E.SUB, x.read(block, index), top)
        if is_log:
            return block.compute(E.SUB, here, block.compute(E.LOG, total))
        found = block.compute(E.TRUEDIV, block.compute(E.EXP, here), total)
        # where all of a row is masked out, attention gives it no weight at all
        return where(block, block.compute(E.EQ, top, -math.inf), 0.0, found) if is_safe else found

    return graph.output(at, reduced(x, dims, keepdim=True, depth=5))


@lowers(aten.logsumexp.default)
def logsumexp(graph: Graph, x: Tensor, dims: Dims, keepdim: bool = False) -> Tensor:
    if not x.dtype.is_float:
        graph.refuse("it takes floating-point operands")
    x, over_dims = graph.whole(x, rows=True), dimensions(x, dims)
    position = along(x, over_dims, keepdim)

    def at(block: Block, index: Index) -> str:
        where_, over = position(block, index)
        value = x.read(block, where_)
        kind = block.dtypes[value]
        top = block.reduce(Reduction.MAX, (value,), over, kind)[0]
        # infinities are their own reference point
        shift = where(block, block.compute(E.EQ, block.compute(E.ABS, top), math.inf), 0.0, top)
        total = block.reduce(Reduction.SUM, (block.compute(E.EXP, block.compute(E.SUB, value, shift)),), over, kind)[0]
        return block.compute(E.ADD, block.compute(E.LOG, total), shift)

    return graph.output(at, reduced(x, over_dims, keepdim, depth=5))


@lowers(aten.linalg_vector_norm.default)
def vector_norm(
    graph: Graph, x: Tensor, order: float = 2, dims: Dims = None, keepdim: bool = False, **_: Any
) -> Tensor:
    powers: dict[float, tuple[Reduction, Callable[[Block, str], str], Callable[[Block, str, int], str]]] = {
        2: (Reduction.SUM, lambda b, v: b.compute(E.MUL, v, v), lambda b, v, n: b.compute(E.SQRT, v)),
        1: (Reduction.SUM, lambda b, v: b.compute(E.ABS, v), lambda b, v, n: v),
        math.inf: (Reduction.MAX, lambda b, v: b.compute(E.ABS, v), lambda b, v, n: v),
        -math.inf: (Reduction.MIN, lambda b, v: b.compute(E.ABS, v), lambda b, v, n: v),
    }
    kind, before, after = powers.get(order) or (
        Reduction.SUM,
        lambda b, v: b.compute(E.POW, b.compute(E.ABS, v), float(order)),
        lambda b, v, n: b.compute(E.POW, v, 1 / order),
    )
    if order == 0:
        graph.refuse("it counts elements")
    return reduction(graph, x, dims, keepdim, kind, before=before, after=after)
