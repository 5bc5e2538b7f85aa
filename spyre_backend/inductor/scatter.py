"""Scatters with every reduction, as accumulating stores. Upstream has `sum` only, and not for every dtype."""

from collections.abc import Callable
from typing import Any

import torch

from spyre_backend import upstream

aten = torch.ops.aten

_MODES = {"sum": "atomic_add", "prod": "atomic_mul", "amax": "atomic_max", "amin": "atomic_min"}
_SPELLINGS = {"add": "sum", "multiply": "prod"}


def _identity(reduce: str, dtype: torch.dtype) -> int | float | bool:
    """The element that leaves the others unchanged."""
    if reduce in ("sum", "prod"):
        return 0 if reduce == "sum" else 1
    if dtype == torch.bool:
        return reduce == "amin"
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    return torch.iinfo(dtype).min if reduce == "amax" else torch.iinfo(dtype).max


def functional(mutating: Callable[..., Any]) -> Callable[..., Any]:
    """The lowering that leaves its first operand alone."""

    def lower(x: Any, *args: Any, **kwargs: Any) -> Any:
        return mutating(upstream.lowerings[aten.clone](x), *args, **kwargs)

    return lower


def scatter_(x: Any, dim: int, index: Any, src: Any, *, reduce: str | None = None) -> Any:
    """`x[..., index, ...] = src` along `dim`, or accumulated as `reduce` ("add", "multiply") says."""
    return scatter_reduce_(x, dim, index, src, _SPELLINGS.get(reduce, reduce))  # type: ignore[arg-type]


def scatter_add_(x: Any, dim: int, index: Any, src: Any) -> Any:
    """`x[..., index, ...] += src` along `dim`."""
    return scatter_reduce_(x, dim, index, src, "sum")


def scatter_reduce_(x: Any, dim: int, index: Any, src: Any, reduce: str | None, *, include_self: bool = True) -> Any:
    """Combine `src` into `x` along `dim`; without `include_self`, what `x` holds at the targets does not count."""
    target = _at_least_1d(x)
    if any(upstream.statically_equal(size, 0) for size in index.get_size()):
        return x
    target.realize()
    index = _at_least_1d(index)
    dtype = x.get_dtype()
    value = _loader(src, dtype)
    if reduce == "mean":
        _mean(target, dim, index, value, include_self)
        return x
    if reduce is not None and not include_self:
        _store(target, dim, index, _fill(_identity(reduce, dtype), dtype), None)
    _store(target, dim, index, value, _MODES[reduce] if reduce is not None else None)
    return x


def _at_least_1d(x: Any) -> Any:
    return x if x.get_size() else upstream.lowerings[aten.view](x, [1])


def _loader(src: Any, dtype: torch.dtype) -> Callable[..., Any]:
    if isinstance(src, upstream.ir.IRNode):
        return _at_least_1d(src).make_loader()
    return _fill(src, dtype)


def _fill(value: Any, dtype: torch.dtype) -> Callable[..., Any]:
    return lambda index: upstream.ops.constant(value, dtype)


def _mean(target: Any, dim: int, index: Any, value: Callable[..., Any], include_self: bool) -> None:
    low = upstream.lowerings
    dtype = target.get_dtype()
    size, device = target.get_size(), target.get_device()
    count = low[aten.full](size, 1 if include_self else 0, dtype=dtype, device=device)
    # not into the target itself: the copy below may give it other memory, under the feet of the scatters
    total = low[aten.clone](target)
    total.realize()
    count.realize()
    if not include_self:
        _store(total, dim, index, _fill(0, dtype), None)
    _store(total, dim, index, value, "atomic_add")
    _store(count, dim, index, _fill(1, dtype), "atomic_add")
    at_least_one = low[aten.clamp_min](count, 1)
    if dtype.is_floating_point:
        mean = low[aten.div](total, at_least_one)
    else:
        mean = low[aten.div](total, at_least_one, rounding_mode="floor")
    low[aten.copy_](target, mean)


def _store(target: Any, dim: int, index: Any, value: Callable[..., Any], mode: str | None) -> None:
    """Add a scatter to the graph that mutates `target`."""
    ir, graph = upstream.ir, upstream.V.graph
    dim = dim % len(target.get_size())
    size = target.get_size()[dim]
    load_index = index.make_loader()

    def where(position: Any) -> list[Any]:
        found = list(position)
        found[dim] = upstream.ops.indirect_indexing(load_index(position), size, wrap_neg=False)
        return found

    scatter = ir.Scatter(
        device=target.get_device(),
        dtype=target.get_dtype(),
        inner_fn=value,
        ranges=index.get_size(),
        output_indexer=where,
        scatter_mode=mode,
    )
    buffer = ir.ComputedBuffer(name=None, layout=ir.MutationLayoutSHOULDREMOVE(target), data=scatter)
    buffer.name = graph.register_buffer(buffer)
    graph.register_operation(buffer)
