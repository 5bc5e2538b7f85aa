"""Which core does which part of a launch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spyre_backend.cost.footprint import scattered_stores
from spyre_backend.hardware import SPYRE, Hardware
from spyre_backend.program.affine import affine
from spyre_backend.program.independence import Window, cut, independent_axes
from spyre_backend.program.ir import Load, Program, Store
from spyre_backend.program.traffic import Bindings


@dataclass(frozen=True)
class Division:
    """Of each axis, how much of it a core gets at most."""

    extents: Mapping[str, int]
    sizes: Mapping[str, int]

    @property
    def parts(self) -> dict[str, int]:
        """Into how many parts each axis is cut."""
        return {axis: max(1, math.ceil(extent / max(1, self.sizes[axis]))) for axis, extent in self.extents.items()}

    @property
    def cores(self) -> int:
        """How many cores have something to do."""
        return math.prod(self.parts.values())

    def shares(self) -> list[Window]:
        """The share of each core; together they are the whole space, and no two have a point in common."""
        parts = [list(cut(extent, self.sizes[axis])) for axis, extent in self.extents.items()]
        return [dict(zip(self.extents, ranges, strict=True)) for ranges in itertools.product(*parts)]

    def __str__(self) -> str:
        split = " x ".join(f"{axis}/{count}" for axis, count in self.parts.items() if count > 1)
        return f"{self.cores} cores" + (f": {split}" if split else "")


def divisions(
    program: Program, symbols: Bindings, extents: Mapping[str, int], hardware: Hardware = SPYRE
) -> Iterator[Division]:
    """All ways to divide a launch: axes along which parts are independent, those that lie in sticks by whole sticks.

    The one that leaves all to one core is the first. What reaches further than a core may is left out, unless all do.
    """
    free = independent_axes(program, extents, symbols)
    grain = _grain(program, extents, symbols, hardware)
    found: list[tuple[int, dict[str, int]]] = [(1, dict(extents))]
    for axis in extents:
        if axis in free:
            choices = _sizes(extents[axis], grain.get(axis, 1), hardware.cores)
            found = [
                (cores * parts, {**sizes, axis: size})
                for cores, sizes in found
                for parts, size in choices
                if cores * parts <= hardware.cores
            ]
    every = [Division(extents, sizes) for _, sizes in found]
    if _reach(program, every[0], symbols) > hardware.span:
        every = [each for each in every if _reach(program, each, symbols) <= hardware.span] or every
    yield from every


def _sizes(extent: int, grain: int, most: int) -> list[tuple[int, int]]:
    """Numbers of parts with their size, the largest first: each size once, and none smaller than the grain."""
    wanted = (math.ceil(math.ceil(extent / parts) / grain) * grain for parts in range(2, most + 1))
    sizes = dict.fromkeys(size for size in wanted if 0 < size < extent)
    return [(1, extent), *((math.ceil(extent / size), size) for size in sizes)]


def _grain(program: Program, extents: Mapping[str, int], symbols: Bindings, hardware: Hardware) -> dict[str, int]:
    """Of the axes that elements are written side by side along, how many fill a stick: no two cores write one."""
    itemsize = {buffer.name: buffer.dtype.itemsize for buffer in program.buffers}
    scattered = scattered_stores(program, symbols, extents)
    found: dict[str, int] = {}
    for instruction in program.body:
        if isinstance(instruction, Store) and instruction not in scattered:
            access = affine(instruction.index, extents, symbols)
            for axis, step in access.coefficients.items() if access else ():
                if abs(step) == 1:
                    count = hardware.stick // itemsize[instruction.buffer]
                    found[axis] = max(found.get(axis, 1), count)
    return found


def _reach(program: Program, division: Division, symbols: Bindings) -> int:
    """Bytes between the first and the last element of a buffer that one share touches, at most."""
    itemsize = {buffer.name: buffer.dtype.itemsize for buffer in program.buffers}
    furthest = 0
    for instruction in program.body:
        if isinstance(instruction, (Load, Store)):
            access = affine(instruction.index, division.extents, symbols)
            if access is not None:
                low, high = access.bounds(division.sizes)
                furthest = max(furthest, (high - low + 1) * itemsize[instruction.buffer])
    return furthest
