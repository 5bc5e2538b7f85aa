"""Axes in parts where positions divide them, so that memory is a strided view of the iteration space again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from spyre_backend.program import Program
from spyre_backend.program.expr import Call, Const, Expr, Fn, Sym, add, call, mul, substitute
from spyre_backend.program.ir import Axis, Instruction, Matmul, Reduce, Store, expressions


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
    def names(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new for name in given for new in ([part.name for part in parts] if name == axis.name else [name]))

    def rewritten(instruction: Instruction) -> Instruction:
        changes: dict[str, object] = {}
        for field in instruction.__struct_fields__:
            value = getattr(instruction, field)
            if isinstance(value, Expr):
                changes[field] = _simplified(substitute(value, bindings), parts[1])
        if isinstance(instruction, Store):
            changes["axes"] = names(instruction.axes)
        elif isinstance(instruction, (Reduce, Matmul)):
            changes["over"] = names(instruction.over)
        return msgspec.structs.replace(instruction, **changes) if changes else instruction

    axes = tuple(new for old in program.axes for new in (parts if old is axis else (old,)))
    return msgspec.structs.replace(program, axes=axes, body=tuple(map(rewritten, program.body)))


def _simplified(expression: Expr, inner: Axis) -> Expr:
    """`expression` with divisions of `size·x + inner` by `size` resolved; `inner` is below its size."""
    match expression:
        case Call(
            Fn.FLOORDIV | Fn.MOD as fn, (Call(Fn.ADD, (Call(Fn.MUL, (Const(step), whole)), Sym(name))), Const(size))
        ) if step == size and name == inner.name and inner.size == Const(size):
            return whole if fn is Fn.FLOORDIV else Sym(name)
        case Call(fn, args):
            return call(fn, *(_simplified(arg, inner) for arg in args))
    return expression
