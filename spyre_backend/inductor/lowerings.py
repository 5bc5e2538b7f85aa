"""Lowerings of the device, for operators that upstream lowers only for Triton or only to external calls.

Upstream has one lowering per operator for all devices. `install` puts a dispatcher in front: calls with a tensor on
our device go to the lowering here, all others to upstream's, unchanged.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from spyre_backend import upstream

aten = torch.ops.aten
Lowering = Callable[..., Any]

_ours: dict[Any, Lowering] = {}


def _lowers(*overloads: Any) -> Callable[[Lowering], Lowering]:
    def register(function: Lowering) -> Lowering:
        _ours.update(dict.fromkeys(overloads, function))
        return function

    return register


def install(device: str) -> None:
    """Dispatch the operators of this module to it, for tensors on `device`."""
    table = upstream.lowerings
    for overload, ours in _ours.items():
        table[overload] = _dispatcher(device, ours, table.get(overload), overload)


def _dispatcher(device: str, ours: Lowering, theirs: Lowering | None, overload: Any) -> Lowering:
    @functools.wraps(theirs or ours)
    def lower(*args: Any, **kwargs: Any) -> Any:
        if _on_device(device, args):
            result = ours(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if theirs is None:
            raise NotImplementedError(f"no lowering for {overload}")
        return theirs(*args, **kwargs)

    return lower


def _on_device(device: str, args: tuple[Any, ...]) -> bool:
    for arg in args:
        if isinstance(arg, (list, tuple)):
            if _on_device(device, tuple(arg)):
                return True
        elif isinstance(arg, upstream.ir.IRNode) and (found := arg.get_device()) is not None:
            return found.type == device
    return False


# ---- matrix products -------------------------------------------------------------------------------------------------


def _contract(a: Any, b: Any, out_dtype: torch.dtype | None = None) -> Any:
    """`[..., m, k] @ [..., k, n]` with equal batch dimensions, as a `dot` reduction over k."""
    ir, ops = upstream.ir, upstream.ops
    *batch, m, k = a.get_size()
    n = b.get_size()[-1]
    dtype = out_dtype or a.get_dtype()
    if upstream.statically_equal(k, 0):
        # an empty sum, which upstream's reductions refuse
        return upstream.lowerings[aten.full]([*batch, m, n], 0, dtype=dtype, device=a.get_device())
    a.realize()
    b.realize()
    load_a, load_b = a.make_loader(), b.make_loader()

    def product(index: Any, reduction_index: Any) -> Any:
        *outer, i, j = index
        (r,) = reduction_index
        return ops.dot(load_a([*outer, i, r]), load_b([*outer, r, j]))

    result = ir.Reduction.create(
        device=a.get_device(),
        dst_dtype=dtype,
        src_dtype=a.get_dtype(),
        inner_fn=product,
        ranges=[*batch, m, n],
        reduction_ranges=[k],
        reduction_type="dot",
    )
    result.realize()
    return result


@_lowers(aten.mm.default, aten.bmm.default)
def _matmul(a: Any, b: Any, *, layout: Any = None) -> Any:
    return _contract(a, b)


@_lowers(aten.addmm.default, aten.baddbmm.default)
def _addmm(bias: Any, a: Any, b: Any, *, alpha: Any = 1, beta: Any = 1, layout: Any = None) -> Any:
    product = _contract(a, b)
    add, mul = upstream.lowerings[aten.add], upstream.lowerings[aten.mul]
    if alpha != 1:
        product = mul(product, alpha)
    # beta == 0 ignores the bias, NaN included
    return product if beta == 0 else add(product, bias if beta == 1 else mul(bias, beta))


# ---- sorting ---------------------------------------------------------------------------------------------------------


def _upstream_lowering(overload: Any) -> Lowering:
    return upstream.lowerings[overload].__wrapped__
