"""Operators written in others, which AOTAutograd expands before a graph comes to be compiled. Forwards only; written by
hand, as everything here. Sizes are plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
Tensor = torch.Tensor

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}


def decomposes(*operators: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The decorated function is what these overloads are expanded to."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS.update(dict.fromkeys(operators, function))
        return function

    return register


# ---- element by element --------------------------------------------------------------------------------------------


@decomposes(aten.celu.default)
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return torch.where(x > 0, x, torch.expm1(x / alpha) * alpha)


@decomposes(aten.glu.default)
def glu(x: Tensor, dim: int = -1) -> Tensor:
    first, second = x.split(x.shape[dim] // 2, dim)
    return first * torch.sigmoid(second)


@decomposes(aten.hardshrink.default)
def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), 0, x)


@decomposes(aten.softshrink.default)
def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    # what is not a number stays what it is
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, x * 0))


@decomposes(aten.logaddexp.default)
def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    high, low = torch.maximum(x, y), torch.minimum(x, y)
    # equal infinities have no difference
    return torch.where((high == low) & torch.isinf(high), high, high + torch.log1p(torch.exp(low - high)))


@decomposes(aten.isposinf.default)
def isposinf(x: Tensor) -> Tensor:
    return x == math.inf if x.dtype.is_floating_point else torch.zeros_like(x, dtype=torch.bool)


@decomposes(aten.isneginf.default)
def isneginf(x: Tensor) -> Tensor:
    return x == -math.inf if x.dtype.is_floating_point else torch.zeros_like(x, dtype=torch.bool)


@decomposes(aten.heaviside.default)
def heaviside(x: Tensor, at_zero: Tensor) -> Tensor:
    return torch.where(x == 0, at_zero, (x > 0).to(x.dtype))


@decomposes(aten.sinc.default)
def sinc(x: Tensor) -> Tensor:
    scaled = x * math.pi
    return torch.where(x == 0, 1, torch.sin(scaled) / scaled)


@decomposes(aten.log_sigmoid_forward.default)
def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    tail = torch.exp(-torch.abs(x))
    return torch.clamp_max(x, 0) - torch.log1p(tail), x.new_zeros(0)


@decomposes(aten.isin.Tensor_Tensor)
def isin(x: Tensor, among: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    found = (x.unsqueeze(-1) == among.reshape(-1)).any(-1)
    return ~found if invert else found


# ---- of a whole ------------------------------------------------------------------------------------------------------


@decomposes(aten.std_mean.correction)
def std_mean(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    variance, average = torch.var_mean(x, dim, correction=correction, keepdim=keepdim)
    return torch.sqrt(variance), average


@decomposes(aten.aminmax.default)
def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    dims = tuple(range(x.dim())) if dim is None else (dim,)
    return torch.amin(x, dims, keepdim), torch.amax(x, dims, keepdim)


@decomposes(aten.addmv.default)
def addmv(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _plus(bias, torch.mv(a, b), beta, alpha)


@decomposes(aten.addr.default)
def addr(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _plus(bias, a.unsqueeze(1) * b, beta, alpha)


@decomposes(aten.addbmm.default)
def addbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _plus(bias, torch.bmm(a, b).sum(0), beta, alpha)


def _plus(bias: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    product = product if alpha == 1 else product * alpha
    return product + torch.zeros_like(bias) if beta == 0 else product + (bias if beta == 1 else bias * beta)


@decomposes(aten.trace.default)
def trace(x: Tensor) -> Tensor:
    return x.diagonal().sum()


@decomposes(aten.dist.default)
def dist(x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    return torch.linalg.vector_norm(x - y, p)


@decomposes(aten.norm.ScalarOpt_dim, aten.norm.Scalar)
def norm(x: Tensor, p: float | None, dim: Any = None, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim or None, keepdim)


@decomposes(aten.linalg_cross.default)
def cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    x, y = torch.broadcast_tensors(x, y)
    return x.roll(-1, dim) * y.roll(-2, dim) - x.roll(-2, dim) * y.roll(-1, dim)


@decomposes(aten._cdist_forward.default)
def cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, dim=-1)


# ---- at other places -------------------------------------------------------------------------------------------------


@decomposes(aten.rot90.default)
def rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    ways: dict[int, Callable[[], Tensor]] = {
        0: lambda: x.clone(),
        1: lambda: x.flip(dims[1]).transpose(*dims),
        2: lambda: x.flip(list(dims)),
        3: lambda: x.flip(dims[0]).transpose(*dims),
    }
    return ways[k % 4]()


@decomposes(aten.narrow_copy.default)
def narrow_copy(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return x.narrow(dim, start, length).clone()


@decomposes(aten.diag_embed.default)
def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    size = x.shape[-1] + abs(offset)
    rows = torch.arange(size, device=x.device).unsqueeze(-1)
    columns = torch.arange(size, device=x.device)
    along = F.pad(x, (max(offset, 0), 0)) if offset >= 0 else F.pad(x, (0, -offset))
    found = torch.where(columns == rows + offset, along.unsqueeze(-2), 0)
    return found.movedim((-2, -1), (dim1, dim2)).contiguous()


@decomposes(aten.take.default)
def take(x: Tensor, index: Tensor) -> Tensor:
    return x.reshape(-1)[index.reshape(-1)].reshape(index.shape)


@decomposes(aten.masked_scatter.default)
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    mask, x = torch.broadcast_tensors(mask, x)
    place = torch.cumsum(mask.reshape(-1).long(), 0) - 1  # each place takes the next of the source
    return torch.where(mask, take(source, place.clamp_min(0)).reshape(x.shape), x)


def _at(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Elements of `x` along one dimension, wherever they are."""
    return x.index_select(dim, index)


@decomposes(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    return _padded(x, padding, lambda place, size: size - 1 - (size - 1 - place.abs()).abs())


@decomposes(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    return _padded(x, padding, lambda place, size: place.clamp(0, size - 1))


def _padded(x: Tensor, padding: Sequence[int], source: Callable[[Tensor, int], Tensor]) -> Tensor:
    for k in range(len(padding) // 2):
        dim, before, after = x.dim() - 1 - k, padding[2 * k], padding[2 * k + 1]
        places = torch.arange(-before, x.shape[dim] + after, device=x.device)
        x = _at(x, dim, source(places, x.shape[dim]))
    return x


# ---- windows ---------------------------------------------------------------------------------------------------------


def _each(values: Sequence[int] | int, dims: int) -> list[int]:
    given = [values] if isinstance(values, int) else list(values)
    return given * (dims if len(given) == 1 else 1)


def _windows(
    x: Tensor, dims: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, fill: float
) -> Tensor:
    """`[..., *places, *kernel]`: what each window over the last `dims` dimensions sees, outside of `x` the `fill`."""
    spans = [d * (k - 1) + 1 for k, d in zip(_each(kernel, dims), _each(dilation, dims), strict=True)]
    steps, pads = _each(stride or kernel, dims), _each(padding, dims)
    around: list[int] = []
    for span, step, pad, length in zip(spans, steps, pads, x.shape[-dims:], strict=True):
        room = length + 2 * pad - span
        count = (-(-room // step) if ceil else room // step) + 1
        if (count - 1) * step >= length + pad:
            count -= 1  # a window may reach beyond the padding, but not begin there
        around = [pad, max(pad, (count - 1) * step + span - length - pad), *around]
    if any(around):
        x = F.pad(x, around, value=fill)
    lead = x.dim() - dims
    for dim, (span, step, gap) in enumerate(zip(spans, steps, _each(dilation, dims), strict=True)):
        x = x.unfold(lead + dim, span, step)[..., ::gap]
    return x


def _avg_pool(dims: int) -> Callable[..., Tensor]:
    def pool(
        x: Tensor,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        over = tuple(range(-dims, 0))
        total = _windows(x, dims, kernel, stride, padding, 1, ceil_mode, 0.0).sum(over)
        if divisor_override is not None:
            return total / divisor_override
        # what lies beyond the padding never counts, padding only if it is asked to
        ones = x.new_ones([1] * (x.dim() - dims) + list(x.shape[-dims:]))
        pads = _each(padding, dims) if count_include_pad else [0] * dims
        ones = F.pad(ones, [side for pad in reversed(pads) for side in (pad, pad)], value=1.0)
        left = 0 if count_include_pad else padding
        counts = _windows(ones, dims, kernel, stride, left, 1, ceil_mode, 0.0).sum(over)
        return total / counts[tuple(slice(size) for size in (None,) * (x.dim() - dims) + tuple(total.shape[-dims:]))]

    return pool


def _max_pool(dims: int) -> Callable[..., tuple[Tensor, Tensor]]:
    def pool(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> tuple[Tensor, Tensor]:
        least = -math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
        seen = _windows(x, dims, kernel, stride, padding, dilation, ceil_mode, least).flatten(-dims)
        values, which = seen.max(-1)
        place, rest = torch.zeros_like(which), which
        taps, steps, pads, gaps = (_each(each, dims) for each in (kernel, stride or kernel, padding, dilation))
        for dim in range(dims):
            below = math.prod(taps[dim + 1 :])
            at = torch.arange(which.shape[which.dim() - dims + dim], device=x.device) * steps[dim] - pads[dim]
            at = at.reshape([-1] + [1] * (dims - 1 - dim))
            place = place * x.shape[x.dim() - dims + dim] + at + (rest // below) * gaps[dim]
            rest = rest % below
        return values, place

    return pool


for _dims, _average, _largest in (
    (1, [aten.avg_pool1d.default], []),
    (2, [aten.avg_pool2d.default], [aten.max_pool2d_with_indices.default]),
    (3, [aten.avg_pool3d.default], [aten.max_pool3d_with_indices.default]),
):
    decomposes(*_average)(_avg_pool(_dims))
    decomposes(*_largest)(_max_pool(_dims))


@decomposes(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(x: Tensor, size: Sequence[int]) -> Tensor:
    found = x.float()
    for dim, wanted in enumerate(size, start=x.dim() - len(size)):
        length = x.shape[dim]
        out, place = torch.arange(wanted, device=x.device).unsqueeze(-1), torch.arange(length, device=x.device)
        start, end = out * length // wanted, ((out + 1) * length + wanted - 1) // wanted
        share = ((place >= start) & (place < end)).float() / (end - start)
        found = (found.movedim(dim, -1) @ share.t()).movedim(-1, dim)
    return found.to(x.dtype).contiguous()


@decomposes(aten.im2col.default)
def im2col(x: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    seen = _windows(x, 2, kernel, stride, padding, dilation, False, 0.0)
    lead = x.shape[:-3]
    order = [*range(len(lead)), *(len(lead) + k for k in (0, 3, 4, 1, 2))]
    found = seen.permute(order)
    taps = x.shape[-3] * math.prod(_each(kernel, 2))
    return found.reshape(*lead, taps, found.shape[-2] * found.shape[-1])


# ---- other sizes -----------------------------------------------------------------------------------------------------


def _scales(x: Tensor, size: Sequence[int], given: Sequence[float | None], align: bool = False) -> list[float]:
    """How far apart the sources of neighbours lie, dimension by dimension."""
    lengths = x.shape[-len(size) :]
    if align:
        return [
            (length - 1) / (wanted - 1) if wanted > 1 else 0.0 for length, wanted in zip(lengths, size, strict=True)
        ]
    factors = [*given, *[None] * (len(size) - len(given))]
    return [
        1 / factor if factor else length / wanted for length, wanted, factor in zip(lengths, size, factors, strict=True)
    ]


def _nearest(offset: float) -> Callable[..., Tensor]:
    def upsample(x: Tensor, size: Sequence[int], *given: float | None) -> Tensor:
        dims = len(size)
        for dim, (wanted, step) in enumerate(zip(size, _scales(x, size, given), strict=True), start=x.dim() - dims):
            at = torch.floor((torch.arange(wanted, device=x.device).float() + offset) * step).long()
            x = _at(x, dim, at.clamp_max(x.shape[dim] - 1))
        return x

    return upsample


decomposes(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default)(
    _nearest(0.0)
)
decomposes(
    aten._upsample_nearest_exact1d.default,
    aten._upsample_nearest_exact2d.default,
    aten._upsample_nearest_exact3d.default,
)(_nearest(0.5))


def _sources(wanted: int, step: float, align: bool, device: torch.device) -> Tensor:
    place = torch.arange(wanted, device=device).float()
    return place * step if align else (place + 0.5) * step - 0.5


def _weighted(x: Tensor, dim: int, at: Tensor, taps: Sequence[int], weights: Sequence[Tensor]) -> Tensor:
    """A sum of neighbours of `at` along a dimension; those beyond an end are the one at it."""
    shape = [-1] + [1] * (x.dim() - 1 - dim)
    parts = [
        _at(x, dim, (at + tap).clamp(0, x.shape[dim] - 1)) * weight.reshape(shape)
        for tap, weight in zip(taps, weights, strict=True)
    ]
    return sum(parts[1:], parts[0])


@decomposes(aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default)
def upsample_linear(x: Tensor, size: Sequence[int], align_corners: bool, *given: float | None) -> Tensor:
    found, dims = x.float(), len(size)
    steps = _scales(x, size, given, align_corners)
    for dim, (wanted, step) in enumerate(zip(size, steps, strict=True), start=x.dim() - dims):
        source = _sources(wanted, step, align_corners, x.device).clamp_min(0.0)
        low = torch.floor(source)
        part = source - low
        found = _weighted(found, dim, low.long(), (0, 1), (1 - part, part))
    return found.to(x.dtype)


@decomposes(aten.upsample_bicubic2d.default)
def upsample_bicubic(x: Tensor, size: Sequence[int], align_corners: bool, *given: float | None) -> Tensor:
    found = x.float()
    a = -0.75  # the coefficient that PyTorch has
    for dim, (wanted, step) in enumerate(
        zip(size, _scales(x, size, given, align_corners), strict=True), start=x.dim() - 2
    ):
        source = _sources(wanted, step, align_corners, x.device)
        low = torch.floor(source)
        part = source - low

        def near(d: Tensor) -> Tensor:
            return ((a + 2) * d - (a + 3)) * d * d + 1

        def far(d: Tensor) -> Tensor:
            return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

        found = _weighted(
            found, dim, low.long(), (-1, 0, 1, 2), (far(part + 1), near(part), near(1 - part), far(2 - part))
        )
    return found.to(x.dtype)


# ---- losses ----------------------------------------------------------------------------------------------------------

_REDUCTIONS: dict[int, Callable[[Tensor], Tensor]] = {0: lambda x: x, 1: torch.mean, 2: torch.sum}


@decomposes(aten.mse_loss.default)
def mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _REDUCTIONS[reduction]((x - target) ** 2)


@decomposes(aten.smooth_l1_loss.default)
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Tensor:
    loss = torch.abs(x - target)
    return _REDUCTIONS[reduction](
        torch.where(loss < beta, 0.5 * loss * loss / beta, loss - 0.5 * beta) if beta else loss
    )


@decomposes(aten.huber_loss.default)
def huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    loss = torch.abs(x - target)
    return _REDUCTIONS[reduction](torch.where(loss < delta, 0.5 * loss * loss, delta * (loss - 0.5 * delta)))


@decomposes(aten.binary_cross_entropy.default)
def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    # PyTorch takes no logarithm for less than -100
    loss = (target - 1) * torch.log1p(-x).clamp_min(-100) - target * torch.log(x).clamp_min(-100)
    return _REDUCTIONS[reduction](loss if weight is None else loss * weight)


@decomposes(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    of_one = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    loss = (1 - target) * x - of_one * F.logsigmoid(x)
    return _REDUCTIONS[reduction](loss if weight is None else loss * weight)


@decomposes(aten.soft_margin_loss.default)
def soft_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _REDUCTIONS[reduction](torch.log1p(torch.exp(-x * target)))


@decomposes(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    classes = 1 if x.dim() > 1 else 0
    kept = target != ignore_index
    chosen = torch.where(kept, target, 0).unsqueeze(classes)
    shares = torch.ones_like(x) if weight is None else weight.reshape([-1] + [1] * (x.dim() - 1 - classes)).expand_as(x)
    share = torch.where(kept, shares.gather(classes, chosen).squeeze(classes), 0)
    loss = -x.gather(classes, chosen).squeeze(classes) * share
    total = share.sum()
    if reduction == 0:
        return loss, x.new_zeros(())
    return (loss.sum() / total if reduction == 1 else loss.sum()), total
