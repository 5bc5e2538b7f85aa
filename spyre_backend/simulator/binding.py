"""A program made concrete: symbols bound, accesses resolved, one step per instruction.

Binding is done once per set of symbol values; running a bound program only moves data.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping

import torch

from spyre_backend import numerics
from spyre_backend.cost import Cost, cost
from spyre_backend.program.affine import Affine, affine
from spyre_backend.program.expr import Expr, evaluate, names
from spyre_backend.program.independence import Window
from spyre_backend.program.ir import (
    Bucketize,
    Check,
    CheckBounds,
    Compute,
    Constant,
    Index,
    Instruction,
    Load,
    Matmul,
    Program,
    Random,
    Reduce,
    Scan,
    Sort,
    Store,
    mnemonic,
    reduced,
    reduction_axes,
)
from spyre_backend.program.opcodes import Distribution, StoreMode
from spyre_backend.program.traffic import Traffic, iteration_space, traffic
from spyre_backend.simulator import dl16, elementwise, memory, philox, reductions
from spyre_backend.simulator.blocking import windows
from spyre_backend.simulator.indexing import Number, evaluate_index
from spyre_backend.simulator.types import constant, value_dtype

Tensor = torch.Tensor
Values = dict[str, Tensor]
Memory = Mapping[str, Tensor]
Step = Callable[[Values, Memory], None]


class BoundProgram:
    """`program` for one set of symbol values; with `window`, one block of it."""

    def __init__(self, program: Program, symbols: Mapping[str, Number], window: Window | None = None) -> None:
        self.program = program
        self.symbols = symbols
        self._extents = iteration_space(program, symbols)
        self._blocks = windows(program, self._extents, symbols) if window is None else [window]
        self._starts = {axis: part.start for axis, part in window.items() if part.start} if window else {}
        self.space = memory.Space(
            {axis: len(part) for axis, part in window.items()} if window is not None else self._extents
        )
        self._written = {buffer.name for buffer in program.buffers if buffer.written}
        self._iota: dict[str, Tensor] = {}
        self._steps = [self._bind(instruction) for instruction in program.body]

    def run(self, buffers: Memory) -> None:
        """Execute on CPU tensors, one per buffer name."""
        if len(self._blocks) > 1:
            for window in self._blocks:
                BoundProgram(self.program, self.symbols, window).run(buffers)
            return
        values: Values = {}
        for step in self._steps:
            step(values, buffers)

    def stores(self) -> list[tuple[str, Affine]]:
        """Buffer and access of each affine store."""
        found = ((each.buffer, self._affine(each.index)) for each in self.program.body if isinstance(each, Store))
        return [(buffer, access) for buffer, access in found if access is not None]

    @functools.cached_property
    def opcodes(self) -> Counter[str]:
        """How often each opcode occurs in the body."""
        return Counter(mnemonic(instruction) for instruction in self.program.body)

    @functools.cached_property
    def traffic(self) -> Traffic:
        """Bytes moved by one launch."""
        return traffic(self.program, self.symbols)

    @functools.cached_property
    def cost(self) -> Cost:
        """Simulated time of one launch, what bounds it, and how it is divided over the cores."""
        return cost(self.program, self.symbols)

    # ---- one binder per instruction class --------------------------------------------------------------------------

    def _bind(self, instruction: Instruction) -> Step:
        step = _BINDERS[type(instruction)](self, instruction)
        return dl16.computing(step, instruction, self.program) if numerics.is_dl16() else step

    def _load(self, load: Load) -> Step:
        name, buffer, mask, other = load.result.name, load.buffer, load.mask, constant(load.other)
        access = self._affine(load.index)
        copied = buffer in self._written
        index = None if access is not None and mask is None else self._index(load.index)

        def view(values: Values, buffers: Memory) -> None:
            source = buffers[buffer]
            if not memory.in_range(source, access, self.space):  # type: ignore[arg-type]
                raise IndexError(f"{self.program.name}: load of {buffer}[{load.index}] leaves its storage")
            value = memory.strided_view(source, access, self.space)  # type: ignore[arg-type]
            # a view of memory that this program also writes would change under the instructions that use it later
            values[name] = value.clone() if copied else value

        def masked_view(values: Values, buffers: Memory) -> None:
            source = buffers[buffer]
            if not memory.in_range(source, access, self.space):  # type: ignore[arg-type]
                return gathered(values, buffers)
            value = memory.strided_view(source, access, self.space)  # type: ignore[arg-type]
            values[name] = torch.where(values[mask], value, torch.tensor(other, dtype=value.dtype))  # type: ignore[index]

        def gathered(values: Values, buffers: Memory) -> None:
            kept = values[mask] if mask else None
            values[name] = memory.gather(buffers[buffer], index(values), kept, other)  # type: ignore[misc]

        if access is None:
            return gathered
        return view if mask is None else masked_view

    def _store(self, store: Store) -> Step:
        access = self._affine(store.index)
        index = self._index(store.index)
        shape = self.space.shape(store.axes)
        overwrite = store.mode is StoreMode.OVERWRITE and access is not None and store.mask is None

        def step(values: Values, buffers: Memory) -> None:
            target, value = buffers[store.buffer], values[store.value]
            if overwrite:
                if not memory.in_range(target, access, self.space):  # type: ignore[arg-type]
                    raise IndexError(f"{self.program.name}: store to {store.buffer}[{store.index}] leaves its storage")
                if memory.store_strided(target, access, self.space, store.axes, value):  # type: ignore[arg-type]
                    return
            kept = values[store.mask] if store.mask else None
            memory.scatter(target, index(values), kept, value, shape, store.mode)

        return step

    def _constant(self, instruction: Constant) -> Step:
        shape = [1] * self.space.ndim
        value = torch.full(shape, constant(instruction.value), dtype=value_dtype(instruction.result.dtype))

        def step(values: Values, buffers: Memory) -> None:
            values[instruction.result.name] = value

        return step

    def _index_value(self, instruction: Index) -> Step:
        index, dtype = self._index(instruction.index), value_dtype(instruction.result.dtype)

        def step(values: Values, buffers: Memory) -> None:
            values[instruction.result.name] = index(values).to(dtype)

        return step

    def _compute(self, instruction: Compute) -> Step:
        name, op, args = instruction.result.name, instruction.op, instruction.args
        dtype = value_dtype(instruction.result.dtype)

        def step(values: Values, buffers: Memory) -> None:
            values[name] = elementwise.apply(op, tuple(values[arg] for arg in args), dtype)

        return step

    def _reduce(self, instruction: Reduce) -> Step:
        dtype = value_dtype(instruction.results[0].dtype)
        dims = self._dims(instruction)

        def step(values: Values, buffers: Memory) -> None:
            args = self._joined(tuple(self._flattened(values[arg], dims) for arg in instruction.args))
            for value, result in zip(
                instruction.results, reductions.reduce(instruction.kind, args, dtype), strict=True
            ):
                values[value.name] = self._unflattened(result, dims).to(value_dtype(value.dtype))

        return step

    def _matmul(self, instruction: Matmul) -> Step:
        dims = self._dims(instruction)

        def step(values: Values, buffers: Memory) -> None:
            a, b = (values[arg] for arg in instruction.args)
            values[instruction.result.name] = reductions.matmul(a, b, dims, self.space.shape())

        return step

    def _scan(self, instruction: Scan) -> Step:
        dims = self._dims(instruction)

        def step(values: Values, buffers: Memory) -> None:
            args = self._joined(tuple(self._flattened(values[arg], dims) for arg in instruction.args))
            results = reductions.scan(args, instruction.combine)
            for value, result in zip(instruction.results, results, strict=True):
                values[value.name] = self._unflattened(result, dims).to(value_dtype(value.dtype))

        return step

    def _sort(self, instruction: Sort) -> Step:
        dims = self._dims(instruction)

        def step(values: Values, buffers: Memory) -> None:
            args = self._joined(tuple(self._flattened(values[arg], dims) for arg in instruction.args))
            for value, result in zip(instruction.results, reductions.sort(args, instruction.descending), strict=True):
                values[value.name] = self._unflattened(result, dims)

        return step

    def _random(self, instruction: Random) -> Step:
        draw = _DISTRIBUTIONS[instruction.distribution]
        dtype = value_dtype(instruction.result.dtype)

        def step(values: Values, buffers: Memory) -> None:
            values[instruction.result.name] = draw(*(values[arg].to(torch.int64) for arg in instruction.args)).to(dtype)

        return step

    def _bucketize(self, instruction: Bucketize) -> Step:
        length, stride = (int(evaluate(e, self.symbols)) for e in (instruction.length, instruction.stride))
        through = instruction.sorter_stride
        sorter_stride = int(evaluate(through, self.symbols)) if through is not None else 0
        dtype = value_dtype(instruction.result.dtype)

        def step(values: Values, buffers: Memory) -> None:
            value, start = torch.broadcast_tensors(values[instruction.value], values[instruction.start])
            source = buffers[instruction.boundaries]

            def boundaries(position: Tensor) -> Tensor:
                if instruction.sorter is not None:
                    first = values[instruction.sorter_start]  # type: ignore[index]
                    position = memory.gather(buffers[instruction.sorter], first + position * sorter_stride, None, 0)
                return memory.gather(source, start + position.to(torch.int64) * stride, None, 0)

            values[instruction.result.name] = reductions.bucketize(value, boundaries, length, instruction.right).to(
                dtype
            )

        return step

    def _check_bounds(self, instruction: CheckBounds) -> Step:
        index, size = self._index(instruction.index), self._index(instruction.size)

        def step(values: Values, buffers: Memory) -> None:
            position, limit = index(values), size(values)
            bad = torch.zeros((), dtype=torch.bool)
            if instruction.lower:
                bad = bad | (position < 0)
            if instruction.upper:
                bad = bad | (position >= limit)
            if instruction.mask:
                bad = bad & values[instruction.mask]
            # nothing is accessed in an empty iteration space
            if all(self.space.extents.values()) and bool(bad.any()):
                raise IndexError(f"index out of bounds: {instruction.index} in {self.program.name}")

        return step

    def _check(self, instruction: Check) -> Step:
        def step(values: Values, buffers: Memory) -> None:
            if not bool(values[instruction.condition].all()):
                raise RuntimeError(instruction.message)

        return step

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def _affine(self, index: Expr) -> Affine | None:
        access = affine(index, self._extents, self.symbols)
        if access is None or not self._starts:
            return access
        return access.plus(Affine(sum(access.coefficients.get(axis, 0) * at for axis, at in self._starts.items())))

    def _index(self, index: Expr) -> Callable[[Values], Tensor]:
        """A function that evaluates `index` as an int64 (or float64) tensor of the rank of the iteration space."""
        used = names(index)
        axes = used & self.space.extents.keys()
        from_values = used - axes - self.symbols.keys()

        def evaluated(values: Values) -> Tensor:
            bindings: dict[str, Tensor | Number] = {name: self.symbols[name] for name in used & self.symbols.keys()}
            bindings.update((axis, self._position(axis)) for axis in axes)
            bindings.update((name, _as_index(values[name])) for name in from_values)
            result = evaluate_index(index, bindings)
            return result if isinstance(result, Tensor) else torch.tensor(result).reshape([1] * self.space.ndim)

        return evaluated

    def _position(self, axis: str) -> Tensor:
        if axis not in self._iota:
            self._iota[axis] = self.space.iota(axis) + self._starts.get(axis, 0)
        return self._iota[axis]

    def _dims(self, instruction: Instruction) -> list[int]:
        """The dimensions that an instruction reduces, scans or sorts over."""
        every = reduction_axes(self.program)
        over = reduced(instruction, every) if isinstance(instruction, (Reduce, Matmul)) else every
        return [dim for dim, axis in enumerate(self.space.extents) if axis in over]

    def _flattened(self, value: Tensor, dims: list[int]) -> Tensor:
        """`[..., n]`: the dimensions `dims` at full extent, in order, as one; then the others stand before it."""
        kept = [dim for dim in range(value.dim()) if dim not in dims]
        shape = self.space.shape()
        full = value.expand([shape[dim] if dim in dims else size for dim, size in enumerate(value.shape)])
        count = math.prod(shape[dim] for dim in dims)
        return full.permute(kept + dims).reshape([*(value.shape[dim] for dim in kept), count])

    def _joined(self, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return args if len(args) == 1 else torch.broadcast_tensors(*args)

    def _unflattened(self, value: Tensor, dims: list[int]) -> Tensor:
        """The inverse of `_flattened`, for results that are reduced to one element or still have all of them."""
        shape = self.space.shape()
        inner = [shape[dim] for dim in dims]
        if value.shape[-1] != math.prod(inner) or value.shape[-1] == 1:
            inner = [1] * len(inner)
        order = [dim for dim in range(self.space.ndim) if dim not in dims] + dims
        return value.reshape([*value.shape[:-1], *inner]).permute([order.index(dim) for dim in range(len(order))])


def _as_index(value: Tensor) -> Tensor:
    return value if value.is_floating_point() else value.to(torch.int64)


_BINDERS: dict[type, Callable[[BoundProgram, Instruction], Step]] = {
    Load: BoundProgram._load,  # type: ignore[dict-item]
    Store: BoundProgram._store,  # type: ignore[dict-item]
    Constant: BoundProgram._constant,  # type: ignore[dict-item]
    Index: BoundProgram._index_value,  # type: ignore[dict-item]
    Compute: BoundProgram._compute,  # type: ignore[dict-item]
    Reduce: BoundProgram._reduce,  # type: ignore[dict-item]
    Matmul: BoundProgram._matmul,  # type: ignore[dict-item]
    Scan: BoundProgram._scan,  # type: ignore[dict-item]
    Sort: BoundProgram._sort,  # type: ignore[dict-item]
    Random: BoundProgram._random,  # type: ignore[dict-item]
    Bucketize: BoundProgram._bucketize,  # type: ignore[dict-item]
    CheckBounds: BoundProgram._check_bounds,  # type: ignore[dict-item]
    Check: BoundProgram._check,  # type: ignore[dict-item]
}

_DISTRIBUTIONS: dict[Distribution, Callable[..., Tensor]] = {
    Distribution.UNIFORM: philox.uniform,
    Distribution.NORMAL: philox.normal,
    Distribution.INTEGER: philox.integer,
}
