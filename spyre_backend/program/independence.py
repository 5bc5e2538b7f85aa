"""Along which axes a program's iteration space may be cut into parts that do not see each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spyre_backend.program.affine import affine
from spyre_backend.program.ir import Bucketize, Load, Program, Store
from spyre_backend.program.opcodes import StoreMode

Window = Mapping[str, range]
"""Of each axis, the part that a block, or a core, covers."""


def independent_axes(
    program: Program, extents: Mapping[str, int], symbols: Mapping[str, int | float]
) -> frozenset[str]:
    """The axes along which parts are independent: each element is written once, and of what is written only the point
    that writes it reads it (in place)."""
    written = {buffer.name for buffer in program.buffers if buffer.written}
    places = {(each.buffer, each.index) for each in program.body if isinstance(each, Store)}
    shared = {buffer for buffer in written if sum(buffer == other for other, _ in places) > 1}
    axes = frozenset(axis.name for axis in program.axes if not axis.reduction)
    for instruction in program.body:
        match instruction:
            case Load(buffer=buffer, index=index) if buffer in written:
                if buffer in shared or (buffer, index) not in places:
                    return frozenset()
            case Bucketize(boundaries=boundaries, sorter=sorter) if {boundaries, sorter} & written:
                return frozenset()
            case Store(index=index, mode=mode, axes=over):
                access = affine(index, extents, symbols)
                if mode is not StoreMode.OVERWRITE or access is None or not access.is_injective(extents, over):
                    return frozenset()
                axes &= frozenset(over)
    return axes


def cut(extent: int, size: int) -> Iterator[range]:
    """An axis in parts of `size`, the last one perhaps smaller; one empty part of an empty axis."""
    if extent == 0:
        yield range(0)
    for start in range(0, extent, max(1, size)):
        yield range(start, min(start + size, extent))
