"""The tile program: what one kernel launch does to named buffers over an iteration space.

A program has *axes* (pointwise first, then reduction), *symbols* (numbers passed at launch), *buffers* (flat memory,
passed at launch in declared order) and a body of instructions. Every *value* is defined once and holds one element
per point of the axes that it varies over; operands of different extents broadcast against each other. Instructions run
in order, each over the whole iteration space. Reductions, scans and sorts run over all reduction axes, flattened in
declared order, or a reduction over those that it names: attention reduces one axis inside the other. The results of a
reduction no longer vary over what it reduces.
"""

import functools
from typing import ClassVar

import msgspec

from spyre_backend.program.dtypes import DType
from spyre_backend.program.expr import Expr
from spyre_backend.program.opcodes import Distribution, Elementwise, Reduction, StoreMode


class Axis(msgspec.Struct, frozen=True, omit_defaults=True):
    """One dimension of the iteration space; `size` is an expression over the program's symbols."""

    name: str
    size: Expr
    reduction: bool = False


class Buffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memory operand. Indices count elements from the start of the tensor that is passed."""

    name: str
    dtype: DType
    written: bool = False


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """The definition of a value: its name and the dtype of its elements."""

    name: str
    dtype: DType


class Load(msgspec.Struct, frozen=True, omit_defaults=True, tag="load"):
    """`result = buffer[index]`; where `mask` (a bool value) is false, nothing is read and the element is `other`."""

    result: Value
    buffer: str
    index: Expr
    mask: str | None = None
    other: str = "0"


class Store(msgspec.Struct, frozen=True, omit_defaults=True, tag="store"):
    """`buffer[index] = value` at every point of `axes`, or combined with memory as `mode` says."""

    buffer: str
    index: Expr
    value: str
    axes: tuple[str, ...]
    mode: StoreMode = StoreMode.OVERWRITE
    mask: str | None = None


class Constant(msgspec.Struct, frozen=True, omit_defaults=True, tag="constant"):
    """A literal, written as Python writes it (`1`, `0.5`, `inf`, `nan`, `True`)."""

    result: Value
    value: str


class Index(msgspec.Struct, frozen=True, omit_defaults=True, tag="index"):
    """The value of an index expression at each point."""

    result: Value
    index: Expr


class Compute(msgspec.Struct, frozen=True, omit_defaults=True, tag="compute"):
    """An elementwise opcode."""

    result: Value
    op: Elementwise
    args: tuple[str, ...]


class Reduce(msgspec.Struct, frozen=True, omit_defaults=True, tag="reduce"):
    """A reduction over the reduction axes `over`, or all of them. Operands are repeated over those of them that they do
    not vary over."""

    results: tuple[Value, ...]
    kind: Reduction
    args: tuple[str, ...]
    over: tuple[str, ...] = ()


class Matmul(msgspec.Struct, frozen=True, omit_defaults=True, tag="matmul"):
    """Sum over the reduction axes `over`, or all of them, of the products of two values, in the result's dtype."""

    result: Value
    args: tuple[str, str]
    over: tuple[str, ...] = ()


class Region(msgspec.Struct, frozen=True, omit_defaults=True):
    """A body with parameters, used as the combine function of a scan: elementwise instructions only."""

    params: tuple[Value, ...]
    body: tuple["Constant | Compute", ...]
    results: tuple[str, ...]


class Scan(msgspec.Struct, frozen=True, omit_defaults=True, tag="scan"):
    """Inclusive associative scan over the reduction axes; `combine` takes the left and then the right elements."""

    results: tuple[Value, ...]
    args: tuple[str, ...]
    combine: Region


class Sort(msgspec.Struct, frozen=True, omit_defaults=True, tag="sort"):
    """Sort over the reduction axes by the first operand (NaN is largest); the others are permuted along."""

    results: tuple[Value, ...]
    args: tuple[str, ...]
    descending: bool = False
    stable: bool = False


class Random(msgspec.Struct, frozen=True, omit_defaults=True, tag="random"):
    """A draw from the generator at (`seed`, `offset`); INTEGER also takes `low` and `high` (exclusive)."""

    result: Value
    distribution: Distribution
    args: tuple[str, ...]


class Bucketize(msgspec.Struct, frozen=True, omit_defaults=True, tag="bucketize"):
    """Position of each value in a sorted run of `boundaries` memory.

    The run starts at element `start` (a value), has `length` elements that are `stride` apart. With `right`, equal
    boundaries lie to the left of the position. `sorter` permutes the run, from element `sorter_start`.
    """

    result: Value
    value: str
    boundaries: str
    start: str
    length: Expr
    stride: Expr
    right: bool
    sorter: str | None = None
    sorter_start: str | None = None
    sorter_stride: Expr | None = None


class CheckBounds(msgspec.Struct, frozen=True, omit_defaults=True, tag="check_bounds"):
    """Fail the launch unless `0 <= index < size` at every point (where `mask` holds); each side only if asked for."""

    index: Expr
    size: Expr
    lower: bool
    upper: bool
    mask: str | None = None


class Check(msgspec.Struct, frozen=True, omit_defaults=True, tag="check"):
    """Fail the launch with `message` unless the bool value holds at every point."""

    condition: str
    message: str


Instruction = (
    Load | Store | Constant | Index | Compute | Reduce | Matmul | Scan | Sort | Random | Bucketize | CheckBounds | Check
)


class Program(msgspec.Struct, frozen=True, dict=True):
    """A kernel. A launch passes one tensor per buffer, then one number per symbol, both in declared order."""

    FORMAT: ClassVar[int] = 1

    name: str
    axes: tuple[Axis, ...]
    symbols: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    body: tuple[Instruction, ...]
    format: int = FORMAT

    @functools.cached_property
    def digest(self) -> str:
        """Hash of everything but the name: equal programs have equal digests."""
        from spyre_backend.program.serialize import digest

        return digest(self)


def results(instruction: Instruction) -> tuple[Value, ...]:
    """The values that an instruction defines."""
    match instruction:
        case Reduce(results=values) | Scan(results=values) | Sort(results=values):
            return values
        case Store() | CheckBounds() | Check():
            return ()
    return (instruction.result,)


def operands(instruction: Instruction) -> tuple[str, ...]:
    """The values that an instruction reads, index expressions aside."""
    match instruction:
        case Load(mask=mask) | CheckBounds(mask=mask):
            return (mask,) if mask else ()
        case Store(value=value, mask=mask):
            return (value, mask) if mask else (value,)
        case Constant() | Index():
            return ()
        case Bucketize():
            return tuple(v for v in (instruction.value, instruction.start, instruction.sorter_start) if v)
        case Check(condition=condition):
            return (condition,)
    return tuple(instruction.args)


def expressions(instruction: Instruction) -> tuple[Expr, ...]:
    """The index expressions of an instruction."""
    match instruction:
        case Load(index=index) | Store(index=index) | Index(index=index):
            return (index,)
        case CheckBounds(index=index, size=size):
            return (index, size)
        case Bucketize(length=length, stride=stride, sorter_stride=sorter_stride):
            return (length, stride) if sorter_stride is None else (length, stride, sorter_stride)
    return ()


def reduction_axes(program: Program) -> frozenset[str]:
    """The axes that reductions may run over."""
    return frozenset(axis.name for axis in program.axes if axis.reduction)


def reduced(instruction: Reduce | Matmul, reduction: frozenset[str]) -> frozenset[str]:
    """The axes that an instruction reduces, of a program with these reduction axes."""
    return frozenset(instruction.over) or reduction


def mnemonic(instruction: Instruction) -> str:
    """Short name of the opcode, for counting and printing: `load`, `add`, `reduce.sum`, `store.add`."""
    match instruction:
        case Compute(op=op):
            return op.mnemonic
        case Reduce(kind=kind):
            return f"reduce.{kind.value}"
        case Store(mode=mode) if mode is not StoreMode.OVERWRITE:
            return f"store.{mode.value}"
        case Random(distribution=distribution):
            return f"random.{distribution.value}"
    return str(instruction.__struct_config__.tag)
