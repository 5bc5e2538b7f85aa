"""Programs that can be launched on tensors."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence

import torch

from spyre_backend import upstream
from spyre_backend.program import Program, ProgramError, loads, verify
from spyre_backend.simulator import checking, counters
from spyre_backend.simulator.binding import BoundProgram
from spyre_backend.simulator.indexing import Number
from spyre_backend.simulator.types import torch_dtype

log = logging.getLogger(__name__)

_BINDINGS_KEPT = 64


class Kernel:
    """A program ready to launch: `kernel(*tensors, *symbol_values)`, in the order that the program declares."""

    def __init__(self, program: Program) -> None:
        """Raises ProgramError where the program is malformed."""
        verify(program)
        self.program = program
        self._bind = functools.lru_cache(maxsize=_BINDINGS_KEPT)(self._bind_uncached)

    def __call__(self, *args: torch.Tensor | Number) -> None:
        count = len(self.program.buffers)
        if len(args) != count + len(self.program.symbols):
            expected = f"{count} tensors and {len(self.program.symbols)} numbers"
            raise ProgramError(f"{self.program.name} takes {expected}, not {len(args)} arguments")
        bound = self.bind(args[count:])  # type: ignore[arg-type]
        if _dry:
            counters.record(bound)
            return
        buffers = {}
        for buffer, tensor in zip(self.program.buffers, args, strict=False):
            alias = host_alias(tensor)  # type: ignore[arg-type]
            if alias.dtype != torch_dtype(buffer.dtype):
                raise ProgramError(f"{self.program.name}: {buffer.name} is {buffer.dtype.value}, not {alias.dtype}")
            buffers[buffer.name] = alias
        with torch.no_grad(), upstream.without_function_modes():
            if checking.DIVISION:
                checking.run_divided(bound, buffers)
            else:
                bound.run(buffers)
        counters.record(bound)
        if any(alias is not tensor for alias, tensor in zip(buffers.values(), args, strict=False)):
            _advance_clock()(bound.cost.seconds)

    def bind(self, symbol_values: Sequence[Number]) -> BoundProgram:
        """The program for these symbol values, which can also tell its traffic without running."""
        return self._bind(tuple(symbol_values))

    def _bind_uncached(self, symbol_values: tuple[Number, ...]) -> BoundProgram:
        with upstream.without_function_modes():
            bound = BoundProgram(self.program, dict(zip(self.program.symbols, symbol_values, strict=True)))
        if log.isEnabledFor(logging.INFO):
            sizes = ", ".join(f"{name}={value}" for name, value in bound.symbols.items())
            log.info("%s(%s): %s", self.program.name, sizes, bound.cost)
        return bound


_dry: list[None] = []


@contextlib.contextmanager
def only_counting() -> Iterator[None]:
    """Launches inside are counted and not run, so that their tensors need no memory. The clock does not move."""
    _dry.append(None)
    try:
        yield
    finally:
        _dry.pop()


@functools.lru_cache(maxsize=4096)
def load(text: str) -> Kernel:
    """The kernel of a serialised program; the same text gives the same kernel."""
    return Kernel(loads(text))


@functools.lru_cache(maxsize=4096)
def of(program: Program) -> Kernel:
    """The kernel of a program; equal programs of one name share it, and what was found out about them."""
    return Kernel(program)


def host_alias(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor on the same memory, with the same sizes, strides and storage offset."""
    return tensor if tensor.device.type == "cpu" else _device_alias()(tensor)


@functools.cache
def _device_alias() -> Callable[[torch.Tensor], torch.Tensor]:
    # imported on first use: a program on CPU tensors needs no device
    from spyre_backend.device import as_cpu

    return as_cpu


@functools.cache
def _advance_clock() -> Callable[[float], None]:
    from spyre_backend.device import clock

    return clock.advance
