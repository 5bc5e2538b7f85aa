"""What a launch touches, from the program text and symbol bindings alone: iteration space, elements and bytes moved."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spyre_backend.program.expr import evaluate, names
from spyre_backend.program.ir import (
    Bucketize,
    Instruction,
    Load,
    Matmul,
    Program,
    Reduce,
    Scan,
    Sort,
    Store,
    expressions,
    mnemonic,
    operands,
    reduced,
    reduction_axes,
    results,
)

Bindings = Mapping[str, int | float]


@dataclass(frozen=True)
class Access:
    """One load or store: the buffer, how many elements it moves in all, and their bytes."""

    opcode: str
    buffer: str
    elements: int
    nbytes: int


def iteration_space(program: Program, symbols: Bindings) -> dict[str, int]:
    """Extent of every axis, in declared order. Raises ProgramError for an unbound symbol."""
    return {axis.name: int(evaluate(axis.size, symbols)) for axis in program.axes}


def dependencies(program: Program) -> dict[str, frozenset[str]]:
    """The axes that each value varies over."""
    axes = frozenset(axis.name for axis in program.axes)
    reduction = reduction_axes(program)
    varies: dict[str, frozenset[str]] = {}
    for instruction in program.body:
        over = results_vary_over(instruction, varies, axes, reduction)
        varies.update((value.name, over) for value in results(instruction))
    return varies


def results_vary_over(
    instruction: Instruction,
    varies: Mapping[str, frozenset[str]],
    axes: frozenset[str],
    reduction: frozenset[str],
) -> frozenset[str]:
    """The axes that the results of an instruction vary over, of which some are reduction axes."""
    over = varies_over(instruction, varies, axes)
    if isinstance(instruction, (Reduce, Matmul)):
        return over - reduced(instruction, reduction)
    return over | reduction if isinstance(instruction, (Scan, Sort)) else over


def varies_over(instruction: Instruction, varies: Mapping[str, frozenset[str]], axes: frozenset[str]) -> frozenset[str]:
    """The axes that an instruction's operands and index expressions vary over; `varies` says so of the values."""
    used = frozenset().union(*(names(expression) for expression in expressions(instruction)), operands(instruction))
    return frozenset().union(used & axes, *(varies[name] for name in used if name in varies))


def accesses(program: Program, symbols: Bindings) -> list[Access]:
    """Every load and store in program order, with the elements that it moves.

    A load moves one element per point of the axes that its index varies over (a broadcast is read once); a store
    moves one per point of the axes that it runs over; an accumulating store also reads, and counts twice.
    """
    extents = iteration_space(program, symbols)
    varies = dependencies(program)
    axes = frozenset(extents)
    itemsize = {buffer.name: buffer.dtype.itemsize for buffer in program.buffers}
    found = []
    for instruction in program.body:
        match instruction:
            case Load(buffer=buffer):
                elements = _points(varies_over(instruction, varies, axes), extents)
            case Store(buffer=buffer, axes=over, mode=mode):
                elements = _points(over, extents) * (1 if mode.value == "overwrite" else 2)
            case Bucketize(boundaries=buffer, length=length):
                elements = int(evaluate(length, symbols))
            case _:
                continue
        found.append(Access(mnemonic(instruction), buffer, elements, elements * itemsize[buffer]))
    return found


def _points(axes: frozenset[str] | tuple[str, ...], extents: Mapping[str, int]) -> int:
    return math.prod(extents[axis] for axis in axes)


@dataclass(frozen=True)
class Traffic:
    """Bytes that one launch loads and stores."""

    loaded: int
    stored: int


def traffic(program: Program, symbols: Bindings) -> Traffic:
    """Total bytes moved by one launch."""
    moved = accesses(program, symbols)
    stored = sum(access.nbytes for access in moved if access.opcode.startswith("store"))
    return Traffic(loaded=sum(access.nbytes for access in moved) - stored, stored=stored)
