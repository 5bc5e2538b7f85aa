"""Positions: how an element of a view is found in its base, and axes in parts where positions divide them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from spyre_backend.program.expr import ZERO, Call, Const, Expr, Fn, Sym, add, floordiv, mod, mul, substitute
from spyre_backend.program.ir import Axis, Program

Index = tuple[Expr, ...]
"""A position along each dimension."""


def linear(index: Index, strides: Sequence[int], offset: int = 0) -> Expr:
    """The element at `index` of memory with these strides."""
    return add(offset, *(mul(stride, at) for at, stride in zip(index, strides, strict=True)))


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor, the last dimension innermost."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def reshaped(index: Index, shape: Sequence[int], base: Sequence[int]) -> Index:
    """Where an element of a view of `shape` lies in its base, of another shape with as many elements.

    Dimensions that the two share stay as they are: only what is merged or split becomes a division.
    """
    found: list[Expr] = []
    for dims, base_dims in _groups(shape, base):
        if len(base_dims) == 1 and len(dims) == 1:
            found.append(index[dims[0]])
            continue
        sizes = [base[dim] for dim in base_dims]
        within = linear(tuple(index[dim] for dim in dims), contiguous([shape[dim] for dim in dims]))
        for position, (size, stride) in enumerate(zip(sizes, contiguous(sizes), strict=True)):
            whole = floordiv(within, stride)
            found.append(ZERO if size == 1 else whole if position == 0 else mod(whole, size))
    return tuple(found)


def _groups(shape: Sequence[int], base: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The least runs of dimensions of both shapes that hold as many elements."""
    if not math.prod(shape):
        yield list(range(len(shape))), list(range(len(base)))
        return
    left = right = 0
    while left < len(shape) or right < len(base):
        dims: list[int] = []
        base_dims: list[int] = []
        size = base_size = 1
        while not dims or not base_dims or size != base_size:
            if right >= len(base) or (left < len(shape) and size <= base_size and (not dims or size != base_size)):
                if left >= len(shape):
                    break
                dims.append(left)
                size *= shape[left]
                left += 1
            else:
                base_dims.append(right)
                base_size *= base[right]
                right += 1
        yield dims, base_dims


def split_axes(program: Program) -> Program:
    """`program` with the axes in parts that its positions divide, so that they become affine: of a head that shares its
    keys with `c - 1` others the position `x // c` is the outer part of `x`."""
    while found := next(_divided(program), None):
        axis, size = found
        extent = axis.size.value  # type: ignore[attr-defined]
        outer, inner = (
            Axis(f"{axis.name}{part}", Const(count), axis.reduction)
            for part, count in (("o", extent // size), ("i", size))
        )
        bindings: Mapping[str, Expr] = {axis.name: add(mul(size, Sym(outer.name)), Sym(inner.name))}
        program = _with_axes(program, axis, (outer, inner), bindings)
    return program


def _divided(program: Program) -> Iterator[tuple[Axis, int]]:
    """Axes that are divided on their own by a size that divides them."""
    from spyre_backend.program.ir import expressions

    axes = {axis.name: axis for axis in program.axes}
    for instruction in program.body:
        for expression in expressions(instruction):
            for name, size in _divisions(expression):
                axis = axes.get(name)
                extent = axis.size.value if axis is not None and isinstance(axis.size, Const) else 0
                if axis is not None and 1 < size < extent and extent % size == 0:
                    yield axis, size


def _divisions(expression: Expr) -> Iterator[tuple[str, int]]:
    match expression:
        case Call(Fn.FLOORDIV | Fn.MOD, (Sym(name), Const(int(size)))):
            yield name, size
        case Call(_, args):
            for arg in args:
                yield from _divisions(arg)


def _with_axes(program: Program, axis: Axis, parts: tuple[Axis, Axis], bindings: Mapping[str, Expr]) -> Program:
    import msgspec

    from spyre_backend.program.ir import Instruction, Matmul, Reduce, Store

    def names(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new for name in given for new in ([part.name for part in parts] if name == axis.name else [name]))

    def rewritten(instruction: Instruction) -> Instruction:
        changes: dict[str, object] = {}
        for field in instruction.__struct_fields__:
            value = getattr(instruction, field)
            if isinstance(value, Expr):
                changes[field] = simplified(substitute(value, bindings), parts[1])
        if isinstance(instruction, Store):
            changes["axes"] = names(instruction.axes)
        elif isinstance(instruction, (Reduce, Matmul)):
            changes["over"] = names(instruction.over)
        return msgspec.structs.replace(instruction, **changes) if changes else instruction

    axes = tuple(new for old in program.axes for new in (parts if old is axis else (old,)))
    return msgspec.structs.replace(program, axes=axes, body=tuple(map(rewritten, program.body)))


def simplified(expression: Expr, inner: Axis) -> Expr:
    """`expression` with divisions of `size·x + inner` by `size` resolved; `inner` is below its size."""
    match expression:
        case Call(
            Fn.FLOORDIV | Fn.MOD as fn, (Call(Fn.ADD, (Call(Fn.MUL, (Const(step), whole)), Sym(name))), Const(size))
        ) if step == size and name == inner.name and inner.size == Const(size):
            return whole if fn is Fn.FLOORDIV else Sym(name)
        case Call(fn, args):
            from spyre_backend.program.expr import call

            return call(fn, *(simplified(arg, inner) for arg in args))
    return expression
