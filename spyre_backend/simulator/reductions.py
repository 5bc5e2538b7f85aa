"""Reductions, scans, sorts and matrix products over the reduction axes.

Operands arrive with what is reduced flattened into one trailing dimension (`[..., n]`), except for `matmul`.
"""

from collections.abc import Callable, Sequence

import torch

from spyre_backend.program.dtypes import DType
from spyre_backend.program.ir import Compute, Constant, Region
from spyre_backend.program.opcodes import Elementwise, Reduction
from spyre_backend.simulator import elementwise
from spyre_backend.simulator.types import constant, value_dtype

Tensor = torch.Tensor


def reduce(kind: Reduction, args: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The results of a reduction of `[..., n]` operands, each `[..., 1]`. `dtype` is that of the first result."""
    return tuple(result.to(dtype).unsqueeze(-1) for result in _REDUCTIONS[kind](args, dtype))


def _sum(args: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (torch.sum(args[0], -1, dtype=dtype) if dtype != torch.bool else torch.any(args[0], -1),)


def _prod(args: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (torch.prod(args[0], -1, dtype=dtype) if dtype != torch.bool else torch.all(args[0], -1),)


def _extremum(function: Callable[..., Tensor], largest: bool) -> Callable[..., tuple[Tensor, ...]]:
    def apply(args: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        (value,) = args
        if value.shape[-1] == 0:
            return (torch.full(value.shape[:-1], _least(value.dtype) if largest else _greatest(value.dtype)),)
        return (function(value, -1),)

    return apply


def _fmax(args: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    (value,) = args
    if not value.dtype.is_floating_point or value.shape[-1] == 0:
        return _extremum(torch.amax, largest=True)(args, dtype)
    missing = torch.isnan(value)
    largest = torch.amax(value.masked_fill(missing, float("-inf")), -1)
    return (largest.masked_fill(missing.all(-1), float("nan")),)


def _least(dtype: torch.dtype) -> float | int | bool:
    if dtype == torch.bool:
        return False
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _greatest(dtype: torch.dtype) -> float | int | bool:
    if dtype == torch.bool:
        return True
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


def _xor_sum(args: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    (value,) = args
    while value.shape[-1] > 1:
        half = value.shape[-1] // 2
        folded = value[..., :half] ^ value[..., half : 2 * half]
        value = torch.cat([folded, value[..., 2 * half :]], -1)
    return (value[..., 0] if value.shape[-1] else torch.zeros(value.shape[:-1], dtype=value.dtype),)


def _arg_extremum(
    function: Callable[..., Tensor], extremum: Callable[..., Tensor]
) -> Callable[..., tuple[Tensor, ...]]:
    def apply(args: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        value = args[0].to(torch.uint8) if args[0].dtype == torch.bool else args[0]
        if len(args) == 1:
            return (function(value, -1),)
        best = extremum(value, -1).unsqueeze(-1)
        tied = (value == best) | (torch.isnan(value) & torch.isnan(best))
        return (torch.where(tied, args[1], torch.iinfo(torch.int64).max).amin(-1),)

    return apply


def _welford(args: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    value = args[0].to(dtype)
    count = torch.full(value.shape[:-1], value.shape[-1], dtype=dtype)
    mean = torch.sum(value, -1) / count
    return mean, torch.sum((value - mean.unsqueeze(-1)).square(), -1), count


def _welford_combine(args: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    mean, deviation, weight = args
    total = torch.sum(weight, -1)
    overall = torch.sum(mean * weight, -1) / total
    between = weight * (mean - overall.unsqueeze(-1)).square()
    return overall, torch.sum(deviation, -1) + torch.sum(between, -1), total


def _softmax_statistics(args: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    (value,) = args
    largest = torch.amax(value, -1)
    return largest, torch.sum(torch.exp(value - largest.unsqueeze(-1)), -1)


_REDUCTIONS: dict[Reduction, Callable[[tuple[Tensor, ...], torch.dtype], tuple[Tensor, ...]]] = {
    Reduction.SUM: _sum,
    Reduction.PROD: _prod,
    Reduction.MIN: _extremum(torch.amin, largest=False),
    Reduction.MAX: _extremum(torch.amax, largest=True),
    Reduction.FMAX: _fmax,
    Reduction.ANY: lambda args, dtype: (torch.any(args[0], -1),),
    Reduction.XOR_SUM: _xor_sum,
    Reduction.ARGMIN: _arg_extremum(torch.argmin, torch.amin),
    Reduction.ARGMAX: _arg_extremum(torch.argmax, torch.amax),
    Reduction.WELFORD: _welford,
    Reduction.WELFORD_COMBINE: _welford_combine,
    Reduction.SOFTMAX_STATISTICS: _softmax_statistics,
}


def sort(args: tuple[Tensor, ...], descending: bool) -> tuple[Tensor, ...]:
    """`[..., n]` operands ordered by the first one. Always stable: an unstable sort may be, and stays deterministic."""
    key = args[0]
    ordered, order = torch.sort(key, dim=-1, descending=descending, stable=True)
    return (ordered, *(torch.gather(arg.expand(key.shape), -1, order) for arg in args[1:]))


_CUMULATIVE: dict[Elementwise, Callable[[Tensor], Tensor]] = {
    Elementwise.ADD: lambda value: torch.cumsum(value, -1, dtype=value.dtype),
    Elementwise.MUL: lambda value: torch.cumprod(value, -1, dtype=value.dtype),
}


def scan(args: tuple[Tensor, ...], combine: Region) -> tuple[Tensor, ...]:
    """Inclusive scan of `[..., n]` operands, in log2(n) steps; sums and products directly."""
    match combine:
        case Region(params=(left, right), body=(Compute(op=op, args=operands),)) if (
            op in _CUMULATIVE and set(operands) == {left.name, right.name} and left.dtype is not DType.BOOL
        ):
            return (_CUMULATIVE[op](args[0]),)
    length, step = args[0].shape[-1], 1
    while step < length:
        left_part = tuple(arg[..., :-step] for arg in args)
        right_part = tuple(arg[..., step:] for arg in args)
        combined = _run_region(combine, left_part + right_part)
        args = tuple(torch.cat([arg[..., :step], new], -1) for arg, new in zip(args, combined, strict=True))
        step *= 2
    return args


def _run_region(region: Region, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    values = {param.name: arg for param, arg in zip(region.params, args, strict=True)}
    for instruction in region.body:
        dtype = value_dtype(instruction.result.dtype)
        match instruction:
            case Constant(value=value, result=result):
                values[result.name] = torch.tensor(constant(value), dtype=dtype)
            case Compute(op=op, args=names, result=result):
                values[result.name] = elementwise.apply(op, tuple(values[name] for name in names), dtype)
    shape = args[0].shape
    return tuple(values[name].expand(shape) for name in region.results)


def matmul(a: Tensor, b: Tensor, inner: Sequence[int], extents: list[int]) -> Tensor:
    """Sum over the dimensions `inner` of `a * b`, for operands that broadcast against each other.

    Another dimension that only `a` varies over is a row dimension, only `b` a column dimension, both a batch dimension.
    Returns a value of the same rank with the reduced dimensions at 1.
    """
    outer = [d for d in range(a.dim()) if d not in inner]
    a, b = (x.expand([extents[d] if d in inner else size for d, size in enumerate(x.shape)]) for x in (a, b))
    batch = [d for d in outer if a.shape[d] != 1 and b.shape[d] != 1]
    rows = [d for d in outer if a.shape[d] != 1 and b.shape[d] == 1]
    columns = [d for d in outer if a.shape[d] == 1 and b.shape[d] != 1]
    inner = list(inner)
    rest = [d for d in outer if d not in batch and d not in rows and d not in columns]
    left = _grouped(a, [batch, rows, inner], rest + columns)
    right = _grouped(b, [batch, inner, columns], rest + rows)
    product = torch.mm(left[0], right[0]).unsqueeze(0) if left.shape[0] == 1 else torch.bmm(left, right)
    shape = [a.shape[d] for d in batch + rows] + [b.shape[d] for d in columns] + [1] * (len(rest) + len(inner))
    order = batch + rows + columns + rest + inner
    return product.reshape(shape).permute([order.index(d) for d in range(a.dim())])


def _grouped(value: Tensor, groups: list[list[int]], ones: list[int]) -> Tensor:
    """`value` with each group of dimensions merged into one, in order; dimensions in `ones` have extent 1."""
    sizes = []
    for group in groups:
        size = 1
        for dim in group:
            size *= value.shape[dim]
        sizes.append(size)
    return value.permute([dim for group in groups for dim in group] + ones).reshape(sizes)


def bucketize(
    value: Tensor,
    boundaries: Callable[[Tensor], Tensor],
    length: int,
    right: bool,
) -> Tensor:
    """int64 position of each value among `length` sorted boundaries; `boundaries(k)` reads the k-th ones."""
    low = torch.zeros(value.shape, dtype=torch.int64)
    high = torch.full(value.shape, length)
    for _ in range(length.bit_length()):
        open_ = low < high
        middle = torch.where(open_, (low + high) // 2, 0)
        probe = boundaries(middle) if length else torch.zeros_like(value)
        # written so that NaN, which compares false, ends up behind every boundary
        before = ~(probe > value) if right else ~(probe >= value)
        low = torch.where(open_ & before, middle + 1, low)
        high = torch.where(open_ & ~before, middle, high)
    return low
