"""What a compiled graph does when it runs: launches and, where they were asked for, calls on the host, in memory that
was planned when it was compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from spyre_backend.hardware import SPYRE
from spyre_backend.report import Compilation
from spyre_backend.sendnn.tensors import Memory
from spyre_backend.simulator.kernel import Kernel
from spyre_backend.simulator.types import torch_dtype


@dataclass(frozen=True)
class Launch:
    """A program, and the memory that it is launched on."""

    kernel: Kernel
    arguments: tuple[Memory, ...]
    written: tuple[Memory, ...]

    def run(self, tensors: Mapping[Memory, torch.Tensor]) -> None:
        self.kernel(*(tensors[memory] for memory in self.arguments))


@dataclass(frozen=True)
class HostCall:
    """An operator of PyTorch, called in eager mode, and where its results go."""

    function: Callable[..., Any]
    make_arguments: Callable[[Callable[[Memory], torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]
    arguments: tuple[Memory, ...]
    written: tuple[Memory, ...]

    def run(self, tensors: Mapping[Memory, torch.Tensor]) -> None:
        args, kwargs = self.make_arguments(tensors.__getitem__)
        results = self.function(*args, **kwargs)
        for memory, result in zip(
            self.written, results if isinstance(results, (tuple, list)) else [results], strict=True
        ):
            tensors[memory].copy_(result)


Step = Launch | HostCall


@dataclass(frozen=True)
class Alias:
    """A result that is a view of what lies in memory: sizes, strides and where it begins there, in elements."""

    memory: Memory
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The view."""
        return tensor.as_strided(self.shape, self.strides, tensor.storage_offset() + self.offset)


@dataclass(frozen=True)
class Place:
    """A part of the pool, in bytes."""

    start: int
    size: int


@dataclass
class Plan:
    """A graph, compiled for one set of sizes."""

    inputs: list[Memory | None]  # None: a number
    steps: list[Step]
    outputs: list[Memory | Alias | int | float | bool | None]
    constants: dict[Memory, torch.Tensor]
    device: torch.device
    compilation: Compilation
    places: dict[Memory, Place] = field(default_factory=dict)
    pool: int = 0  # bytes

    def __post_init__(self) -> None:
        self._leaving = list(dict.fromkeys(memory for each in self.outputs if (memory := leaves(each)) is not None))
        self.places, self.pool = place(self.steps, set(self._leaving))

    def __call__(self, *args: Any) -> list[Any]:
        """Run on tensors of the sizes that it was compiled for."""
        self.compilation.ran()
        self.constants = {memory: self._here(value) for memory, value in self.constants.items()}
        tensors: dict[Memory, torch.Tensor] = dict(self.constants)
        given = zip(self.inputs, args, strict=True)
        tensors.update((memory, self._here(arg)) for memory, arg in given if memory is not None)
        if self.places:
            pool = torch.empty(self.pool, dtype=torch.uint8, device=self.device)
            for memory, at in self.places.items():
                part = pool[at.start : at.start + nbytes(memory)].view(torch_dtype(memory.dtype))
                tensors[memory] = part.as_strided(memory.shape, memory.strides)
        for output in self._leaving:
            if output not in tensors:
                dtype = torch_dtype(output.dtype)
                tensors[output] = torch.empty_strided(output.shape, output.strides, dtype=dtype, device=self.device)
        for step in self.steps:
            step.run(tensors)
        return [
            each.of(tensors[each.memory])
            if isinstance(each, Alias)
            else tensors[each]
            if isinstance(each, Memory)
            else each
            for each in self.outputs
        ]

    def _here(self, value: torch.Tensor) -> torch.Tensor:
        """The tensor on the device: numbers and constants may be the host's."""
        return value if value.device.type == self.device.type else value.to(self.device)


def leaves(output: Any) -> Memory | None:
    """The memory that a result of a plan is in."""
    return output.memory if isinstance(output, Alias) else output if isinstance(output, Memory) else None


def nbytes(memory: Memory) -> int:
    """Bytes from its first to its last element."""
    if not math.prod(memory.shape):
        return 0
    last = sum((size - 1) * stride for size, stride in zip(memory.shape, memory.strides, strict=True))
    return (last + 1) * memory.dtype.itemsize


def place(steps: Sequence[Step], outputs: set[Memory]) -> tuple[dict[Memory, Place], int]:
    """Where each intermediate lies in one pool, and the size of that.

    An intermediate has its place from the step that writes it to the last that reads it. In the order of the steps each
    takes the smallest gap that it fits into: best fit, in whole sticks.
    """
    last = {memory: number for number, step in enumerate(steps) for memory in step.arguments}
    taken: dict[Memory, Place] = {}
    places: dict[Memory, Place] = {}
    for number, step in enumerate(steps):
        for memory in step.written:
            if memory not in outputs and memory not in places:
                size = math.ceil(max(nbytes(memory), 1) / SPYRE.stick) * SPYRE.stick
                places[memory] = taken[memory] = _gap(sorted(taken.values(), key=lambda each: each.start), size)
        taken = {memory: at for memory, at in taken.items() if last.get(memory, number) > number}
    return places, max((at.start + at.size for at in places.values()), default=0)


def _gap(taken: Sequence[Place], size: int) -> Place:
    best: Place | None = None
    start = 0
    for each in taken:
        room = each.start - start
        if room >= size and (best is None or room < best.size):
            best = Place(start, room)
        start = max(start, each.start + each.size)
    return Place(best.start if best else start, size)
