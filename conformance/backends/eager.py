"""Control backend: the uncompiled CPU run, judged like any other. Whatever fails here is a false alarm of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.backends.compiled import requires, torch_capabilities
from conformance.backends.protocol import PROTOCOL_VERSION


class EagerBackend:
    """Returns the callable as it is."""

    name = "eager"
    protocol_version = PROTOCOL_VERSION
    control = True
    device = "cpu"
    imports = "import torch"
    compile_source = "fn"

    def availability(self) -> tuple[bool, str]:
        return requires(("torch",))

    def capabilities(self) -> dict[str, Any]:
        return torch_capabilities(self.device, notes="not compiled: a control, its failures are false alarms")

    def setup(self) -> None:
        import torch  # noqa: F401

    def compile(self, fn: Callable[..., Any], *, dynamic: bool | None, fullgraph: bool = False) -> Callable[..., Any]:
        return fn

    def reset(self) -> None:
        """Nothing is compiled."""
