"""DL16, the device's 16-bit format, and how the instructions of a program compute in it.

1 sign, 6 exponent and 9 fraction bits, exponent bias 31 (DLFloat: Agrawal et al., ARITH 2019). Rounds to nearest, ties
away from zero; has no subnormals; one code, the topmost, is NaN and infinity at once. A value of dtype float16 is held
as float32 within a program, which has every DL16 number, and is rounded after each instruction. Memory stays
`torch.float16`, which lacks some of them: see `to_memory`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from spyre_backend import numerics
from spyre_backend.program.dtypes import DType
from spyre_backend.program.ir import Constant, Instruction, Load, Program, Store, results
from spyre_backend.program.opcodes import StoreMode
from spyre_backend.simulator import memory

Tensor = torch.Tensor
Step = Callable[[dict[str, Tensor], Mapping[str, Tensor]], None]

LARGEST = 2.0**32 * (2 - 2.0**-8)  # the code after it is NaN
SMALLEST = 2.0**-31 * (1 + 2.0**-9)  # the code before it is zero
LARGEST_IN_MEMORY = 65472.0  # of the DL16 numbers that float16 has; the next one, 65536, it lacks

_DROPPED = 23 - 9  # fraction bits of float32 that DL16 does not have
_HALF, _KEPT = 1 << (_DROPPED - 1), -(1 << _DROPPED)


def rounded(x: Tensor) -> Tensor:
    """The nearest DL16 numbers, as float32: NaN for what is too large, infinities included; zeros keep their sign."""
    x = x.float()
    # the pattern of a float32 grows with its size, so that adding half a unit and cutting rounds, carry included
    y = ((x.contiguous().view(torch.int32) + _HALF) & _KEPT).view(torch.float32)
    size = x.abs()
    tiny = torch.where(size > SMALLEST / 2, SMALLEST, 0.0).copysign(x)
    y = torch.where(size < SMALLEST, tiny, y)
    # also where the sum above ran over: in the patterns of NaN
    return torch.where(x.isfinite() & (y.abs() <= LARGEST), y, math.nan)


def literal(x: Tensor) -> Tensor:
    """Constants of a program: an infinity stands for what no number exceeds, and is the largest number.

    torch-spyre masks with the largest finite numbers for the same reason (its pull request 4234).
    """
    return rounded(x.float().clamp(-LARGEST, LARGEST))


def from_memory(x: Tensor) -> Tensor:
    """float16 as values. An infinity in memory is a number that float16 could not hold; it is taken for the largest."""
    return literal(x)


def to_memory(x: Tensor) -> Tensor:
    """Values as float16, which holds every DL16 number from 2**-15 to 65472.

    Beyond, infinity is stored, but for 65536, of which 65472 is the neighbour: `torch.finfo(torch.float16).min`, with
    which models mask, rounds to it, and stays a number when it is copied to the device as well. Below 2**-15 float16
    has the spacing 2**-24, and rounds to it.
    """
    x = torch.where(x.abs() == 65536.0, torch.full_like(x, LARGEST_IN_MEMORY).copysign(x), x)
    return x.half()


def narrowed(x: Tensor, where: str) -> Tensor:
    """The lower 32 bits of int64, with their sign. Warns the first time that this changes a number."""
    kept = x.to(torch.int32).to(torch.int64)
    if not torch.equal(kept, x):
        numerics.warn_narrowed(where)
    return kept


def computing(step: Step, instruction: Instruction, program: Program) -> Step:
    """`step`, which executes `instruction`, with its results as the device has them."""
    if isinstance(instruction, Store):
        kept = _KEPT_IN_MEMORY.get({buffer.name: buffer.dtype for buffer in program.buffers}[instruction.buffer])
        return step if kept is None else _storing(step, instruction, kept, program.name)
    halves = [value.name for value in results(instruction) if value.dtype is DType.FLOAT16]
    if not halves:
        return step
    settle = {Load: from_memory, Constant: literal}.get(type(instruction), rounded)

    def computed(values: dict[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        step(values, buffers)
        for name in halves:
            values[name] = settle(values[name])

    return computed


_KEPT_IN_MEMORY: dict[DType, Callable[[Tensor, str], Tensor]] = {
    DType.FLOAT16: lambda x, where: to_memory(x if x.dtype == torch.float32 else from_memory(x)),
    DType.INT64: narrowed,
}
"""Dtype of a buffer -> its elements made of values, or of what memory has; the text says where, for a warning."""


def _storing(step: Step, store: Store, kept: Callable[[Tensor, str], Tensor], where: str) -> Step:
    def stored(values: dict[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        step({**values, store.value: kept(values[store.value], where)}, buffers)
        if store.mode in (StoreMode.ADD, StoreMode.PROD):  # what was combined with memory there is another number
            target = memory.flat(buffers[store.buffer])
            target.copy_(kept(target, where))

    return stored
