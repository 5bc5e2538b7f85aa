"""Operators that upstream leaves to ATen, written in operators that it lowers.

Each rule takes the operator's arguments and returns its result, or NotImplemented where upstream does it already. The
graph pass expands them after autograd and before lowering; sizes may be symbolic.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor
Rule = Callable[..., Any]

RULES: dict[Any, Rule] = {}

# upstream unrolls pooling windows up to this many elements and leaves larger ones to ATen
_UNROLLED_WINDOW = 25


def _rule(*overloads: Any) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(overloads, function))
        return function

    return add


# ---- order statistics: NaN is the median of anything that holds one ----------------------------------------------


def _median(x: Tensor, dim: int, keepdim: bool, position: Tensor | int, nan_wins: bool) -> tuple[Tensor, Tensor]:
    values, indices = torch.sort(x, dim=dim, stable=True)
    where = position if isinstance(position, Tensor) else torch.full_like(values.narrow(dim, 0, 1), position).long()
    if nan_wins and x.dtype.is_floating_point:
        isnan = torch.isnan(values)
        # NaN sorts last, so that the first of them is where the others end
        first = (~isnan).sum(dim, keepdim=True)
        where = torch.where(isnan.any(dim, keepdim=True), first, where)
    picked = torch.gather(values, dim, where), torch.gather(indices, dim, where)
    return picked if keepdim else (picked[0].squeeze(dim), picked[1].squeeze(dim))


@_rule(aten.median.dim)
def _median_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    return _median(x, dim, keepdim, (x.shape[dim] - 1) // 2, nan_wins=True)


@_rule(aten.median.default)
def _median_all(x: Tensor) -> Tensor:
    return _median(x.reshape(-1), 0, False, (x.numel() - 1) // 2, nan_wins=True)[0]


def _middle_number(x: Tensor, dim: int) -> Tensor | int:
    if not x.dtype.is_floating_point:
        return (x.shape[dim] - 1) // 2
    return ((~torch.isnan(x)).sum(dim, keepdim=True) - 1).clamp_min(0) // 2


@_rule(aten.nanmedian.dim)
def _nanmedian_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    return _median(x, dim, keepdim, _middle_number(x, dim), nan_wins=False)


@_rule(aten.nanmedian.default)
def _nanmedian_all(x: Tensor) -> Tensor:
    flat = x.reshape(-1)
    return _median(flat, 0, False, _middle_number(flat, 0), nan_wins=False)[0]


# ---- indexed reductions ----------------------------------------------------------------------------------------------

_INDEX_REDUCTIONS = {"prod": "prod", "mean": "mean", "amax": "amax", "amin": "amin"}


@_rule(aten.index_reduce.default)
def _index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if x.dim() == 0:
        reduced = _index_reduce(x.reshape(1), 0, index, source.reshape(-1), reduce, include_self=include_self)
        return reduced.reshape(())
    shape = [1] * x.dim()
    shape[dim] = index.numel()
    where = index.long().reshape(shape).expand(source.shape)
    return x.scatter_reduce(dim, where, source, _INDEX_REDUCTIONS[reduce], include_self=include_self)


@_rule(aten.histc.default)
def _histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    if min == max:
        # the range of the data, which may still be a single point
        low, high = x.min(), x.max()
        same = low == high
        low, high = torch.where(same, low - 1, low), torch.where(same, high + 1, high)
    else:
        low, high = (torch.full((), value, dtype=x.dtype, device=x.device) for value in (min, max))
    flat = x.reshape(-1)
    inside = (flat >= low) & (flat <= high)
    position = ((flat - low) * bins / (high - low)).clamp(0, bins - 1)
    target = torch.where(inside, position, 0).long()
    counts = torch.zeros(bins, dtype=x.dtype, device=x.device)
    return counts.scatter_add(0, target, inside.to(x.dtype))


# ---- pooling and resampling: one matrix per dimension ----------------------------------------------------------------


def _apply_per_dim(x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Multiply the trailing dimensions of `x` by matrices `[out, in]`, one each."""
    result = x
    for back, matrix in enumerate(reversed(matrices)):
        moved = result.transpose(-1, -1 - back)
        result = torch.matmul(moved, matrix.t()).transpose(-1, -1 - back)
    return result.contiguous()


def _counting(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _adaptive_matrix(size: Any, out: Any, x: Tensor) -> Tensor:
    """`[out, size]`: each row averages its window of the input."""
    o = torch.arange(out, device=x.device).unsqueeze(1)
    i = torch.arange(size, device=x.device)
    start, stop = (o * size) // out, ((o + 1) * size + out - 1) // out
    inside = (i >= start) & (i < stop)
    return inside.to(_counting(x)) / (stop - start).to(_counting(x))


@_rule(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def _adaptive_avg_pool(x: Tensor, output_size: Sequence[Any]) -> Tensor:
    dims = len(output_size)
    matrices = [_adaptive_matrix(x.shape[d - dims], output_size[d], x) for d in range(dims)]
    return _apply_per_dim(x.to(_counting(x)), matrices).to(x.dtype)


@_rule(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _adaptive_backward(grad, x, 2)


@_rule(aten._adaptive_avg_pool3d_backward.default)
def _adaptive_avg_pool3d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _adaptive_backward(grad, x, 3)


def _adaptive_backward(grad: Tensor, x: Tensor, dims: int) -> Tensor:
    matrices = [_adaptive_matrix(x.shape[d - dims], grad.shape[d - dims], x).t() for d in range(dims)]
    return _apply_per_dim(grad.to(_counting(x)), matrices).to(x.dtype)


class _Window:
    """The pooling window along one dimension."""

    def __init__(self, size: Any, out: Any, kernel: int, stride: int, padding: int, x: Tensor) -> None:
        o = torch.arange(out, device=x.device).unsqueeze(1)
        i = torch.arange(size, device=x.device)
        start = o * stride - padding
        self.matrix = ((i >= start) & (i < start + kernel)).to(_counting(x))
        padded = (start + kernel).clamp_max(size + padding) - start
        real = (start + kernel).clamp_max(size) - start.clamp_min(0)
        self.counts = {True: padded.to(_counting(x)), False: real.to(_counting(x))}


def _windows(
    x: Tensor, out: Sequence[Any], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> list[_Window]:
    dims = len(out)
    kernel, stride, padding = (
        list(v) * dims if len(v) == 1 else list(v) for v in (kernel, stride or kernel, padding or [0])
    )
    geometry = zip(kernel, stride, padding, strict=True)
    return [_Window(x.shape[d - dims], out[d], *one, x) for d, one in enumerate(geometry)]


def _divisor(windows: Sequence[_Window], include_padding: bool, override: int | None) -> Tensor | int:
    if override:
        return override
    counts = windows[0].counts[include_padding]
    for window in windows[1:]:
        counts = counts.unsqueeze(-1) * window.counts[include_padding].reshape(-1)
    return counts.squeeze(1)


def _pooled_size(size: Any, kernel: int, stride: int, padding: int, ceil_mode: bool) -> Any:
    extra = stride - 1 if ceil_mode else 0
    out = (size + 2 * padding - kernel + extra) // stride + 1
    if ceil_mode and bool((out - 1) * stride >= size + padding):
        out = out - 1
    return out


def _avg_pool(dims: int) -> Rule:
    def rule(
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        full = list(kernel) * dims if len(kernel) == 1 else list(kernel)
        if math.prod(full) <= _UNROLLED_WINDOW:
            return NotImplemented
        steps = list(stride or full)
        steps = steps * dims if len(steps) == 1 else steps
        pads = list(padding) * dims if len(padding) == 1 else list(padding)
        out = [_pooled_size(x.shape[d - dims], full[d], steps[d], pads[d], ceil_mode) for d in range(dims)]
        windows = _windows(x, out, full, steps, pads)
        summed = _apply_per_dim(x.to(_counting(x)), [window.matrix for window in windows])
        return (summed / _divisor(windows, count_include_pad, divisor_override)).to(x.dtype)

    return rule


def _avg_pool_backward(dims: int) -> Rule:
    def rule(
        grad: Tensor,
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        windows = _windows(x, grad.shape[-dims:], kernel, stride, padding)
        scaled = grad.to(_counting(x)) / _divisor(windows, count_include_pad, divisor_override)
        return _apply_per_dim(scaled, [window.matrix.t() for window in windows]).to(x.dtype)

    return rule


RULES[aten.avg_pool2d.default] = _avg_pool(2)
RULES[aten.avg_pool3d.default] = _avg_pool(3)
RULES[aten.avg_pool2d_backward.default] = _avg_pool_backward(2)
RULES[aten.avg_pool3d_backward.default] = _avg_pool_backward(3)


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp_min(0)


def _cubic(x: Tensor) -> Tensor:
    # the antialiased kernels use the coefficient -0.5
    a, x = -0.5, x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _antialias_matrix(
    size: Any, out: Any, align_corners: bool, scale: float | None, kernel: Callable, width: int, x: Tensor
) -> Tensor:
    """`[out, size]`: each row resamples the input around its centre."""
    if align_corners:
        ratio = (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        ratio = 1.0 / scale if scale is not None and scale > 0 else size / out
    stretch = ratio if ratio >= 1 else 1.0
    support = width * 0.5 * stretch
    o = torch.arange(out, device=x.device, dtype=_counting(x)).unsqueeze(1)
    i = torch.arange(size, device=x.device, dtype=_counting(x))
    centre = ratio * (o + 0.5)
    start = torch.trunc(centre - support + 0.5).clamp_min(0)
    stop = torch.trunc(centre + support + 0.5).clamp_max(size)
    weights = torch.where((i >= start) & (i < stop), kernel((i - centre + 0.5) / stretch), 0.0)
    return weights / weights.sum(1, keepdim=True)


def _antialiased(kernel: Callable, width: int) -> Rule:
    def rule(
        x: Tensor,
        output_size: Sequence[Any],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        matrices = [
            _antialias_matrix(x.shape[2 + d], output_size[d], align_corners, scale, kernel, width, x)
            for d, scale in enumerate((scales_h, scales_w))
        ]
        return _apply_per_dim(x.to(_counting(x)), matrices).to(x.dtype)

    return rule


def _antialiased_backward(kernel: Callable, width: int) -> Rule:
    def rule(
        grad: Tensor,
        output_size: Sequence[Any],
        input_size: Sequence[Any],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        matrices = [
            _antialias_matrix(input_size[2 + d], output_size[d], align_corners, scale, kernel, width, grad).t()
            for d, scale in enumerate((scales_h, scales_w))
        ]
        return _apply_per_dim(grad.to(_counting(grad)), matrices).to(grad.dtype)

    return rule


RULES[aten._upsample_bilinear2d_aa.default] = _antialiased(_triangle, 2)
RULES[aten._upsample_bicubic2d_aa.default] = _antialiased(_cubic, 4)
RULES[aten._upsample_bilinear2d_aa_backward.default] = _antialiased_backward(_triangle, 2)
RULES[aten._upsample_bicubic2d_aa_backward.default] = _antialiased_backward(_cubic, 4)


# ---- distances -------------------------------------------------------------------------------------------------------


def _norm(difference: Tensor, p: float) -> Tensor:
    size = difference.abs()
    if p == 0:
        return (size != 0).to(difference.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (size * size).sum(-1).sqrt()
    if p == math.inf:
        return size.amax(-1)
    return size.pow(p).sum(-1).pow(1.0 / p)


def _norm_backward(grad: Tensor, difference: Tensor, p: float, norm: Tensor) -> Tensor:
    """Gradient with respect to `difference`; zero where the norm is."""
    grad, norm = grad.unsqueeze(-1), norm.unsqueeze(-1)
    sign = difference.sign()
    if p == 0:
        return torch.zeros_like(difference) * grad
    if p == 1:
        return grad * sign
    if p == math.inf:
        return grad * sign * (difference.abs() == norm).to(difference.dtype)
    if p == 2:
        return torch.where(norm == 0, 0.0, grad * difference / norm)
    power = difference.abs().pow(p - 1)
    if p < 1:
        power = torch.where(difference == 0, 0.0, power)
    return torch.where(norm == 0, 0.0, grad * sign * power / norm.pow(p - 1))


@_rule(aten._cdist_forward.default)
def _cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


@_rule(aten._cdist_backward.default)
def _cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    return _norm_backward(grad, x1.unsqueeze(-2) - x2.unsqueeze(-3), p, cdist).sum(-2)


@_rule(aten._pdist_forward.default)
def _pdist_forward(x: Tensor, p: float = 2) -> Tensor:
    rows, columns = _pairs(x)
    return _norm(x[rows] - x[columns], p)


@_rule(aten._pdist_backward.default)
def _pdist_backward(grad: Tensor, x: Tensor, p: float, pdist: Tensor) -> Tensor:
    rows, columns = _pairs(x)
    change = _norm_backward(grad, x[rows] - x[columns], p, pdist)
    return torch.zeros_like(x).index_add(0, rows, change).index_add(0, columns, -change)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of the strict upper triangle, in row order."""
    n = x.shape[0]
    rows, columns = torch.triu_indices(n, n, 1, device=x.device)
    return rows, columns


@_rule(aten._trilinear.default)
def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    operands = []
    for operand, expanded in ((i1, expand1), (i2, expand2), (i3, expand3)):
        for dim in sorted(expanded):
            operand = operand.unsqueeze(dim)
        operands.append(operand)
    product = operands[0] * operands[1] * operands[2]
    return product.sum(list(sumdim)) if sumdim else product


# ---- positions -------------------------------------------------------------------------------------------------------


@_rule(aten.nonzero_static.default)
def _nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    if x.dim() == 0:
        return torch.empty((size, 0), dtype=torch.int64, device=x.device)
    found = (x != 0).reshape(-1)
    order = found.long().cumsum(0) - 1
    kept = found & (order < size)
    # everything that is not kept lands in one spare element
    flat = torch.full((size + 1,), -1, dtype=torch.int64, device=x.device)
    flat = flat.scatter(0, torch.where(kept, order, size), torch.arange(found.shape[0], device=x.device))[:size]
    columns = []
    rest = flat
    for extent in reversed(x.shape):
        columns.append(rest % extent)
        rest = rest // extent
    count = found.sum().clamp_max(size)
    valid = torch.arange(size, device=x.device) < count
    return torch.where(valid.unsqueeze(1), torch.stack(columns[::-1], 1), fill_value)
