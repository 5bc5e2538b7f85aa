"""Tensors of a graph that is being compiled: what computes an element of them, and where they lie once in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spyre_backend.program import DType
from spyre_backend.sendnn.block import compute_dtype
from spyre_backend.sendnn.index import Index

if TYPE_CHECKING:
    from spyre_backend.sendnn.block import Block
    from spyre_backend.sendnn.graph import Graph

At = Callable[["Block", Index], str]
"""What records the instructions that compute the element at a position, and returns the name of its value."""


@dataclass(frozen=True, eq=False)
class Memory:
    """A tensor in device memory: strides and offset in elements of `dtype`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class Traits:
    """What decides whether an expression is worth computing again, and with what it can be in one program."""

    loads: frozenset[Memory] = frozenset()
    depth: int = 0  # instructions of arithmetic
    rows: frozenset[tuple[int, int]] = (
        frozenset()
    )  # reduced dimensions, counted from the last one (-1), and their sizes
    reduces: bool = False
    multiplies: bool = False  # a matrix product is part of it

    def __or__(self, other: Traits) -> Traits:
        return Traits(
            self.loads | other.loads,
            self.depth + other.depth,
            self.rows | other.rows,
            self.reduces or other.reduces,
            self.multiplies or other.multiplies,
        )


@dataclass(eq=False)
class Tensor:
    """A result in the graph. `at` computes an element anew wherever it is needed, unless it has `memory`.

    What has memory is `ready` once there is a program that has written it, before whatever is recorded next.
    """

    shape: tuple[int, ...]
    dtype: DType
    at: At
    traits: Traits = field(default_factory=Traits)
    graph: Graph | None = None
    origin: str = ""
    memory: Memory | None = None
    ready: bool = False
    base: Tensor | None = None  # that it is a view of

    @property
    def compute_dtype(self) -> DType:
        """The dtype of its values while they are computed with."""
        return compute_dtype(self.dtype)

    @property
    def traits_here(self) -> Traits:
        """Its traits for who uses it: those of a load, if it or what it is a view of has memory."""
        if self.memory is not None:
            return Traits(loads=frozenset({self.memory}))
        return self.traits if self.base is None else replace(self.base.traits_here, rows=self.traits.rows)

    def read(self, block: Block, index: Index) -> str:
        """The value of an element, computed or loaded."""
        if self.memory is None:
            return self.at(block, index)
        if not self.ready:
            assert self.graph is not None
            value = self.graph.demand(block, self, index)
            if value is not None:
                return value
        return block.load(self.memory, index)


def in_memory(memory: Memory) -> Tensor:
    """What lies there already."""
    return Tensor(
        memory.shape,
        memory.dtype,
        lambda block, index: block.load(memory, index),
        Traits(loads=frozenset({memory})),
        memory=memory,
        ready=True,
    )


def joined(tensors: Sequence[Tensor]) -> Traits:
    """The traits of what is computed from them."""
    found = Traits()
    for tensor in tensors:
        found = found | tensor.traits_here
    return found


def never(block: Block, index: Index) -> str:
    """The `at` of what a program writes as a whole, and nobody computes element by element."""
    raise AssertionError("it is in memory")
