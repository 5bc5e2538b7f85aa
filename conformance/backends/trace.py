"""Control backend that reads what models are made of: each graph, decomposed into core ATen, call by call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from conformance.backends.compiled import CompiledBackend, torch_capabilities


class TraceBackend(CompiledBackend):
    """AOTAutograd functionalises and decomposes the graphs and PyTorch runs them op by op on the CPU, without a
    compiler behind it. The signatures of all calls go into the run."""

    control = True

    def __init__(self) -> None:
        super().__init__("aot_eager", name="trace")  # for a repro script the nearest that has a name

    def capabilities(self) -> dict[str, Any]:
        return torch_capabilities(self.device, notes="captures and decomposes without compiling")

    @cached_property
    def trace(self) -> Any:
        """Imported late, because it imports torch."""
        from conformance.tracing import Trace

        return Trace()

    def setup(self) -> None:
        super().setup()
        from conformance import observe

        self.target = observe.capturing(self.trace.add)

    def compile(self, fn: Callable[..., Any], *, dynamic: bool | None, fullgraph: bool = False) -> Callable[..., Any]:
        import torch

        return torch.compile(fn, backend=self.target, dynamic=dynamic, fullgraph=fullgraph)

    @contextmanager
    def observe(self) -> Iterator[dict[str, Any]]:
        """Yields a dict that is filled when the block ends with the signatures of the graphs captured in it."""
        self.trace.clear()
        seen: dict[str, Any] = {}
        try:
            yield seen
        finally:
            unread = ", ".join(f"{count} with {why}" for why, count in sorted(self.trace.unread.items()))
            seen["traced"] = list(self.trace.texts)
            seen["notes"] = {"calls without a signature": unread}
