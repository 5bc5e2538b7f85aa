"""What the tests of both compilers share: compile on the device, compare with the CPU, see what really ran."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import spyre_backend
from spyre_backend import report
from spyre_backend.simulator import Observation, observe


def to_device(values: Any) -> Any:
    """Copies on the device, which require gradients where the originals do."""
    return tree_map(
        lambda v: v.detach().to("spyre").requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v, values
    )


def to_host(values: Any) -> Any:
    return tree_map(lambda v: v.detach().cpu() if isinstance(v, torch.Tensor) else v, values)


def _strides(values: Any) -> list[tuple[int, ...]]:
    return [value.stride() for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


@dataclass
class Ran:
    """One call of a compiled function on the device."""

    result: Any
    launches: Observation
    compilations: list[report.Compilation]

    @property
    def extern(self) -> dict[str, int]:
        return {name: count for one in self.compilations for name, count in one.extern.items()}

    @property
    def lowered(self) -> set[str]:
        return {name for one in self.compilations for name in one.lowered}


class OnDevice:
    """Compiles functions for the device and compares them with uncompiled runs on the CPU."""

    def __init__(self, backend: str = "inductor", **options: Any) -> None:
        self.backend, self.options = backend, options or None

    def compile(self, fn: Callable[..., Any], *, dynamic: bool = False) -> Callable[..., Ran]:
        compiled = torch.compile(fn, backend=self.backend, dynamic=dynamic, fullgraph=True, options=self.options)

        @functools.wraps(fn)
        def call(*args: Any) -> Ran:
            report.reset()
            with observe() as launches:
                result = compiled(*args)
            return Ran(result, launches, list(report.compilations))

        return call

    def check(self, fn: Callable[..., Any], *args: Any, dynamic: bool = False, **tolerance: float) -> Ran:
        """`fn` compiled on the device gives what it gives on the CPU, also in its arguments if it changes them."""
        host = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, args)
        device = to_device(args)
        ran = self.compile(fn, dynamic=dynamic)(*device)
        expected = fn(*host)
        assert all(v.device.type == "spyre" for v in tree_leaves(ran.result) if isinstance(v, torch.Tensor))
        # a copy on the host of what has gaps has none
        assert _strides(ran.result) == _strides(expected)
        close = functools.partial(torch.testing.assert_close, equal_nan=True, **tolerance)
        close(to_host(ran.result), expected)
        close(to_host(device), to_host(host))
        return ran

    def native(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Ran:
        """`check`, and nothing but programs ran: no external call, and no operator on the host."""
        ran = self.check(fn, *args, **options)
        assert ran.extern == {}
        assert ran.launches.launches > 0
        dynamic = options.get("dynamic", False)
        compiled = torch.compile(fn, backend=self.backend, dynamic=dynamic, fullgraph=True, options=self.options)
        fresh = to_device(args)
        with spyre_backend.count_fallbacks() as fallbacks:
            compiled(*fresh)
        assert dict(fallbacks) == {}
        return ran
