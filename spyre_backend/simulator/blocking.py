"""Large iteration spaces in blocks. A device holds a tile of a value at a time; the simulator would hold all of it, and
the windows of a convolution, say, are hundreds of times its input."""

import itertools
import math
from collections.abc import Iterator, Mapping

from spyre_backend.program.affine import affine
from spyre_backend.program.independence import Window, cut, independent_axes
from spyre_backend.program.ir import Load, Matmul, Program, reduced, reduction_axes, results
from spyre_backend.program.traffic import dependencies

POINTS = 2**22
"""At most so many elements of a value at a time, where the program allows it: 32 MB of indices."""


def windows(program: Program, extents: Mapping[str, int], symbols: Mapping[str, int | float]) -> list[Window]:
    """The blocks to run one after another, together the whole space; only one where that is small, or where the order
    in which points are visited could be seen in the result."""
    block = dict(extents)
    if math.prod(extents.values()) > POINTS:
        splittable = independent_axes(program, extents, symbols)
        for over in _materialised(program, extents, symbols):
            for axis in extents:
                points = math.prod(block[name] for name in over)
                if points > POINTS and axis in over and axis in splittable:
                    block[axis] = max(1, block[axis] * POINTS // points)
    parts = [list(cut(extent, block[axis])) for axis, extent in extents.items()]
    return [dict(zip(extents, ranges, strict=True)) for ranges in itertools.product(*parts)]


def _materialised(
    program: Program, extents: Mapping[str, int], symbols: Mapping[str, int | float]
) -> Iterator[frozenset[str]]:
    """The axes of every value that takes memory: all but plain loads, which are views, unless a product packs them."""
    varies = dependencies(program)
    reduction = reduction_axes(program)
    for instruction in program.body:
        if isinstance(instruction, Matmul):
            yield from (varies[arg] | reduced(instruction, reduction) for arg in instruction.args)
        is_view = (
            isinstance(instruction, Load)
            and instruction.mask is None
            and affine(instruction.index, extents, symbols) is not None
        )
        if not is_view:
            yield from (varies[value.name] for value in results(instruction))
