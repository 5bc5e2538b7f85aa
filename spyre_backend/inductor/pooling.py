"""Pooling and resampling as one matrix per dimension, and their gradients."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from spyre_backend.inductor.rules import Rule, adds_to

aten = torch.ops.aten
Tensor = torch.Tensor

# upstream unrolls pooling windows up to this many elements and leaves larger ones to ATen
_UNROLLED_WINDOW = 25


RULES: dict[Any, Rule] = {}


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


@adds_to(RULES, aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def _adaptive_avg_pool(x: Tensor, output_size: Sequence[Any]) -> Tensor:
    dims = len(output_size)
    matrices = [_adaptive_matrix(x.shape[d - dims], output_size[d], x) for d in range(dims)]
    return _apply_per_dim(x.to(_counting(x)), matrices).to(x.dtype)


@adds_to(RULES, aten._adaptive_avg_pool2d_backward.default)
def _adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _adaptive_backward(grad, x, 2)


@adds_to(RULES, aten._adaptive_avg_pool3d_backward.default)
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


def _is_large_window(dims: int, kernel_at: int = 1) -> Callable[..., bool]:
    def applies(*args: Any, **kwargs: Any) -> bool:
        kernel = args[kernel_at]
        window = list(kernel) * dims if len(kernel) == 1 else kernel
        return math.prod(window) > _UNROLLED_WINDOW

    return applies


def _avg_pool(dims: int) -> Callable[..., Tensor]:
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
        steps = list(stride or full)
        steps = steps * dims if len(steps) == 1 else steps
        pads = list(padding) * dims if len(padding) == 1 else list(padding)
        out = [_pooled_size(x.shape[d - dims], full[d], steps[d], pads[d], ceil_mode) for d in range(dims)]
        windows = _windows(x, out, full, steps, pads)
        summed = _apply_per_dim(x.to(_counting(x)), [window.matrix for window in windows])
        return (summed / _divisor(windows, count_include_pad, divisor_override)).to(x.dtype)

    return rule


def _avg_pool_backward(dims: int) -> Callable[..., Tensor]:
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


RULES[aten.avg_pool2d.default] = Rule(_avg_pool(2), _is_large_window(2))
RULES[aten.avg_pool3d.default] = Rule(_avg_pool(3), _is_large_window(3))
RULES[aten.avg_pool2d_backward.default] = Rule(_avg_pool_backward(2), _is_large_window(2, 2))
RULES[aten.avg_pool3d_backward.default] = Rule(_avg_pool_backward(3), _is_large_window(3, 2))


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


def _antialiased(kernel: Callable, width: int) -> Callable[..., Tensor]:
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


def _antialiased_backward(kernel: Callable, width: int) -> Callable[..., Tensor]:
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


RULES[aten._upsample_bilinear2d_aa.default] = Rule(_antialiased(_triangle, 2))
RULES[aten._upsample_bicubic2d_aa.default] = Rule(_antialiased(_cubic, 4))
RULES[aten._upsample_bilinear2d_aa_backward.default] = Rule(_antialiased_backward(_triangle, 2))
RULES[aten._upsample_bicubic2d_aa_backward.default] = Rule(_antialiased_backward(_cubic, 4))


# ---- gradients that go back to where the forward found its maximum ---------------------------------------------------


def _to_positions(dims: int, indices_at: int) -> Callable[..., Tensor]:
    """A rule `(grad, x, ..., indices)`: add each gradient at its flat position in the pooled dimensions of `x`."""

    def rule(grad: Tensor, x: Tensor, *args: Any) -> Tensor:
        indices = args[indices_at]
        lead = list(x.shape[:-dims])
        count = math.prod(x.shape[-dims:])
        zeros = torch.zeros([*lead, count], dtype=grad.dtype, device=grad.device)
        added = zeros.scatter_add(-1, indices.reshape([*lead, -1]), grad.reshape([*lead, -1]))
        return added.reshape(x.shape)

    return rule


RULES[aten.adaptive_max_pool2d_backward.default] = Rule(_to_positions(2, -1))
RULES[aten.adaptive_max_pool3d_backward.default] = Rule(_to_positions(3, -1))
RULES[aten.fractional_max_pool2d_backward.default] = Rule(_to_positions(2, -1))
RULES[aten.fractional_max_pool3d_backward.default] = Rule(_to_positions(3, -1))
RULES[aten.max_pool3d_with_indices_backward.default] = Rule(_to_positions(3, -1))


def _replication_matrix(size: Any, before: int, after: int, x: Tensor) -> Tensor:
    """`[size, padded]`: which padded elements repeat which input."""
    padded = torch.arange(size + before + after, device=x.device)
    source = (padded - before).clamp(0, size - 1)
    return (torch.arange(size, device=x.device).unsqueeze(1) == source).to(_counting(x))


@adds_to(
    RULES,
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def _replication_pad_backward(grad: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    dims = len(padding) // 2
    matrices = [
        _replication_matrix(x.shape[-1 - d], padding[2 * d], padding[2 * d + 1], x) for d in reversed(range(dims))
    ]
    return _apply_per_dim(grad.to(_counting(grad)), matrices).to(grad.dtype)
