"""What the extension compiled: which operators reached lowering, which became programs, which stayed external.

The data travel inside the generated module, so that one served from Inductor's caches reports like a fresh one.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Compilation:
    """One generated module. Operators are named `aten::add.Tensor`; counts are occurrences in its graph."""

    lowered: dict[str, int]
    """Operators of the graph that Inductor lowered (after its decompositions and passes)."""
    extern: dict[str, int]
    """Operators that the generated module calls instead of computing them in a program."""
    programs: list[tuple[str, str]]
    """(name, digest) of every program."""
    runs: int = field(default=0)
    """How often the module was called since it was loaded or the list was reset."""

    def ran(self) -> None:
        """Called by the generated module on every run."""
        if not any(known is self for known in compilations):
            # the list was reset since the module was loaded
            self.runs = 0
            compilations.append(self)
        self.runs += 1


compilations: list[Compilation] = []
"""Every compilation that was loaded or run since the last `reset`, in order."""


def reset() -> None:
    """Forget what was compiled so far; a module that runs again reports again."""
    compilations.clear()


def loaded(data: str) -> Compilation:
    """Called by a generated module when it is imported, with what `describe` said of it."""
    fields = json.loads(data)
    programs = [(name, digest) for name, digest in fields["programs"]]
    compilation = Compilation(fields["lowered"], fields["extern"], programs)
    compilations.append(compilation)
    return compilation


def describe(graph: Any, programs: list[tuple[str, str]]) -> dict[str, Any]:
    """The report of a graph that has been lowered and scheduled, as JSON-ready data."""
    lowered = Counter(
        operator_name(node.target) for node in graph.module.graph.nodes if hasattr(node.target, "_schema")
    )
    extern = Counter(_extern_name(operation) for operation in graph.operations if _is_extern(operation))
    return {"lowered": dict(lowered), "extern": dict(extern), "programs": programs}


def operator_name(overload: Any) -> str:
    """`aten::add.Tensor`, `aten::relu.default`."""
    return f"{overload._schema.name}.{overload._overloadname}"


# external to the kernels, but no computation on tensors: transfers, sizes, checks, and state of the host
_NOT_COMPUTATION = {
    "DeviceCopy",
    "DynamicScalar",
    "DynamicSelectStorageOffset",
    "DynamicSliceSize",
    "AssertScalar",
    "RandomSeeds",
    "ResizeStorageBytes",
    "SetSourceTensorKernel",
    "ConcatKernel",
    "NopKernel",
    "MultiOutput",
}


def _is_extern(operation: Any) -> bool:
    from spyre_backend import upstream

    if not isinstance(operation, upstream.ir.ExternKernel) or type(operation).__name__ in _NOT_COMPUTATION:
        return False
    device = operation.get_device()
    return device is None or device.type != "cpu"


def _extern_name(operation: Any) -> str:
    overload = getattr(operation, "op_overload", None)
    if overload is not None and hasattr(overload, "_schema"):
        return operator_name(overload)
    return getattr(operation, "python_kernel_name", None) or type(operation).__name__
