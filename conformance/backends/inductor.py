"""Upstream Inductor on an in-tree device: its C++/OpenMP path on `cpu`, its Triton path on `cuda` and `xpu`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from conformance.backends.compiled import (
    CompiledBackend,
    compile_source,
    cxx_compiler,
    requires,
    torch_capabilities,
)
from conformance.backends.protocol import BackendError


class InductorBackend(CompiledBackend):
    """`torch.compile(backend="inductor")`, with two of Inductor's own hooks to see what it lowered.

    The graph cache is off unless the options say otherwise, because a graph that comes out of the cache was not lowered
    and says nothing about how; the cache of compiled C++ stays on.
    """

    def __init__(self, device: str = "cpu", options: Mapping[str, Any] | None = None) -> None:
        name = "inductor" if device == "cpu" else f"inductor-{device.partition(':')[0]}"
        super().__init__("inductor", options=options, device=device, name=name)
        self.compile_source = compile_source("inductor", options)

    @property
    def kind(self) -> str:
        """The type of the device, without its index."""
        return self.device.partition(":")[0]

    def availability(self) -> tuple[bool, str]:
        ok, detail = requires(("torch",) if self.kind == "cpu" else ("torch", "triton"))
        if not ok or self.kind != "cpu":
            return ok, detail
        found, compiler = cxx_compiler()
        return found, f"{detail}, {compiler}" if found else compiler

    def capabilities(self) -> dict[str, Any]:
        # What a GPU's kernels do to subnormals depends on its generation.
        return torch_capabilities(self.device, flushes_subnormals=False if self.kind == "cpu" else None)

    def setup(self) -> None:
        """Raises `BackendError` where there is no such device."""
        super().setup()
        if self.kind != "cpu":
            import torch

            try:
                present = torch.get_device_module(self.kind).is_available()
            except (RuntimeError, AttributeError):
                present = False
            if not present:
                raise BackendError(f"backend {self.name!r}: torch {torch.__version__} sees no {self.kind} device here")

    @cached_property
    def probe(self) -> Any:
        """Imported late, because it imports torch."""
        from conformance.observe import InductorProbe

        return InductorProbe()

    def compile_options(self) -> dict[str, Any]:
        return {"fx_graph_cache": False, **self.probe.options, **(self.options or {})}

    def observe(self) -> AbstractContextManager[dict[str, Any]]:
        return self.probe.observe()

    def environment(self) -> dict[str, str]:
        """One compile thread: the sweep itself is parallel, and a pool of compilers per worker is not."""
        return {"TORCHINDUCTOR_COMPILE_THREADS": os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "1")}
