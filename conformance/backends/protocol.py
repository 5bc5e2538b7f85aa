"""What a backend provides. Duck-typed and plain data, so that a backend package imports nothing of this one.

A backend that lacks an optional member is complete; what it does not say is reported as unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import msgspec

PROTOCOL_VERSION = 1


class BackendError(ValueError):
    """A backend cannot be found, made or set up. One line that says which, why, and what would be right."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a backend declares; `None` means that it does not say. `Backend.capabilities()` returns it as a dict.

    `dtypes` are torch names (`float16`). `number_formats` and `accumulation` map a dtype to the format in which the
    backend stores values and accumulates sums: `fp64 fp32 tf32 fp16 bf16 dl16 fp8_e4m3 fp8_e5m2`.
    """

    device: str
    dtypes: tuple[str, ...] | None = None
    dynamic_shapes: bool | None = None
    backward: bool | None = None
    number_formats: dict[str, str] = {}
    accumulation: dict[str, str] = {}
    flushes_subnormals: bool | None = None
    notes: str = ""


class Observation(msgspec.Struct, kw_only=True):
    """What really ran inside a `Backend.observe()` block. `None`: the backend cannot tell."""

    kernels: int | None = None  # launches of the backend's own generated kernels
    custom_kernels: dict[str, int] | None = None  # launches of hand-written kernels, by name
    fallbacks: dict[str, int] | None = None  # host fallbacks, by `aten::name.overload`
    lowered: dict[str, int] | None = None  # overloads that reached the backend's lowering, after decomposition
    transfers: int | None = None  # copies between host and device inside the block
    bytes_moved: int | None = None
    device_s: float | None = None  # seconds by the device's own clock, compilation aside; simulated if the device is
    traced: list[str] | None = None  # calls in what was compiled, each a text of `conformance.signatures`
    notes: dict[str, str] = {}  # whatever else the backend has to say about this block


@runtime_checkable
class Backend(Protocol):
    """Protocol version 1. Only these members are required."""

    name: str
    protocol_version: int
    device: str  # inputs are moved here
    imports: str  # source lines that a repro script needs, e.g. "import torch\nimport spyre_backend"
    compile_source: str  # a template for repro scripts: 'torch.compile(fn, backend="inductor", dynamic={dynamic})'

    def availability(self) -> tuple[bool, str]:
        """Whether it can run here and why not, or which version; imports nothing heavy."""
        ...

    def capabilities(self) -> dict[str, Any]:
        """The fields of `Capabilities` as a dict."""
        ...

    def setup(self) -> None:
        """Import and register what is needed; called once in each process that runs cases."""
        ...

    def compile(self, fn: Callable[..., Any], *, dynamic: bool | None, fullgraph: bool = False) -> Callable[..., Any]:
        """The callable to judge."""
        ...


class ObservingBackend(Backend, Protocol):
    """Optional members."""

    version: str
    control: bool  # a control of the suite itself: nobody is asked whose its failures are
    fork_safe: bool  # a process in which `setup` has run may be forked; default: only where the device is the CPU

    def begin(self, sample_id: str, *, calls: int = 1) -> None:
        """Called before `compile` with the sample that follows and how often the compiled callable will be called."""
        ...

    def observe(self) -> AbstractContextManager[dict[str, Any]]:
        """Yields a dict that is filled with the fields of `Observation` when the block ends."""
        ...

    def reset(self) -> None:
        """Forget compiled state between cases; default `torch._dynamo.reset()`."""
        ...

    def unsupported(self, error: BaseException) -> bool:
        """Whether this exception is a clear refusal rather than a bug."""
        ...

    def generated(self) -> dict[str, str]:
        """Name -> text of each program that was generated since `reset`, for `conformance explain`."""
        ...

    def environment(self) -> dict[str, str]:
        """Environment variables to set before torch is imported in the child, e.g. single-threaded compile."""
        ...
