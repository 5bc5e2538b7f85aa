"""Operators that upstream leaves to ATen, written in operators that it lowers.

The graph pass expands them after autograd and before lowering; sizes may be symbolic.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from spyre_backend.inductor import experts, pooling
from spyre_backend.inductor.rules import Rule, adds_to

aten = torch.ops.aten
Tensor = torch.Tensor

RULES: dict[Any, Rule] = pooling.RULES | experts.RULES


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


@adds_to(RULES, aten.median.dim)
def _median_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    return _median(x, dim, keepdim, (x.shape[dim] - 1) // 2, nan_wins=True)


@adds_to(RULES, aten.median.default)
def _median_all(x: Tensor) -> Tensor:
    return _median(x.reshape(-1), 0, False, (x.numel() - 1) // 2, nan_wins=True)[0]


def _middle_number(x: Tensor, dim: int) -> Tensor | int:
    if not x.dtype.is_floating_point:
        return (x.shape[dim] - 1) // 2
    return ((~torch.isnan(x)).sum(dim, keepdim=True) - 1).clamp_min(0) // 2


@adds_to(RULES, aten.nanmedian.dim)
def _nanmedian_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    return _median(x, dim, keepdim, _middle_number(x, dim), nan_wins=False)


@adds_to(RULES, aten.nanmedian.default)
def _nanmedian_all(x: Tensor) -> Tensor:
    flat = x.reshape(-1)
    return _median(flat, 0, False, _middle_number(flat, 0), nan_wins=False)[0]


# ---- indexed reductions ----------------------------------------------------------------------------------------------

_INDEX_REDUCTIONS = {"prod": "prod", "mean": "mean", "amax": "amax", "amin": "amin"}


@adds_to(RULES, aten.index_reduce.default)
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


@adds_to(RULES, aten.histc.default)
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


@adds_to(RULES, aten._cdist_forward.default)
def _cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


@adds_to(RULES, aten._cdist_backward.default)
def _cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    return _norm_backward(grad, x1.unsqueeze(-2) - x2.unsqueeze(-3), p, cdist).sum(-2)


@adds_to(RULES, aten._pdist_forward.default)
def _pdist_forward(x: Tensor, p: float = 2) -> Tensor:
    rows, columns = _pairs(x)
    return _norm(x[rows] - x[columns], p)


@adds_to(RULES, aten._pdist_backward.default)
def _pdist_backward(grad: Tensor, x: Tensor, p: float, pdist: Tensor) -> Tensor:
    rows, columns = _pairs(x)
    change = _norm_backward(grad, x[rows] - x[columns], p, pdist)
    return torch.zeros_like(x).index_add(0, rows, change).index_add(0, columns, -change)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of the strict upper triangle, in row order."""
    n = x.shape[0]
    rows, columns = torch.triu_indices(n, n, 1, device=x.device)
    return rows, columns


@adds_to(RULES, aten.addbmm.default)
def _addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    # the sum over the batch is part of the contraction
    product = a.transpose(0, 1).reshape(a.shape[1], -1) @ b.reshape(-1, b.shape[2])
    product = product * alpha if alpha != 1 else product
    return product if beta == 0 else product + (x * beta if beta != 1 else x)


@adds_to(RULES, aten._trilinear.default)
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
    return product.sum(list(sumdim), dtype=product.dtype) if sumdim else product


# ---- positions -------------------------------------------------------------------------------------------------------


@adds_to(RULES, aten.nonzero_static.default)
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


@adds_to(RULES, aten.masked_scatter_backward.default)
def _masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[Any]) -> Tensor:
    mask = mask.expand(grad.shape).reshape(-1)
    count = math.prod(sizes)
    order = mask.long().cumsum(0) - 1
    # everything outside the mask lands in one spare element
    target = torch.where(mask, order, count)
    taken = torch.zeros([count + 1], dtype=grad.dtype, device=grad.device).scatter(0, target, grad.reshape(-1))
    return taken[:count].reshape(list(sizes))


# ---- statistics of nothing -------------------------------------------------------------------------------------------


def _reduces_nothing(x: Tensor, dim: Sequence[int] | None = None, **_: Any) -> bool:
    sizes = [x.shape[d] for d in dim] if dim else list(x.shape)
    return any(isinstance(size, int) and size == 0 for size in sizes)


@adds_to(RULES, aten.var_mean.correction, when=_reduces_nothing)
def _var_mean_of_nothing(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    # upstream's Welford reduction starts from a mean of zero
    nothing = x.sum(list(dim) if dim else list(range(x.dim())), keepdim=keepdim)
    return torch.full_like(nothing, math.nan), torch.full_like(nothing, math.nan)


# ---- random numbers --------------------------------------------------------------------------------------------------


def _draw_shape(shape: Sequence[Any], device: torch.device, distribution: str) -> Tensor:
    """A float32 draw, from the generator that upstream's own random operators use."""
    prims = torch.ops.prims
    seeds = prims.inductor_seeds.default(1, device)
    return prims.inductor_random.default(list(shape), prims.inductor_lookup_seed.default(seeds, 0), distribution)


def _draw(like: Tensor, distribution: str) -> Tensor:
    return _draw_shape(like.shape, like.device, distribution)


def _without_generator(*args: Any, generator: Any = None, **kwargs: Any) -> bool:
    return generator is None and args[0].dtype.is_floating_point


@adds_to(RULES, aten.uniform.default, when=_without_generator)
def _uniform(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Tensor:
    return (_draw(x, "rand") * (high - low) + low).to(x.dtype)


@adds_to(RULES, aten.normal_functional.default, when=_without_generator)
def _normal(x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return (_draw(x, "randn") * std + mean).to(x.dtype)


@adds_to(RULES, aten.exponential.default, when=_without_generator)
def _exponential(x: Tensor, rate: float = 1.0, *, generator: Any = None) -> Tensor:
    return (torch.log1p(-_draw(x, "rand")) / -rate).to(x.dtype)


@adds_to(RULES, aten.cauchy.default, when=_without_generator)
def _cauchy(x: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Tensor:
    return (median + sigma * torch.tan(math.pi * (_draw(x, "rand") - 0.5))).to(x.dtype)


@adds_to(RULES, aten.log_normal.default, when=_without_generator)
def _log_normal(x: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Tensor:
    return torch.exp(_draw(x, "randn") * std + mean).to(x.dtype)


@adds_to(RULES, aten.geometric.default, when=_without_generator)
def _geometric(x: Tensor, p: float, *, generator: Any = None) -> Tensor:
    return torch.ceil(torch.log1p(-_draw(x, "rand")) / math.log1p(-p)).clamp_min(1).to(x.dtype)


def _has_no_generator(*args: Any, generator: Any = None, **kwargs: Any) -> bool:
    return generator is None


@adds_to(RULES, torch.ops.prims.normal.default, when=_has_no_generator)
def _prims_normal(
    shape: Sequence[Any], *, mean: Any, std: Any, dtype: torch.dtype, device: torch.device, **_: Any
) -> Tensor:
    return (_draw_shape(shape, device, "randn") * std + mean).to(dtype)


@adds_to(RULES, aten.multinomial.default, when=_has_no_generator)
def _multinomial(x: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    # the category whose exponential clock of rate p rings first is drawn with probability p
    if replacement and num_samples > 1:
        weights = x.unsqueeze(-2).expand([*x.shape[:-1], num_samples, x.shape[-1]])
        return (weights / -torch.log1p(-_draw(weights, "rand"))).argmax(-1)
    return torch.topk(x / -torch.log1p(-_draw(x, "rand")), num_samples).indices
