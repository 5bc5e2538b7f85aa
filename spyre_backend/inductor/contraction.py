"""Matrix products and convolutions as sums of products over reduction axes: Inductor's `dot` reduction.

The kernel turns a `dot` reduction into the `matmul` instruction, so that element-wise neighbours fuse with it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from spyre_backend import upstream

aten = torch.ops.aten
Index = Sequence[Any]


def _lower(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Upstream's lowering of another operator."""
    return upstream.lowerings[operator](*args, **kwargs)


def contract(
    like: Any, dtype: torch.dtype, outer: Index, inner: Index, a: Callable[..., Any], b: Callable[..., Any]
) -> Any:
    """`result[outer] = Σ over inner of a(outer, inner) · b(outer, inner)`, on the device of `like`, in `dtype`."""
    if any(upstream.statically_equal(size, 0) for size in inner):
        # an empty sum, which upstream's reductions refuse
        return _lower(aten.full, list(outer), 0, dtype=dtype, device=like.get_device())
    result = upstream.ir.Reduction.create(
        device=like.get_device(),
        dst_dtype=dtype,
        src_dtype=like.get_dtype(),
        inner_fn=lambda index, reduced: upstream.ops.dot(a(index, reduced), b(index, reduced)),
        ranges=list(outer),
        reduction_ranges=list(inner),
        reduction_type="dot",
    )
    result.realize()
    return result


def matmul(a: Any, b: Any, out_dtype: torch.dtype | None = None, *, layout: Any = None) -> Any:
    """`[..., m, k] @ [..., k, n]` with equal batch dimensions."""
    a.realize()
    b.realize()
    *batch, m, k = a.get_size()
    load_a, load_b = a.make_loader(), b.make_loader()
    return contract(
        a,
        out_dtype or a.get_dtype(),
        [*batch, m, b.get_size()[-1]],
        [k],
        lambda index, reduced: load_a([*index[:-1], *reduced]),
        lambda index, reduced: load_b([*index[:-2], *reduced, index[-1]]),
    )


def int_matmul(a: Any, b: Any, *, layout: Any = None) -> Any:
    """int8 product, accumulated in int32."""
    return matmul(a, b, torch.int32)


def _scaled_sum(bias: Any, product: Any, alpha: Any, beta: Any) -> Any:
    if alpha != 1:
        product = _lower(aten.mul, product, alpha)
    # beta == 0 ignores the bias, NaN included
    return product if beta == 0 else _lower(aten.add, product, bias if beta == 1 else _lower(aten.mul, bias, beta))


def addmm(
    bias: Any, a: Any, b: Any, out_dtype: Any = None, *, alpha: Any = 1, beta: Any = 1, layout: Any = None
) -> Any:
    """`beta·bias + alpha·(a @ b)`."""
    return _scaled_sum(bias, matmul(a, b, out_dtype), alpha, beta)


# ---- convolutions ----------------------------------------------------------------------------------------------------


class _Geometry:
    """Strides, paddings and dilations of a convolution, one per spatial dimension."""

    def __init__(self, dims: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> None:
        # as upstream does: a convolution is compiled for its parameters, and for the size of its kernel
        self.stride, self.padding, self.dilation = (
            upstream.guarded_ints(values) * (dims if len(values) == 1 else 1) for values in (stride, padding, dilation)
        )

    def source(self, position: Index, tap: Index) -> list[Any]:
        """Where in the input the kernel element `tap` looks for the output at `position`; may lie outside."""
        return [
            o * s + k * d - p
            for o, k, s, d, p in zip(position, tap, self.stride, self.dilation, self.padding, strict=True)
        ]

    def load_source(self, load: Callable[..., Any], lead: Index, at: Index, tap: Index, sizes: Index) -> Any:
        """`load` at the source of `at`; zero in the padding."""
        where = self.source(at, tap)
        ranges = [(position, size) for position, size, p in zip(where, sizes, self.padding, strict=True) if p != 0]
        return _guarded(lambda: load([*lead, *where]), ranges, [])

    def load_target(self, load: Callable[..., Any], lead: Index, at: Index, tap: Index, sizes: Index) -> Any:
        """`load` at the outputs that have `at` as their source through `tap`; zero where there is none."""
        shifted = [a + p - k * d for a, k, p, d in zip(at, tap, self.padding, self.dilation, strict=True)]
        where = [
            value if step == 1 else upstream.FloorDiv(value, step)
            for value, step in zip(shifted, self.stride, strict=True)
        ]
        multiples = [(value, step) for value, step in zip(shifted, self.stride, strict=True) if step != 1]
        return _guarded(lambda: load([*lead, *where]), list(zip(where, sizes, strict=True)), multiples)


def _guarded(load: Callable[[], Any], ranges: list[tuple[Any, Any]], multiples: list[tuple[Any, int]]) -> Any:
    """`load()` where every position lies in its range and every value is a multiple of its step, else zero."""
    ops = upstream.ops
    conditions = []
    for position, size in ranges:
        value = ops.index_expr(position, torch.int64)
        conditions.append(ops.ge(value, ops.constant(0, torch.int64)))
        conditions.append(ops.lt(value, ops.index_expr(size, torch.int64)))
    for position, step in multiples:
        value = ops.index_expr(position, torch.int64)
        conditions.append(ops.eq(ops.remainder(value, ops.constant(step, torch.int64)), ops.constant(0, torch.int64)))
    if not conditions:
        return load()
    mask = conditions[0]
    for condition in conditions[1:]:
        mask = ops.logical_and(mask, condition)
    return ops.masked(mask, load, 0)


def _merge_groups(result: Any, sizes: Index) -> Any:
    return _lower(aten.view, result, list(sizes))


def _in_layout(result: Any, strides: Index) -> Any:
    """`result` in memory with these strides, which are those that the graph expects.

    Upstream's own convolution does so. Strides of its choice it would have to compare with the expected ones where a
    view of the result leaves the graph, and that comparison fails on products of sums, as symbolic convolutions have.
    """
    result.realize()
    return upstream.ir.ExternKernel.require_exact_strides(result, strides)


def _through(x: Any, weight: Any, groups: int, spatial: Index, geometry: _Geometry, *, transposed: bool) -> Any:
    """`[n, channels, *spatial]` from `x` through a weight `[c_out, c_in / groups, *kernel]`: `c_out` channels from
    `c_in` or, if `transposed`, the other way around."""
    c_out, of_input, *kernel = weight.get_size()
    of_output = c_out // groups if groups != 1 else c_out
    made, summed = (of_input, of_output) if transposed else (of_output, of_input)
    load, load_weight, sizes = x.make_loader(), weight.make_loader(), x.get_size()[2:]
    fetch = geometry.load_target if transposed else geometry.load_source
    batch = x.get_size()[0]

    def load_tap(index: Index, reduced: Index) -> Any:
        (_, group, channel, *_), (source, *tap) = index, reduced
        return load_weight(
            [group * summed + source, channel, *tap] if transposed else [group * made + channel, source, *tap]
        )

    result = contract(
        x,
        x.get_dtype(),
        [batch, groups, made, *spatial],
        [summed, *kernel],
        lambda i, r: fetch(load, [i[0], i[1] * summed + r[0]], i[3:], r[1:], sizes),
        load_tap,
    )
    return _merge_groups(result, [batch, made * groups if transposed else c_out, *spatial])


def _into_weight(out: Any, x: Any, weight: Any, groups: int, geometry: _Geometry) -> Any:
    """Gradient of a weight `[c_out, c_in / groups, *kernel]`: `out` has `c_out` channels, `x` has `c_in`."""
    c_out, inputs, *kernel = weight.get_size()
    outputs = c_out // groups if groups != 1 else c_out
    batch, _, *spatial = out.get_size()
    load_out, load, sizes = out.make_loader(), x.make_loader(), x.get_size()[2:]
    result = contract(
        x,
        x.get_dtype(),
        [groups, outputs, inputs, *kernel],
        [batch, *spatial],
        lambda i, r: load_out([r[0], i[0] * outputs + i[1], *r[1:]]),
        lambda i, r: geometry.load_source(load, [r[0], i[0] * inputs + i[2]], r[1:], i[3:], sizes),
    )
    return _merge_groups(result, [c_out, inputs, *kernel])


def convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    **_: Any,
) -> Any:
    """A convolution, or a transposed one, of `[n, c, *spatial]` (`n` may be missing)."""
    dims = len(weight.get_size()) - 2
    batched = len(x.get_size()) == dims + 2
    if not batched:
        x = _lower(aten.unsqueeze, x, 0)
    x.realize()
    weight.realize()
    geometry = _Geometry(dims, stride, padding, dilation)
    (groups,) = upstream.guarded_ints([groups])
    upstream.guarded_ints(weight.get_size())
    # the sizes as the graph spells them, which upstream compares with those of its neighbours
    spatial = upstream.current_output_size()[-dims:]
    result = _through(x, weight, groups, spatial, geometry, transposed=transposed)
    if bias is not None:
        result = _lower(aten.add, result, _lower(aten.view, bias, [result.get_size()[1], *[1] * dims]))
    if not batched:
        return _lower(aten.squeeze, result, 0)
    (strides,) = upstream.current_output_strides()
    return _in_layout(result, strides)


def convolution_backward(
    grad: Any,
    x: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> list[Any]:
    """Gradients of the input, the weight and the bias; None for those that `output_mask` leaves out."""
    batched = len(x.get_size()) == len(weight.get_size())
    if not batched:
        grad, x = (_lower(aten.unsqueeze, operand, 0) for operand in (grad, x))
    grad_x, *others = _gradients(grad, x, weight, stride, padding, dilation, transposed, groups, output_mask)
    if grad_x is not None:
        grad_x = (
            _in_layout(grad_x, upstream.current_output_strides()[0]) if batched else _lower(aten.squeeze, grad_x, 0)
        )
    return [grad_x, *others]


def _gradients(
    grad: Any,
    x: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
    output_mask: Sequence[bool],
) -> list[Any]:
    """The gradients of a convolution of `[n, c, *spatial]`."""
    dims = len(weight.get_size()) - 2
    for operand in (grad, x, weight):
        operand.realize()
    geometry = _Geometry(dims, stride, padding, dilation)
    (groups,) = upstream.guarded_ints([groups])
    upstream.guarded_ints(weight.get_size())
    spatial = x.get_size()[2:]
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        grad_x = _through(grad, weight, groups, spatial, geometry, transposed=not transposed)
    if output_mask[1]:
        out, source = (x, grad) if transposed else (grad, x)
        grad_weight = _into_weight(out, source, weight, groups, geometry)
    if output_mask[2]:
        grad_bias = _lower(aten.sum, grad, [0, *range(2, dims + 2)])
    return [grad_x, grad_weight, grad_bias]
