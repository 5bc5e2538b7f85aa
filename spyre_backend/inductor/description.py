"""What a graph that Inductor lowers becomes, as data for its report."""

from collections import Counter
from typing import Any

from spyre_backend.report import operator_name


def describe(graph: Any, programs: list[tuple[str, str]]) -> dict[str, Any]:
    """The report of a graph that has been lowered and scheduled, as JSON-ready data."""
    lowered = Counter(
        operator_name(node.target) for node in graph.module.graph.nodes if hasattr(node.target, "_schema")
    )
    extern = Counter(_extern_name(operation) for operation in graph.operations if _is_extern(operation))
    return {"lowered": dict(lowered), "extern": dict(extern), "programs": programs}


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
