"""Lowerings of the device, in front of upstream's: the same operators, dispatched on the device of their operands.

Upstream has one lowering per operator for all devices. `install` puts a dispatcher into its table: calls with a
tensor on our device go to the lowering here, all others to upstream's, unchanged.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from spyre_backend import upstream
from spyre_backend.inductor import concatenation, contraction, scatter

aten = torch.ops.aten
Lowering = Callable[..., Any]

# operator -> its lowering here
_OURS: dict[Any, Lowering] = {
    aten.mm: contraction.matmul,
    aten.bmm: contraction.matmul,
    aten.addmm: contraction.addmm,
    aten.baddbmm: contraction.addmm,
    aten._int_mm: contraction.int_matmul,
    aten.convolution: contraction.convolution,
    aten.convolution_backward: contraction.convolution_backward,
    aten.scatter_: scatter.scatter_,
    aten.scatter_add_: scatter.scatter_add_,
    aten.scatter_reduce_: scatter.scatter_reduce_,
    aten.scatter_add: scatter.functional(scatter.scatter_add_),
    aten.scatter_reduce: scatter.functional(scatter.scatter_reduce_),
    aten.scatter: scatter.functional(scatter.scatter_),
}

# lowered by upstream to a kernel that computes all operands where it can: padding is a concatenation there
_CONCATENATING = (aten.cat, aten.constant_pad_nd)
# lowered by upstream through its own sort, which it does for large dimensions only where it is told to
_SORTING = (aten.sort, aten.topk, aten.kthvalue, aten.mode)
# of these, what upstream returns as slices of the sorted tensors, where ATen allocates contiguous results
_SLICED = (aten.topk, aten.kthvalue)


def overloads() -> list[Any]:
    """The overloads that are lowered here and not by upstream."""
    return [key for packet in _OURS for key in _keys(packet) if key is not packet]


def install(device: str) -> None:
    """Dispatch the operators of this module, for tensors on `device`. Adds no operator that upstream does not lower."""
    table = upstream.lowerings
    for packet, ours in _OURS.items():
        for key in _keys(packet):
            if key in table:
                table[key] = _dispatcher(device, ours, table[key])
                _free_layout(device, key)
    for packet in _CONCATENATING:
        for key in _keys(packet):
            if key in table:
                table[key] = _dispatcher(device, concatenation.with_plain_indices(table[key]), table[key])
    for packet in _SORTING:
        for key in _keys(packet):
            if key in table:
                ours = _contiguous(table[key]) if packet in _SLICED else table[key]
                table[key] = _dispatcher(device, _sorting(ours), table[key])
    for key in _keys(torch.ops.prims.convert_element_type):
        if key in table:
            table[key] = _dispatcher(device, _complex_in_place(table[key]), table[key])


def _keys(packet: Any) -> Iterable[Any]:
    return (packet, *(getattr(packet, name) for name in packet.overloads() if "out" not in name))


def _dispatcher(device: str, ours: Lowering, theirs: Lowering) -> Lowering:
    @functools.wraps(theirs)
    def lower(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs) if _on_device(device, args) else theirs(*args, **kwargs)

    return lower


def _free_layout(device: str, key: Any) -> None:
    """Lift upstream's demand for the strides that ATen would see: a program reads any strides."""
    constraints = upstream.layout_constraints()
    theirs = constraints.get(key)
    if theirs is None:
        return

    def constrain(node: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return (args, kwargs) if _on_device(device, args) else theirs(node, *args, **kwargs)

    constraints[key] = constrain


def _on_device(device: str, args: Iterable[Any]) -> bool:
    for arg in args:
        if isinstance(arg, (list, tuple)):
            if _on_device(device, arg):
                return True
        elif isinstance(arg, upstream.ir.IRNode) and (found := arg.get_device()) is not None:
            return found.type == device
    return False


def _sorting(theirs: Lowering) -> Lowering:
    def lower(*args: Any, **kwargs: Any) -> Any:
        with upstream.sorts_of_any_size():
            return theirs(*args, **kwargs)

    return lower


def _contiguous(theirs: Lowering) -> Lowering:
    clone = upstream.lowerings[aten.clone.default]

    def lower(*args: Any, **kwargs: Any) -> Any:
        return tuple(clone(result, memory_format=torch.contiguous_format) for result in theirs(*args, **kwargs))

    return lower


def _complex_in_place(theirs: Lowering) -> Lowering:
    """A conversion from or to complex numbers, written by the host straight into the strides that the graph expects.

    Upstream's is contiguous, and a kernel copies it into other strides, for which complex values have no program.
    """

    def lower(x: Any, dtype: torch.dtype) -> Any:
        if not (dtype.is_complex or x.get_dtype().is_complex) or not x.get_size():
            return theirs(x, dtype)
        (strides,) = upstream.current_output_strides()
        made = upstream.lowerings[aten.empty_strided](x.get_size(), strides, dtype=dtype, device=x.get_device())
        upstream.ir.InplaceCopyFallback.create(made, x)
        return made

    return lower
