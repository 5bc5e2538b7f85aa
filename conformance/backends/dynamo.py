"""Control backend: `torch.compile(backend="eager")`, that is, capture alone. Shows breaks and recompiles."""

from __future__ import annotations

from typing import Any

from conformance.backends.compiled import CompiledBackend, torch_capabilities


class DynamoBackend(CompiledBackend):
    """Dynamo captures the graphs and runs them op by op on the CPU."""

    control = True
    only_captures = True  # so that a sample that is over its budget of recompiles can stop there

    def __init__(self) -> None:
        super().__init__("eager", name="dynamo")

    def capabilities(self) -> dict[str, Any]:
        return torch_capabilities(self.device, notes="captures without compiling")
