"""Control backend: `torch.compile(backend="eager")`, that is, capture alone. Shows breaks and recompiles."""

from __future__ import annotations

from typing import Any

from conformance.backends.compiled import CPU_ACCUMULATION, CPU_DTYPES, CPU_FORMATS, CompiledBackend


class DynamoBackend(CompiledBackend):
    """Dynamo captures the graphs and runs them op by op on the CPU."""

    control = True

    def __init__(self) -> None:
        super().__init__("eager", name="dynamo")

    def capabilities(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "dtypes": CPU_DTYPES,
            "dynamic_shapes": True,
            "backward": True,
            "number_formats": CPU_FORMATS,
            "accumulation": CPU_ACCUMULATION,
            "flushes_subnormals": False,
            "notes": "captures without compiling",
        }
