"""Which memory a launch touches: of each buffer the distinct elements, moved in whole sticks.

`program.traffic` counts what instructions ask for; here an element that is asked for twice is moved once, and a run of
neighbours that ends inside a stick moves all of it. Memory is as the host lays it out: device layouts are not modelled.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from spyre_backend.hardware import SPYRE, Hardware
from spyre_backend.program.affine import affine
from spyre_backend.program.expr import Expr, evaluate, names
from spyre_backend.program.ir import Bucketize, Load, Program, Reduce, Store, reduction_axes
from spyre_backend.program.opcodes import StoreMode
from spyre_backend.program.traffic import Bindings, dependencies, varies_over


@dataclass(frozen=True)
class Footprint:
    """Bytes of one buffer that a launch reads and writes, and the axis along which its elements lie side by side."""

    buffer: str
    read: int
    written: int
    inner: str | None
    axes: frozenset[str]  # that what is read, or else written, varies over


@dataclass(frozen=True)
class _Touch:
    """One access: its distinct elements, in runs of neighbours, and how far the first is from the last."""

    runs: int
    run: int
    reach: int
    inner: str | None
    axes: frozenset[str]
    steps: tuple[tuple[str, int], ...]  # equal for windows on the same elements

    def nbytes(self, itemsize: int, stick: int) -> int:
        in_runs = self.runs * math.ceil(self.run * itemsize / stick)
        return min(in_runs, math.ceil(self.reach * itemsize / stick)) * stick  # runs may share a stick


def footprints(
    program: Program, symbols: Bindings, extents: Mapping[str, int], hardware: Hardware = SPYRE
) -> list[Footprint]:
    """What a launch over `extents` touches, buffer by buffer in declared order; none of a buffer that it does not."""
    varies = dependencies(program)
    scattered = scattered_stores(program, symbols, extents)
    reads: dict[str, list[_Touch]] = defaultdict(list)
    writes: dict[str, list[_Touch]] = defaultdict(list)
    for instruction in program.body:
        match instruction:
            case Load(buffer=buffer, index=index):
                over = varies_over(instruction, varies, frozenset(extents))
                reads[buffer].append(_touch(index, over, extents, symbols, varies))
            case Store(buffer=buffer, index=index, axes=over, mode=mode):
                touch = _touch(index, frozenset(over), extents, symbols, varies)
                if instruction in scattered:
                    touch = replace(touch, runs=touch.runs * touch.run, run=1, reach=touch.reach * hardware.stick)
                writes[buffer].append(touch)
                if mode is not StoreMode.OVERWRITE:
                    reads[buffer].append(touch)
            case Bucketize(boundaries=buffer, length=length):
                run = int(evaluate(length, symbols))
                reads[buffer].append(_Touch(1, run, run, None, frozenset(), ()))
    found = []
    for each in program.buffers:
        touches = reads[each.name] or writes[each.name]
        if touches:
            largest = max(touches, key=lambda touch: touch.runs * touch.run)
            read, written = (_moved(side[each.name], each.dtype.itemsize, hardware.stick) for side in (reads, writes))
            found.append(Footprint(each.name, read, written, largest.inner, largest.axes))
    return found


def scattered_stores(program: Program, symbols: Bindings, extents: Mapping[str, int]) -> frozenset[Store]:
    """The stores of what elements that lie side by side are reduced to: each element then has a stick of its own.

    So torch-spyre does it (cost_model.py calls the write stick-inflated), and so rows can be divided one by one.
    """
    reduction = reduction_axes(program)
    if not any(isinstance(instruction, Reduce) for instruction in program.body):
        return frozenset()
    side_by_side = frozenset[str]().union(
        *(_unit_axes(each, symbols, extents) for each in program.body if isinstance(each, Load))
    )
    if side_by_side.isdisjoint(reduction):
        return frozenset()
    stores = (each for each in program.body if isinstance(each, Store) and reduction.isdisjoint(each.axes))
    return frozenset(each for each in stores if side_by_side.isdisjoint(_unit_axes(each, symbols, extents)))


def _unit_axes(access: Load | Store, symbols: Bindings, extents: Mapping[str, int]) -> frozenset[str]:
    """The axes along which the elements of an access lie side by side."""
    found = affine(access.index, extents, symbols)
    return frozenset(axis for axis, step in found.coefficients.items() if abs(step) == 1) if found else frozenset()


def _moved(touches: list[_Touch], itemsize: int, stick: int) -> int:
    """Accesses that differ in where they begin are windows on the same elements; others are added."""
    largest: dict[tuple[tuple[str, int], ...], int] = {}
    for touch in touches:
        largest[touch.steps] = max(largest.get(touch.steps, 0), touch.nbytes(itemsize, stick))
    return sum(largest.values())


def _touch(
    index: Expr,
    over: frozenset[str],
    extents: Mapping[str, int],
    symbols: Bindings,
    varies: Mapping[str, frozenset[str]],
) -> _Touch:
    points = math.prod(extents[axis] for axis in over)
    # Where a row is looked up is not known here; that its elements lie side by side is.
    looked_up = {name: 0 for name in names(index) if name in varies}
    access = affine(index, extents, {**symbols, **looked_up})
    if access is None:
        return _Touch(1, points, points, None, over, ((str(index), 1),))
    steps = tuple(sorted((axis, abs(step)) for axis, step in access.coefficients.items()))
    inner = max((axis for axis, step in steps if step == 1), key=lambda axis: extents[axis], default=None)
    run = extents[inner] if inner else min(1, points)
    low, high = access.bounds(extents)
    reach = points if looked_up else high - low + 1
    return _Touch(math.ceil(min(points, reach) / run) if run else 0, run, reach, inner, over, steps)
