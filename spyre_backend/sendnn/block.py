"""One tile program in the making: values, each defined once, over axes that are made as they are needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import torch

from spyre_backend import numerics
from spyre_backend.program import DType, Program, SpyreUnsupported
from spyre_backend.program.expr import Const, Expr, Sym
from spyre_backend.program.expr import names as expression_names
from spyre_backend.program.ir import (
    Axis,
    Buffer,
    CheckBounds,
    Compute,
    Constant,
    Instruction,
    Load,
    Matmul,
    Reduce,
    Region,
    Scan,
    Sort,
    Store,
    Value,
)
from spyre_backend.program.ir import (
    Index as IndexValue,
)
from spyre_backend.program.liveness import live
from spyre_backend.program.opcodes import Elementwise, Reduction, StoreMode, Typing
from spyre_backend.program.traffic import results_vary_over
from spyre_backend.sendnn.axes import split_axes
from spyre_backend.sendnn.index import Index, linear

if TYPE_CHECKING:
    from spyre_backend.sendnn.tensors import Memory, Tensor

_COMPUTE = {DType.FLOAT16: DType.FLOAT32, DType.BFLOAT16: DType.FLOAT32}


def compute_dtype(dtype: DType) -> DType:
    """The dtype in which values that live in memory as `dtype` are computed: half precision in fp32, DL16 as it is."""
    if dtype is DType.FLOAT16 and numerics.is_dl16():
        return dtype
    return _COMPUTE.get(dtype, dtype)


def literal(value: object, dtype: DType) -> str:
    """`value` as the text of a constant of `dtype`."""
    if dtype is DType.BOOL:
        return str(bool(value))
    return repr(float(value)) if dtype.is_float else repr(int(value))  # type: ignore[arg-type,call-overload]


class Block:
    """Values are known by name; `dtype` says what they are. Equal instructions are recorded once."""

    def __init__(self) -> None:
        self.axes: list[Axis] = []
        self.dtypes: dict[str, DType] = {}
        self.body: list[Instruction] = []
        self.stores: list[Store] = []
        self.memories: dict[Memory, bool] = {}  # in order of use; whether written
        self.pending: list[Tensor] = []  # that this block stores
        self.domain: tuple[int, ...] | None = None  # the shape that it goes through, at `index`
        self.index: Index = ()
        self.origins: dict[str, None] = {}  # operators that came together here
        self._known: dict[object, str | tuple[str, ...]] = {}
        self._varies: dict[str, frozenset[str]] = {}
        self._mask: str | None = None

    # ---- axes ----

    def axis(self, extent: int, *, reduction: bool = False) -> Expr:
        """The position along a new axis; 0 where there is only one, unless it is reduced."""
        if extent == 1 and not reduction:
            return Const(0)
        name = f"{'r' if reduction else 'x'}{sum(axis.reduction == reduction for axis in self.axes)}"
        self.axes.append(Axis(name, Const(extent), reduction))
        return Sym(name)

    def inner_axes(self, extents: Sequence[int], around: Sequence[Expr]) -> tuple[Sym, ...]:
        """Reduction axes with these extents: those that there are, unless what is reduced varies over them already."""
        busy = set().union(*(self._axes_of(each) for each in around)) | self._axes_of_mask()
        found: list[Sym] = []
        for extent in extents:
            free = (
                axis.name
                for axis in self.axes
                if axis.reduction and axis.size == Const(extent) and axis.name not in busy
            )
            name = next(free, None)
            at = Sym(name) if name is not None else self.axis(extent, reduction=True)
            busy.add(at.name)  # type: ignore[attr-defined]
            found.append(at)  # type: ignore[arg-type]
        return tuple(found)

    def _axes_of(self, expression: Expr) -> frozenset[str]:
        used = expression_names(expression)
        of_values = (self._varies[name] for name in used if name in self._varies)
        return frozenset(axis.name for axis in self.axes if axis.name in used).union(*of_values)

    def _axes_of_mask(self) -> frozenset[str]:
        return self._varies[self._mask] if self._mask is not None else frozenset()

    # ---- instructions ----

    def _define(
        self, key: object, dtypes: Sequence[DType], make: Callable[[tuple[Value, ...]], Instruction]
    ) -> tuple[str, ...]:
        found = self._known.get(key)
        if found is None:
            found = tuple(f"v{len(self.dtypes) + i}" for i in range(len(dtypes)))
            self.dtypes.update(zip(found, dtypes, strict=True))
            values = tuple(Value(name, dtype) for name, dtype in zip(found, dtypes, strict=True))
            instruction = make(values)
            self.body.append(instruction)
            axes = {axis.name: axis.reduction for axis in self.axes}
            reduction = frozenset(name for name, is_reduced in axes.items() if is_reduced)
            self._varies.update(
                dict.fromkeys(found, results_vary_over(instruction, self._varies, frozenset(axes), reduction))
            )
            self._known[key] = found
        return found  # type: ignore[return-value]

    def constant(self, value: object, dtype: DType) -> str:
        """A literal."""
        text = literal(value, dtype)
        return self._define(("constant", text, dtype), (dtype,), lambda out: Constant(out[0], text))[0]

    def position(self, index: Expr, dtype: DType = DType.INT64) -> str:
        """The value of an index expression."""
        if isinstance(index, Const):
            return self.constant(index.value, dtype)
        if isinstance(index, Sym) and index.name in self.dtypes:
            return self.cast(index.name, dtype)
        return self._define(("index", index, dtype), (dtype,), lambda out: IndexValue(out[0], index))[0]

    def compute(self, op: Elementwise, *args: str | float | bool) -> str:
        """An elementwise instruction. Bare numbers are of the dtype of the other operands."""
        kinds = [self.dtypes[arg] for arg in args if isinstance(arg, str)]
        kind = kinds[-1]
        used = tuple(arg if isinstance(arg, str) else self.constant(arg, kind) for arg in args)
        dtype = DType.BOOL if op.typing is Typing.COMPARE else kind
        return self._define((op, used, dtype), (dtype,), lambda out: Compute(out[0], op, used))[0]

    def cast(self, value: str, dtype: DType) -> str:
        """`value` as `dtype`."""
        if self.dtypes[value] is dtype:
            return value
        key = (Elementwise.CAST, value, dtype)
        return self._define(key, (dtype,), lambda out: Compute(out[0], Elementwise.CAST, (value,)))[0]

    def bitcast(self, value: str, dtype: DType) -> str:
        """The bits of `value` as `dtype`, of the same size."""
        if DType.FLOAT16 in (self.dtypes[value], dtype) and numerics.is_dl16():
            raise SpyreUnsupported("the bits of a float16 are not those of a DL16 number")
        key = (Elementwise.BITCAST, value, dtype)
        return self._define(key, (dtype,), lambda out: Compute(out[0], Elementwise.BITCAST, (value,)))[0]

    def load(self, memory: Memory, index: Index) -> str:
        """The element of a tensor in memory, in the dtype that it is computed in."""
        self.memories.setdefault(memory, False)
        at, mask = linear(index, memory.strides, memory.offset), self._mask
        other = literal(0, memory.dtype)
        key = ("load", memory, at, mask)
        make = lambda out: Load(out[0], memory.name, at, mask, other) if mask else Load(out[0], memory.name, at)  # noqa: E731
        (value,) = self._define(key, (memory.dtype,), make)
        return self.cast(value, compute_dtype(memory.dtype))

    def reduce(
        self, kind: Reduction, args: Sequence[str], over: Sequence[Sym], dtype: DType, results: int = 1
    ) -> tuple[str, ...]:
        """A reduction over reduction axes of this block; of a number, which has none, over one of size 1."""
        over = over or self.inner_axes([1], ())
        used, along = tuple(args), tuple(at.name for at in over)
        key = (kind, used, along, dtype)
        return self._define(key, (dtype,) * results, lambda out: Reduce(out, kind, used, along))

    def matmul(self, a: str, b: str, over: Sequence[Sym]) -> str:
        """Sum of products over reduction axes of this block."""
        along = tuple(at.name for at in over)
        return self._define(("matmul", a, b, along), (self.dtypes[a],), lambda out: Matmul(out[0], (a, b), along))[0]

    def scan(self, args: Sequence[str], combine: Region) -> tuple[str, ...]:
        """A scan over all reduction axes."""
        used = tuple(args)
        dtypes = tuple(self.dtypes[arg] for arg in used)
        return self._define(("scan", used, combine), dtypes, lambda out: Scan(out, used, combine))

    def sort(self, args: Sequence[str], *, descending: bool, stable: bool) -> tuple[str, ...]:
        """A sort over all reduction axes by the first of the values."""
        used = tuple(args)
        dtypes = tuple(self.dtypes[arg] for arg in used)
        return self._define(("sort", used, descending), dtypes, lambda out: Sort(out, used, descending, stable))

    def check(self, value: str, size: int) -> None:
        """Fail the launch unless `0 <= value < size` (where memory is read at all)."""
        at, limit, mask = Sym(value), Const(size), self._mask
        self._define(("check", value, size, mask), (), lambda _: CheckBounds(at, limit, True, True, mask))

    @contextlib.contextmanager
    def masked(self, condition: str) -> Iterator[None]:
        """Inside, memory is read only where `condition` holds; what is read elsewhere is 0."""
        before = self._mask
        self._mask = condition if before is None else self.compute(Elementwise.LOGICAL_AND, before, condition)
        try:
            yield
        finally:
            self._mask = before

    @property
    def is_masked(self) -> bool:
        """Whether memory is read under a condition at the moment."""
        return self._mask is not None

    def store(
        self,
        memory: Memory,
        index: Index,
        value: str,
        mode: StoreMode = StoreMode.OVERWRITE,
        mask: str | None = None,
        axes: Sequence[str] | None = None,
    ) -> None:
        """Write a value, at every point of the axes (default: all pointwise ones)."""
        self.memories[memory] = True
        value = self.cast(value, memory.dtype)
        if axes is None:
            axes = [axis.name for axis in self.axes if not axis.reduction]
        at = linear(index, memory.strides, memory.offset)
        self.stores.append(Store(memory.name, at, value, tuple(axes), mode, mask))

    def keep_stores(self, names: set[str]) -> None:
        """Leave out the stores to all other memory, which nobody reads, and what was only computed for them."""
        self.stores = [store for store in self.stores if store.buffer in names]
        body = live([*self.body, *self.stores])
        self.body = body[: len(body) - len(self.stores)]
        touched = {each.buffer for each in body if isinstance(each, (Load, Store))}
        self.memories = {memory: written for memory, written in self.memories.items() if memory.name in touched}

    # ---- the program ----

    def _program(self, name: str) -> Program:
        axes = sorted(self.axes, key=lambda axis: axis.reduction)
        buffers = tuple(Buffer(memory.name, memory.dtype, written) for memory, written in self.memories.items())
        return Program(name, tuple(axes), (), buffers, (*self.body, *self.stores))

    def program(self, name: str) -> Program:
        """What was recorded, with buffers by the names of their places, so that equal kernels are equal programs."""
        return split_axes(_renamed(self._program(name)))


def _renamed(program: Program) -> Program:
    places = {buffer.name: f"b{place}" for place, buffer in enumerate(program.buffers)}

    def rename(instruction: Instruction) -> Instruction:
        if isinstance(instruction, (Load, Store)):
            return msgspec.structs.replace(instruction, buffer=places[instruction.buffer])
        return instruction

    buffers = tuple(msgspec.structs.replace(buffer, name=places[buffer.name]) for buffer in program.buffers)
    return msgspec.structs.replace(program, buffers=buffers, body=tuple(map(rename, program.body)))


def program_dtype(dtype: torch.dtype) -> DType | None:
    """The program's dtype of the same name, if this compiler computes with it."""
    name = str(dtype).removeprefix("torch.")
    return DType(name) if name in _DTYPES else None


_DTYPES = frozenset({"float16", "bfloat16", "float32", "int64", "int32", "int16", "int8", "uint8", "bool"})
