"""Simulated time: how long a launch takes, what bounds it, and what it could take at best.

A launch takes the longest of three times, as data streams while cores compute: that of moving what it touches, that of
its matrix products, and that of its vector work, each of the two on the core with the largest share. The formula and
the figures are torch-spyre's (see `hardware`). Not modelled: what a launch itself costs, the ring between cores, device
layouts, and what does not fit the scratchpad and is moved again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from spyre_backend.cost.division import Division, divisions
from spyre_backend.cost.footprint import Footprint, footprints
from spyre_backend.hardware import SPYRE, Hardware
from spyre_backend.program.ir import (
    Compute,
    Constant,
    Instruction,
    Load,
    Matmul,
    Program,
    Reduce,
    Store,
    reduced,
    reduction_axes,
)
from spyre_backend.program.opcodes import Typing
from spyre_backend.program.traffic import Bindings, dependencies, iteration_space, varies_over


class Bound(StrEnum):
    """What a launch waits for."""

    MEMORY = "memory"
    PRODUCTS = "products"
    VECTOR = "vector"


class Cause(StrEnum):
    """Why a launch takes longer than the roofline."""

    UNDERFILLED = "underfilled cores"  # the work cannot be divided over all of them
    RESTICKIFY = "restickify"  # the inner dimension changes
    MEMORY = "memory"  # bandwidth below its peak: turning around between reading and writing, reductions, broadcasts
    PRODUCTS = "products"  # the array below its peak
    VECTOR = "vector"  # work that the roofline does not know


class Pattern(StrEnum):
    """How a launch goes through memory, which decides at what rate."""

    STREAM = "stream"
    ROWS = "row reduction"
    CROSS_ROWS = "cross-row reduction"
    BROADCAST = "broadcast"
    RESTICKIFY = "restickify"


@dataclass(frozen=True)
class Cost:
    """Of one launch: times in seconds, memory in bytes, both of the whole card."""

    memory_s: float
    products_s: float
    vector_s: float
    read: int
    written: int
    multiply_accumulates: int
    pattern: Pattern
    division: Division
    hardware: Hardware

    def __str__(self) -> str:
        time = f"{self.seconds * 1e6:.1f} us, {self.lost_s * 1e6:.1f} above the roofline"
        moved = f"reads {self.read} and writes {self.written} bytes ({self.pattern})"
        work = f", {self.multiply_accumulates} multiply-accumulates" if self.multiply_accumulates else ""
        return f"{time}, bound by {self.bound}; {moved}{work}; {self.division}"

    @property
    def seconds(self) -> float:
        """Simulated time."""
        return max(self.memory_s, self.products_s, self.vector_s)

    @property
    def bound(self) -> Bound:
        """What takes that long."""
        times = {Bound.MEMORY: self.memory_s, Bound.PRODUCTS: self.products_s, Bound.VECTOR: self.vector_s}
        return max(times, key=lambda bound: times[bound])

    @property
    def cause(self) -> Cause:
        """What most of `lost_s` is owed to."""
        if self.bound is Bound.MEMORY:
            return Cause.RESTICKIFY if self.pattern is Pattern.RESTICKIFY else Cause.MEMORY
        if self.division.cores < self.hardware.cores:
            return Cause.UNDERFILLED
        return Cause.PRODUCTS if self.bound is Bound.PRODUCTS else Cause.VECTOR

    def by_core(self) -> list[tuple[Bound, float]]:
        """Of each core with a share, what it computes longest, and for how many seconds."""
        busiest = math.prod(self.division.sizes.values()) or 1
        kind, longest = max(
            ((Bound.PRODUCTS, self.products_s), (Bound.VECTOR, self.vector_s)), key=lambda each: each[1]
        )
        shares = (math.prod(map(len, share.values())) for share in self.division.shares())
        return [(kind, longest * points / busiest) for points in shares]

    @property
    def roofline_s(self) -> float:
        """The least that the card could take: its peak bandwidth and its peak rate of products, on all cores."""
        moved = (self.read + self.written) / self.hardware.peak_bandwidth
        return max(moved, self.multiply_accumulates / (self.hardware.peak_products * self.hardware.cores))

    @property
    def lost_s(self) -> float:
        """Time above the roofline."""
        return self.seconds - self.roofline_s

    @property
    def utilisation(self) -> float:
        """Share of the peak rate of products that is used, in 0 to 1."""
        peak = self.hardware.peak_products * self.hardware.cores * self.seconds
        return self.multiply_accumulates / peak if peak else 0.0


def cost(program: Program, symbols: Bindings, hardware: Hardware = SPYRE) -> Cost:
    """What a launch costs if it is divided as well as it can be. Raises ProgramError for an unbound symbol."""
    extents = iteration_space(program, symbols)
    found = _Costing(program, symbols, extents, hardware)
    # Where several take as long, the one that leaves each core least to do.
    best = min(
        divisions(program, symbols, extents, hardware),
        key=lambda division: (found.seconds(division), found.largest(division)),
    )
    return found.of(best)


def divided(program: Program, symbols: Bindings, division: Division, hardware: Hardware = SPYRE) -> Cost:
    """What a launch costs that is divided like this."""
    return _Costing(program, symbols, division.extents, hardware).of(division)


class _Costing:
    """What the costs of a launch under all divisions have in common."""

    def __init__(self, program: Program, symbols: Bindings, extents: Mapping[str, int], hardware: Hardware) -> None:
        self.hardware = hardware
        touched = footprints(program, symbols, extents, hardware)
        self.read = sum(each.read for each in touched)
        self.written = sum(each.written for each in touched)
        self.pattern = _pattern(program, touched)
        self.memory_s = _memory_s(self.pattern, self.read, self.written, _rows(touched, extents), hardware)
        axes, varies = frozenset(extents), dependencies(program)
        reduction = reduction_axes(program)
        matmuls = [each for each in program.body if isinstance(each, Matmul)]
        self.products = [varies_over(each, varies, axes) | reduced(each, reduction) for each in matmuls]
        fed = {operand for each in matmuls for operand in each.args}
        # What is only made to be multiplied is converted on its way into the array.
        vector = [each for each in program.body if _is_vector(each, fed)]
        self.vector = {
            frozenset(each.axes) if isinstance(each, Store) else varies_over(each, varies, axes) for each in vector
        }
        self.multiply_accumulates = sum(_points(over, extents) for over in self.products)

    def of(self, division: Division) -> Cost:
        return Cost(
            memory_s=self.memory_s,
            products_s=self.products_s(division),
            vector_s=self.vector_s(division),
            read=self.read,
            written=self.written,
            multiply_accumulates=self.multiply_accumulates,
            pattern=self.pattern,
            division=division,
            hardware=self.hardware,
        )

    def seconds(self, division: Division) -> float:
        return max(self.memory_s, self.products_s(division), self.vector_s(division))

    def products_s(self, division: Division) -> float:
        return sum(_points(over, division.sizes) for over in self.products) / self.hardware.products

    def vector_s(self, division: Division) -> float:
        return self.largest(division) / self.hardware.vector_rate

    def largest(self, division: Division) -> int:
        """Points that the core with the largest share visits."""
        return max((_points(over, division.sizes) for over in self.vector), default=0)


def _is_vector(instruction: Instruction, fed: set[str]) -> bool:
    if isinstance(instruction, Compute) and instruction.op.typing is Typing.CONVERT:
        return instruction.result.name not in fed
    return not isinstance(instruction, (Load, Constant, Matmul))


def _points(over: frozenset[str], extents: Mapping[str, int]) -> int:
    return math.prod(extents[axis] for axis in over)


def _pattern(program: Program, touched: list[Footprint]) -> Pattern:
    reduction = reduction_axes(program)
    reads = [each for each in touched if each.read]
    writes = [each for each in touched if each.written]
    if not reads or not writes or any(isinstance(each, Matmul) for each in program.body):
        return Pattern.STREAM
    source = max(reads, key=lambda each: each.read)
    if any(isinstance(each, Reduce) for each in program.body) and not any(each.axes & reduction for each in writes):
        return Pattern.ROWS if source.inner in reduction or source.inner is None else Pattern.CROSS_ROWS
    target = max(writes, key=lambda each: each.written)
    if source.inner and target.inner and source.inner != target.inner:
        return Pattern.RESTICKIFY
    if any(each.axes and each.axes < target.axes for each in reads) and source.axes == target.axes:
        return Pattern.BROADCAST
    return Pattern.STREAM


def _rows(touched: list[Footprint], extents: Mapping[str, int]) -> int:
    """How many rows the largest of what is read has."""
    source = max(touched, key=lambda each: each.read, default=None)
    return 0 if source is None else _points(source.axes - {source.inner}, extents)  # type: ignore[arg-type]


def _memory_s(pattern: Pattern, read: int, written: int, rows: int, hardware: Hardware) -> float:
    if pattern is Pattern.STREAM:
        return (read + written) / hardware.bandwidth + min(read, written) * hardware.turnaround
    rates = {
        Pattern.ROWS: hardware.row_bandwidth(rows),
        Pattern.CROSS_ROWS: hardware.cross_row_bandwidth,
        Pattern.BROADCAST: hardware.broadcast_bandwidth,
        Pattern.RESTICKIFY: hardware.restickify_bandwidth,
    }
    return (read + written) / rates[pattern]
