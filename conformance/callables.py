"""From a sample to what is called: its function or module, on a device, compiled, driven."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from conformance.cases import Case, Direction, Sample

if TYPE_CHECKING:
    from conformance.backends.protocol import Backend

Converter = Callable[[Any], Any]
"""Maps a tensor elementwise (same shape and strides, perhaps another dtype), and any other value, to a substitute."""


def on_device(
    fn: Callable[..., Any], device: str | torch.device = "cpu", convert: Converter | None = None
) -> Callable[..., Any]:
    """What is called with tensors on `device`: a function itself, of a module a copy.

    The copy has its parameters and buffers on the device, after `convert`; what shared a parameter shares it again.
    """
    if not isinstance(fn, torch.nn.Module):
        return fn
    module, target = fn, torch.device(device)
    made: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        moved = tensor.detach() if convert is None else convert(tensor.detach())
        moved = moved.to(target, copy=True)
        if isinstance(tensor, torch.nn.Parameter):
            moved = torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
        made[id(tensor)] = moved
    return copy.deepcopy(module, made)


@contextlib.contextmanager
def borrowed(
    fn: Callable[..., Any], device: str | torch.device = "cpu", convert: Converter | None = None
) -> Iterator[Callable[..., Any]]:
    """`on_device`, for as long as it is called: afterwards a copy is emptied, and what it consisted of is freed.

    Also where something still refers to the copy (a method behind `lru_cache`, a cycle): a judge runs a model dozens of
    times, and its memory must not grow with each.
    """
    made = on_device(fn, device, convert)
    try:
        yield made
    finally:
        if isinstance(fn, torch.nn.Module) and isinstance(made, torch.nn.Module):
            _empty(made, kept=fn)


def _empty(module: torch.nn.Module, *, kept: torch.nn.Module) -> None:
    """Empties `module`, but for parts that it has in common with `kept` (classes may refuse to be copied)."""
    ours = {id(x) for x in (*kept.modules(), *kept.parameters(), *kept.buffers())}
    for tensor in (*module.parameters(), *module.buffers()):
        if id(tensor) not in ours:
            with contextlib.suppress(RuntimeError):  # a kind of tensor whose memory cannot be exchanged
                tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    for part in list(module.modules()):
        if id(part) not in ours:
            part.__dict__.clear()  # hundreds of small objects, each in the way of joining what is free around it


def compiled(backend: Backend, case: Case, sample: Sample) -> Callable[..., Any]:
    """What `backend` makes of it, compiled as the case and the sample want."""
    fn = on_device(sample.fn, backend.device)
    made = backend.compile(fn, dynamic=case.shape_mode.dynamic, fullgraph=sample.fullgraph)
    if isinstance(fn, torch.nn.Module) and not hasattr(made, "named_parameters"):
        made = functools.partial(made)  # has attributes: what drives a module may ask for its parameters
        made.__dict__["named_parameters"] = fn.named_parameters
    return made


def driven(sample: Sample, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The judged call through `fn`, which is the sample's own, a copy of it, or what was compiled of it."""
    return fn if sample.drive is None else functools.partial(sample.drive, fn)


def direction_of(case: Case, sample: Sample) -> Direction:
    """In which direction the engine calls: what is driven differentiates itself."""
    return case.direction if sample.drive is None else Direction.FORWARD
