"""Inputs beyond OpInfo's for the ops that take any shape: unary and binary elementwise ops and reductions.

Each lane varies one thing in a call of OpInfo's: the sizes, the memory layout, the values or the device of its tensors.
The other arguments, and where they matter the values, stay those of OpInfo, so that the calls are in the op's domain.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from op_coverage import inputs, upstream
from op_coverage.inputs import OpSample

Build = Callable[[Tensor], Tensor]

_LOOK_AHEAD = 200
_REDUCTION_DIMS: tuple[dict[str, Any], ...] = ({}, {"dim": -1}, {"dim": 0, "keepdim": True})

STICK = 64
"""Elements of a 16-bit format in the 128 bytes that Spyre moves at a time; on other devices as good a size as any."""

_SIZES = ((), *((n,) for n in (0, 1, 2, 63, STICK, 65, 127, 128, 129, 1009)), (7, 13), (3, 65), (STICK, 2), (2, 0, 3))


def _offset(x: Tensor) -> Tensor:
    return torch.cat([x.flatten()[:3], x.flatten()])[3:].view(x.shape)


def _strided(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, -1)[..., ::2]


def _overlapping(x: Tensor) -> Tensor:
    flat = x.flatten()
    return flat.as_strided((flat.numel() - 3, 4), (1, 1))


_VIEWS: Mapping[str, Build] = {
    "offset": _offset,
    "strided": _strided,
    "transposed": lambda x: x.t().contiguous().t(),
    "row": lambda x: x[:, 1:2],
    "expanded": lambda x: x[:1].expand(x.shape),
    "channels_last": lambda x: x.reshape(2, 3, 5, 6).contiguous(memory_format=torch.channels_last),
    "overlapping": _overlapping,
}
_SCALED = (7, 13)
SCALARS = "scalars"
"""PyTorch lets a tensor of no dimensions stay on the CPU beside operands on any device, as it lets a Python number."""
FIRST_DECIDES = frozenset({"complex", "logical_and", "logical_or", "logical_xor", "polar"})
"""ATen allocates the result of these where the first operand is, and then refuses it beside the other's device."""
_VIEWED = (15, 12)  # of the tensor that is viewed; its 180 elements are also 2 x 3 x 5 x 6


def _special(dtype: torch.dtype) -> Tensor:
    limits = torch.finfo(dtype)
    subnormal = limits.smallest_normal * limits.eps
    values = [0.0, 1.0, 0.5, 1.5, limits.eps, limits.smallest_normal, subnormal, limits.max, limits.max / 2, 100.0]
    signed = [sign * value for value in (*values, float("inf")) for sign in (1.0, -1.0)]
    return torch.tensor([*signed, float("nan")], dtype=dtype)


def generate(
    lane: str, info: upstream.OpInfo, fn: Callable[..., Any], dtype: torch.dtype, seed: int
) -> Iterator[OpSample]:
    """The lane's samples that eager CPU accepts, each with its place among all of them as index."""
    template = _template(info, dtype, seed)
    if template is None:
        return
    family = upstream.family(info)
    variants = _REDUCTION_DIMS if family == "reduction" else ({},)
    calls = _LANES[lane](template.args, 2 if family == "binary" else 1)
    for index, (made, extra) in enumerate(itertools.product(calls, variants)):
        args, kwargs = made, {**_without_dim(template.kwargs), **extra}
        at_home = _numbers(args) if lane == SCALARS else ()
        refused = 0 in at_home and info.full_name in FIRST_DECIDES
        if not refused and upstream.mixes(fn, args, at_home) and inputs.result(fn, (args, kwargs)) is not None:
            yield OpSample(index, args, kwargs, (), template.origin, at_home)


def _template(info: upstream.OpInfo, dtype: torch.dtype, seed: int) -> OpSample | None:
    """OpInfo's first call with tensors of several elements, none of them in keyword arguments; of a unary op or a
    reduction only the first tensor is varied."""
    samples = itertools.islice(inputs.generate(info, dtype, requires_grad=False, seed=seed), _LOOK_AHEAD)
    plain = (s for s in samples if not inputs.tensors((), s.kwargs) and inputs.most_elements(s) > 1)
    return next((s for s in plain if all(t.layout is torch.strided for t in inputs.tensors(s.args, {}))), None)


def _without_dim(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key not in ("dim", "keepdim")}


def _each(template: Sequence[Any], count: int, build: Build) -> tuple[Any, ...]:
    """The positional arguments with the first `count` tensors replaced."""
    left = itertools.count(count, -1)
    return tuple(build(a) if isinstance(a, Tensor) and next(left) > 0 else a for a in template)


def _filled(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A contiguous tensor of `shape` with the elements of `t`, repeated."""
    count = torch.Size(shape).numel()
    return t.flatten()[torch.arange(count) % t.numel()].reshape(shape)


def _sizes(args: Sequence[Any], count: int) -> Iterator[tuple[Any, ...]]:
    for shape in _SIZES:
        yield _each(args, count, functools.partial(_filled, shape=shape))


def _views(args: Sequence[Any], count: int) -> Iterator[tuple[Any, ...]]:
    plain = _each(args, count, functools.partial(_filled, shape=_VIEWED))
    for view in _VIEWS.values():
        yield _each(plain, count, view)


def _specials(args: Sequence[Any], count: int) -> Iterator[tuple[Any, ...]]:
    """One tensor: all special values. Two: all pairs. With one, each value also stands in a row of ordinary ones."""
    tensors = inputs.tensors(args, {})[:count]
    dtype = tensors[0].dtype
    if not all(t.dtype == dtype and dtype.is_floating_point for t in tensors):
        return
    special = _special(dtype)
    grid = iter(torch.meshgrid(*[special] * len(tensors), indexing="ij"))
    yield _each(args, count, lambda _: next(grid).flatten())
    if len(tensors) == 1:
        ordinary = _filled(tensors[0], (special.numel(), 5))
        ordinary[:, 2] = special
        yield _each(args, count, lambda _: ordinary)


def _scalars(args: Sequence[Any], count: int) -> Iterator[tuple[Any, ...]]:
    """Each operand in turn a tensor of no dimensions, of the dtype of the others and of the widest of its kind."""
    plain = _each(args, count, functools.partial(_filled, shape=_SCALED))
    places = [i for i, a in enumerate(plain) if isinstance(a, Tensor)][:count]
    for place in places:
        number = plain[place].flatten()[1]
        for dtype in dict.fromkeys((number.dtype, _widest(number.dtype))):
            yield (*plain[:place], number.to(dtype), *plain[place + 1 :])


def _widest(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype if dtype is torch.bool else torch.int64


def _numbers(args: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i, t in enumerate(inputs.tensors(args, {})) if t.dim() == 0)


_LANES: Mapping[str, Callable[[Sequence[Any], int], Iterator[tuple[Any, ...]]]] = {
    "sizes": _sizes,
    "views": _views,
    "special": _specials,
    SCALARS: _scalars,
}
