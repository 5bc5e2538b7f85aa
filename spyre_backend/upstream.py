"""Every private symbol of torch that the backend touches, each with the reason. This is what the drift check reads.

Code elsewhere in the package takes them from here. Branch on features, never on version numbers.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import torch

_F = TypeVar("_F", bound=Callable[..., object])

# ---- begin: device -------------------------------------------------------------------------------

# The name that PrivateUse1 has before any package has renamed it: upstream has no constant for it.
UNNAMED_PRIVATEUSE1 = "privateuseone"

# Which package's device this process already has: nothing public tells.
privateuse1_name: Callable[[], str] = torch._C._get_privateuse1_backend_name

# Documented in `rename_privateuse1_backend` as the way to provide `torch.<device>`, but named as private.
register_device_module: Callable[[str, ModuleType], None] = torch._register_device_module

# Streams are rebuilt from ids with the device type's number; the enum is exported only here.
PRIVATEUSE1_DEVICE_TYPE: int = torch._C._autograd.DeviceType.PrivateUse1.value


# What the device does inside a launch is not the caller's to change: neither a default device nor another function mode
# of theirs applies to it. Publicly, modes can be added to those in force, but not left out.
without_function_modes: Callable[[], contextlib.AbstractContextManager[None]] = torch._C.DisableTorchFunction  # type: ignore[assignment]


def fake_tensors() -> contextlib.AbstractContextManager[Any]:
    """Tensors made inside have sizes and a device, but no memory: documented, in a module that is named as private."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode: contextlib.AbstractContextManager[Any] = FakeTensorMode(allow_non_fake_inputs=True)
    return mode


def dynamo_is_loaded() -> bool:
    """Whether Dynamo has been imported already; asking must not import it."""
    return "torch._dynamo" in sys.modules


def inductor_is_loaded() -> bool:
    """Whether Inductor may have looked for extensions already, which it does once, when it first compiles."""
    return "torch._inductor.codegen.common" in sys.modules


def dynamo_device_interfaces() -> ModuleType:
    """`register_interface_for_device` and its base class: the only way to tell Dynamo about an out-of-tree device."""
    import torch._dynamo.device_interface

    return torch._dynamo.device_interface


def untraced(function: _F) -> _F:
    """Dynamo does not look into `function` but breaks the graph at it.

    The mark that `torch._disable_dynamo` leads to, set without its wrapper, which imports Dynamo on the first call.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    # the mark only stops tracing into a call; a frame reached in another way is skipped by its code object
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = f"torch.spyre.{function.__name__} acts on the device, not on tensors"  # type: ignore[attr-defined]
    return function


def constant_in_dynamo(function: _F) -> _F:
    """Dynamo calls `function` while tracing and keeps its result: the mark that `assume_constant_result` sets."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# ---- end: device ---------------------------------------------------------------------------------

# ---- begin: inductor -----------------------------------------------------------------------------------------------

# Imported on first use, so that the device and the simulator work in a process that never imports torch._inductor.
# Name here -> module, attribute. Each line says why the backend needs it.

_LAZY: dict[str, tuple[str, str]] = {
    # base classes of the extension: scheduling, kernel, wrapper, op handler proxy
    "SIMDScheduling": ("torch._inductor.codegen.simd", "SIMDScheduling"),
    "SIMDKernel": ("torch._inductor.codegen.simd", "SIMDKernel"),
    "PythonWrapperCodegen": ("torch._inductor.codegen.wrapper", "PythonWrapperCodegen"),
    "SubgraphPythonWrapperCodegen": ("torch._inductor.codegen.wrapper", "SubgraphPythonWrapperCodegen"),
    "CSEProxy": ("torch._inductor.codegen.common", "CSEProxy"),
    "DeviceOpOverrides": ("torch._inductor.codegen.common", "DeviceOpOverrides"),
    "CustomGraphModulePass": ("torch._inductor.custom_graph_pass", "CustomGraphModulePass"),
    # values of a kernel and their bookkeeping
    "CSE": ("torch._inductor.codegen.common", "CSE"),
    "CSEVariable": ("torch._inductor.codegen.common", "CSEVariable"),
    "is_buffer_removed": ("torch._inductor.codegen.common", "is_buffer_removed"),
    "reduction_num_outputs": ("torch._inductor.utils", "reduction_num_outputs"),
    "index_symbol": ("torch._inductor.utils", "sympy_index_symbol"),
    "FloorDiv": ("torch.utils._sympy.functions", "FloorDiv"),
    "Identity": ("torch.utils._sympy.functions", "Identity"),
    "ValueRanges": ("torch.utils._sympy.value_ranges", "ValueRanges"),
    "OpsWrapper": ("torch._inductor.virtualized", "OpsWrapper"),
    "OrderedSet": ("torch.utils._ordered_set", "OrderedSet"),
    # the state of the compilation in progress
    "V": ("torch._inductor.virtualized", "V"),
    "ops": ("torch._inductor.virtualized", "ops"),
    # registration of a device
    "BackendFeature": ("torch._inductor.codegen.common", "BackendFeature"),
    "register_backend_for_device": ("torch._inductor.codegen.common", "register_backend_for_device"),
    "register_device_op_overrides": ("torch._inductor.codegen.common", "register_device_op_overrides"),
    # decisions that are configured per process upstream, and per kernel here
    "inductor_config": ("torch._inductor", "config"),
    # lowerings: the table of upstream and the helpers that build its IR
    "lowerings": ("torch._inductor.lowering", "lowerings"),
    "lowering": ("torch._inductor", "lowering"),
    "ir": ("torch._inductor", "ir"),
}


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _LAZY[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    found = getattr(importlib.import_module(module), attribute)
    globals()[name] = found
    return found


def _upstream(name: str) -> Any:
    return globals().get(name) or __getattr__(name)


def statically_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal for every value of the symbols in them, as far as Inductor knows."""
    return a == b or _upstream("V").graph.sizevars.statically_known_equals(a, b)


def statically_multiple(a: Any, b: Any) -> bool:
    """Whether `a` is a multiple of `b`, as far as Inductor knows."""
    return _upstream("V").graph.sizevars.statically_known_multiple_of(a, b)


def exact_quotient(a: Any, b: Any) -> Any:
    """`a / b` for a known multiple."""
    return _upstream("V").graph.sizevars.simplify(_upstream("FloorDiv")(a, b))


def size_hint(size: Any) -> int:
    """A plausible value of a symbolic size, to order sizes by; any value keeps the result right."""
    sizevars = _upstream("V").graph.sizevars
    hint = getattr(sizevars, "optimization_hint", None) or sizevars.size_hint
    return hint(size, fallback=8192)


def is_value_symbol(symbol: Any) -> bool:
    """Whether a sympy symbol stands for a value that the kernel computed (an indirect index)."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    return symbol_is_type(symbol, SymT.TMP)


def unknown_bounds() -> Any:
    """The value range that says nothing."""
    return _upstream("ValueRanges").unknown()


def unwrap_ops_value(value: Any) -> Any:
    """The kernel's variable behind the wrapper that gives it operators."""
    return _upstream("OpsWrapper")._unwrap(value)


def set_ops_handler(handler: Any) -> contextlib.AbstractContextManager[Any]:
    """Make `handler` the meaning of `ops.*`."""
    return _upstream("V").set_ops_handler(handler)


def graph_dtype(name: str) -> torch.dtype:
    """The dtype in memory of a buffer of the graph that is being compiled."""
    return _upstream("V").graph.get_dtype(name)


def fused_kernel_name(node_schedule: Any) -> str:
    """The descriptive part of a kernel's name: the operators that it came from."""
    from torch._inductor.utils import get_fused_kernel_name

    return get_fused_kernel_name(node_schedule, "original_aten")


def without_coalescing_analysis() -> contextlib.AbstractContextManager[Any]:
    """Skip the analysis of memory coalescing, which chooses tilings that are not used here."""
    config = _upstream("inductor_config")
    if hasattr(config.triton, "coalesce_tiling_analysis"):
        return config.patch({"triton.coalesce_tiling_analysis": False})
    return contextlib.nullcontext()


def sorts_of_any_size() -> contextlib.AbstractContextManager[Any]:
    """Lower sorts, and what is made of them, to Inductor's own sort, whatever the size of the dimension."""
    config = _upstream("inductor_config")
    if hasattr(config.triton, "decompose_sort_ops"):
        return config.patch({"triton.decompose_sort_ops": True})
    return contextlib.nullcontext()


def trace(function: Callable[..., Any], values: list[Any]) -> Any:
    """The graph of `function` on fake `values` of the compilation in progress, with Inductor's decompositions."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    with _upstream("V").fake_mode, torch.no_grad():
        return make_fx(function, decomposition_table=select_decomp_table())(*values)


def layout_constraints() -> dict[Any, Any]:
    """Operator -> what upstream does to the layouts of its operands before the lowering runs."""
    return _upstream("lowering")._maybe_layout_constraints


def current_output_size() -> list[Any]:
    """The size, as sympy expressions, of the result of the operator that is being lowered."""
    value = _upstream("V").graph.current_node.meta["val"]
    return [size.node.expr if isinstance(size, torch.SymInt) else size for size in value.shape]


def current_output_strides() -> list[list[Any]]:
    """The strides, as sympy expressions, of each result of the operator that is being lowered; none for no tensor."""
    value = _upstream("V").graph.current_node.meta["val"]
    results = value if isinstance(value, (tuple, list)) else (value,)
    return [
        [stride.node.expr if isinstance(stride, torch.SymInt) else stride for stride in result.stride()]
        if isinstance(result, torch.Tensor)
        else []
        for result in results
    ]


def guarded_ints(sizes: Any) -> list[int]:
    """Sizes as plain integers; the compiled graph then serves these values only."""
    sizevars = _upstream("V").graph.sizevars
    return [size if isinstance(size, int) else sizevars.guard_int(size) for size in sizes]


# ---- end: inductor -------------------------------------------------------------------------------------------------

# ---- begin: sendnn -------------------------------------------------------------------------------------------------


def aot_module(
    module: Any,
    inputs: Any,
    forwards: Callable[..., Any],
    backwards: Callable[..., Any],
    decompositions: dict[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """AOTAutograd over a graph of Dynamo's: documented for custom backends, in a module that is named as private."""
    from torch._dynamo.backends.common import aot_autograd

    compiler = aot_autograd(
        fw_compiler=forwards,
        bw_compiler=backwards,
        inference_compiler=forwards,
        decompositions=decompositions,
        keep_inference_input_mutations=False,
    )
    compiled: Callable[..., Any] = compiler(module, inputs)
    return compiled


def boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as AOTAutograd calls it, with a list that it may empty: only this module says how."""
    from torch._functorch.aot_autograd import make_boxed_func

    made: Callable[..., Any] = make_boxed_func(function)
    return made


def fake_inputs(values: Any) -> list[Any]:
    """Tensors of the same plain sizes without memory, which a graph can be traced with; numbers as they are."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(static_shapes=True)
    return [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in values]


def register_dynamo_backend(function: Callable[..., Any], name: str) -> None:
    """Make a backend known by name: documented for custom backends, in a module that is named as private."""
    from torch._dynamo import register_backend

    register_backend(compiler_fn=function, name=name)


def dynamo_backends() -> list[str]:
    """The names that are taken."""
    from torch._dynamo import list_backends

    names: list[str] = list_backends(None)
    return names


# ---- end: sendnn ---------------------------------------------------------------------------------------------------
