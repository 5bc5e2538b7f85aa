"""Sorts and scans, which see a whole row at once: programs of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from spyre_backend.program.expr import Sym
from spyre_backend.program.ir import Compute, Region, Value
from spyre_backend.program.opcodes import Elementwise as E
from spyre_backend.sendnn.block import Block
from spyre_backend.sendnn.index import Index
from spyre_backend.sendnn.ops.table import lowers
from spyre_backend.sendnn.tensors import Tensor, Traits, never

if TYPE_CHECKING:
    from spyre_backend.sendnn.graph import Graph

aten = torch.ops.aten


def _by_rows(
    graph: Graph,
    x: Tensor,
    dim: int,
    results: list[Tensor],
    values: Callable[[Block, str, Sym], list[str]],
    most: int | None = None,
) -> None:
    """A program over the rows of `x` along `dim` that writes `values` of them, of each the first `most`."""
    source = graph.whole(x)
    block = Block()
    axes = {place: block.axis(size) for place, size in enumerate(x.shape) if place != dim}
    along = block.axis(x.shape[dim] if x.shape else 1, reduction=True)
    assert isinstance(along, Sym)
    index: Index = tuple(axes.get(place, along) for place in range(len(x.shape)))
    block.origins[graph.operator] = None
    names = [each.name for each in index if isinstance(each, Sym)] or [along.name]
    for result in results:
        graph.keep(result)
    with graph.recording(block, None, index):
        found = values(block, source.read(block, index), along)
        mask = None if most is None else block.compute(E.LT, block.position(along), most)
        for result, value in zip(results, found, strict=True):
            assert result.memory is not None
            block.store(result.memory, index if x.shape else (), value, mask=mask, axes=names)
            result.ready = True
            result.origin = "rows"


@lowers(aten.sort.default, aten.sort.stable, aten.topk.default)
def sort(graph: Graph, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    given = graph.named(args, kwargs, skip=1)
    dim = given.get("dim", -1) % max(len(x.shape), 1)
    descending = given.get("largest", True) if "k" in given else given.get("descending", False)
    found = graph.output(never, Traits(), 0), graph.output(never, Traits(), 1)

    def values(block: Block, value: str, along: Sym) -> list[str]:
        return list(block.sort((value, block.position(along)), descending=bool(descending), stable=True))

    _by_rows(graph, x, dim, list(found), values, given.get("k"))
    return found


@lowers(aten.argsort.default, aten.argsort.stable)
def argsort(graph: Graph, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    given = graph.named(args, kwargs, skip=1)
    found = graph.output(never, Traits())

    def values(block: Block, value: str, along: Sym) -> list[str]:
        ordered = block.sort(
            (value, block.position(along)), descending=bool(given.get("descending", False)), stable=True
        )
        return [ordered[1]]

    _by_rows(graph, x, given.get("dim", -1) % max(len(x.shape), 1), [found], values)
    return found


@lowers(aten.cumsum.default, aten.cumprod.default)
def cumulative(graph: Graph, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    op = E.ADD if graph.node.target is aten.cumsum.default else E.MUL
    found = graph.output(never, Traits())

    def values(block: Block, value: str, along: Sym) -> list[str]:
        kind = found.compute_dtype
        value = block.cast(value, kind)
        left, right, both = Value("a", kind), Value("b", kind), Value("c", kind)
        region = Region((left, right), (Compute(both, op, ("a", "b")),), ("c",))
        return list(block.scan((value,), region))

    _by_rows(graph, x, dim % max(len(x.shape), 1), [found], values)
    return found
