"""What really happened while something was compiled and run: graphs, breaks, recompiles, time by stage, memory.

Reads counters that Dynamo, AOTAutograd and Inductor keep anyway, before and after; patches nothing, registers nothing
global and changes nothing that is compiled.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

# Private: the counters below are where Dynamo itself keeps what `TORCH_LOGS` and its compile reports print.
import torch._dynamo.utils as dynamo_utils

# Private: Inductor's counter of generated kernels, its settings, and its documented base classes for custom passes.
import torch._inductor.config as inductor_config
import torch._inductor.metrics as inductor_metrics
from torch._inductor.custom_graph_pass import CustomGraphPass, CustomSchedulerPass

# Private by its package name only: the way to see what eager dispatches to.
from torch.utils._python_dispatch import TorchDispatchMode

from conformance import trees
from conformance.backends.protocol import Backend, BackendError, Observation
from conformance.outcomes import Stage
from conformance.records import GraphBreak, Recompile
from conformance.seen import Seen

__all__ = [
    "InductorProbe",
    "capturing",
    "dispatched_calls",
    "eager_ops",
    "is_operator",
    "mark_dynamic",
    "observe",
    "out_of_tree_device",
    "symbol_hint",
    "symbolic",
    "written_graph",
]

TORCH = str(Path(torch.__file__).parent) + os.sep

# Private by its package name only: documented as the way to say that a size varies.
mark_dynamic = torch._dynamo.mark_dynamic


@contextlib.contextmanager
def observe(backend: Backend) -> Iterator[Seen]:
    """Watch one sample on `backend`. The yielded `Seen` is complete when the block ends, also by an exception."""
    seen = Seen()
    own: Mapping[str, Any] = {}
    before = _snapshot()
    _reset_peak_memory(backend.device)
    try:
        with contextlib.ExitStack() as stack:
            if hasattr(backend, "observe"):
                own = stack.enter_context(backend.observe())
            yield seen
    finally:
        _fill_from_dynamo(seen, before)
        _fill_from_backend(seen, backend, own)
        seen.peak_memory, seen.device_peak_memory = _peak_memory(backend.device)


# --- counters ---------------------------------------------------------------------------------------------------------


class _Snapshot(msgspec.Struct):
    breaks: int
    break_counts: dict[str, int]
    last_metrics: Any
    timed: dict[str, int]
    counts: dict[tuple[str, str], int]


COUNTED = (
    ("stats", "unique_graphs"),
    ("inductor", "fxgraph_cache_hit"),
    ("inductor", "fxgraph_cache_miss"),
    ("aot_autograd", "autograd_cache_hit"),
    ("aot_autograd", "autograd_cache_miss"),
)


def _snapshot() -> _Snapshot:
    metrics = dynamo_utils.get_compilation_metrics()
    counters = dynamo_utils.counters
    timed = dynamo_utils.compilation_time_metrics
    return _Snapshot(
        breaks=len(dynamo_utils.graph_break_reasons),
        break_counts=dict(counters["graph_break"]),
        last_metrics=metrics[-1] if metrics else None,
        timed={"create_aot_dispatcher_function": len(timed.get("create_aot_dispatcher_function", ()))},
        counts={key: counters[key[0]][key[1]] for key in COUNTED},
    )


def _fill_from_dynamo(seen: Seen, before: _Snapshot) -> None:
    counters = dynamo_utils.counters
    delta = {key: max(0, counters[key[0]][key[1]] - before.counts[key]) for key in COUNTED}
    metrics = _new_metrics(before.last_metrics)
    frames = [item for item in metrics if item.is_forward is not False and not item.is_runtime]
    # A restarted analysis calls the backend twice for one graph, and counts twice in `unique_graphs`; the metrics of a
    # frame are written once. They are a bounded queue, so beyond its length the counter is all there is.
    whole = len(metrics) < dynamo_utils.DEFAULT_COMPILATION_METRICS_LIMIT
    completed = sum(1 for item in frames if item.graph_op_count and item.fail_type is None)
    seen.graphs = completed if whole else delta["stats", "unique_graphs"]
    seen.breaks = _breaks(before)
    seen.recompiles = _recompiles(frames)
    limits = {item.fail_reason.splitlines()[0] for item in frames if "ecompile limit" in (item.fail_reason or "")}
    if limits:
        seen.notes["recompile limit"] = "; ".join(sorted(limits))
    # A hit of AOTAutograd's cache loads its graphs through Inductor's, which may count them as hits once more.
    hits = max(delta["aot_autograd", "autograd_cache_hit"], delta["inductor", "fxgraph_cache_hit"])
    misses = delta["inductor", "fxgraph_cache_miss"]
    if hits or misses or delta["aot_autograd", "autograd_cache_miss"]:
        seen.cache_hits, seen.cache_misses = hits, misses
    if metrics:
        seen.compile_s = sum(item.duration_us or 0 for item in metrics) / 1e6
        seen.compile_stages_s = _stages(metrics, before)


def _new_metrics(last: Any) -> list[Any]:
    found: list[Any] = []
    for item in reversed(dynamo_utils.get_compilation_metrics()):
        if item is last:
            break
        found.append(item)
    return found[::-1]


def _stages(metrics: list[Any], before: _Snapshot) -> dict[str, float]:
    """Exclusive seconds by stage. Upstream's timings nest: Dynamo ⊃ backend ⊃ Inductor ⊃ code generation.

    `backend` is the time in a backend that is not Inductor, less AOTAutograd where it uses that.
    """

    def total(field: str) -> float:
        return sum(getattr(item, field, None) or 0 for item in metrics) / 1e6

    dynamo, backend = total("dynamo_cumulative_compile_time_us"), total("aot_autograd_cumulative_compile_time_us")
    lazy_backward = total("backward_cumulative_compile_time_us")
    inductor, codegen = (
        total("inductor_cumulative_compile_time_us"),
        total("inductor_code_gen_cumulative_compile_time_us"),
    )
    stages = {str(Stage.CAPTURE): dynamo - backend, str(Stage.CODEGEN): codegen, str(Stage.LOWER): inductor - codegen}
    inside = backend + lazy_backward - inductor
    if inductor:
        stages[str(Stage.AUTOGRAD)] = inside
    else:
        key = "create_aot_dispatcher_function"
        times = dynamo_utils.compilation_time_metrics.get(key, [])
        start = before.timed[key] if before.timed[key] <= len(times) else 0
        autograd = min(inside, sum(times[start:]))
        stages |= {str(Stage.AUTOGRAD): autograd, "backend": inside - autograd}
    return {stage: round(seconds, 6) for stage, seconds in stages.items() if seconds > 0}


def _breaks(before: _Snapshot) -> list[GraphBreak]:
    reasons = dynamo_utils.graph_break_reasons
    new = reasons[before.breaks :] if len(reasons) >= before.breaks else list(reasons)
    placed: Counter[tuple[str, str]] = Counter()
    listed: Counter[str] = Counter()
    for item in new:
        frame = item.user_stack[-1] if item.user_stack else None
        place = f"{shorten(frame.filename)}:{frame.lineno}" if frame else ""
        reason = str(item.reason)
        placed[_short_reason(reason), place] += 1
        listed[reason] += 1
    # A frame that Dynamo gives up altogether is counted but not listed.
    for reason, count in dynamo_utils.counters["graph_break"].items():
        unlisted = count - before.break_counts.get(reason, 0) - listed[reason]
        if unlisted > 0:
            placed[_short_reason(reason), ""] += unlisted
    return [GraphBreak(reason, place, count) for (reason, place), count in placed.items()]


_ADDRESS = re.compile(r"\b\d{12,}\b")
"""Of a type, a function or a module, in the guards that compare identities: another number in each process."""


def _recompiles(frames: list[Any]) -> list[Recompile]:
    found: Counter[tuple[str, str]] = Counter()
    for item in frames:
        if item.recompile_reason:
            # "0/1: tensor 'x' dtype mismatch" names the cached entry that did not match; only the guard is stable.
            guard = re.sub(r"^\d+/\d+(?:_\d+)?: ", "", item.recompile_reason.splitlines()[0])
            guard = _ADDRESS.sub("...", guard)
            place = f"{shorten(item.co_filename)}:{item.co_firstlineno}" if item.co_filename else ""
            found[guard, place] += 1
    return [Recompile(guard, place, count) for (guard, place), count in found.items()]


def _short_reason(reason: str) -> str:
    """The first line of a break and what it was about: `Unsupported Tensor.item() ... (call_method ...)`."""
    first = reason.strip().splitlines()[0]
    context = re.search(r"Developer debug context: *(.+)", reason)
    detail = re.sub(r" at 0x[0-9a-f]+", "", context[1].strip()) if context else ""
    return f"{first} ({detail})" if detail else first


@functools.lru_cache(maxsize=4096)
def shorten(filename: str) -> str:
    """A path from its package on (`torch/nn/functional.py`), or the file's name where it is in none."""
    path = Path(filename)
    top = path.parent
    while (top / "__init__.py").is_file() and top != top.parent:
        top = top.parent
    return path.relative_to(top).as_posix() if top != path.parent else path.name


def _fill_from_backend(seen: Seen, backend: Backend, own: Mapping[str, Any]) -> None:
    try:
        observation = msgspec.convert(dict(own), Observation)
    except msgspec.ValidationError as error:
        raise BackendError(f"backend {backend.name!r}: observe(): {error}") from None
    for name in observation.__struct_fields__:
        if name == "notes":
            seen.notes |= observation.notes
        else:
            setattr(seen, name, getattr(observation, name))


# --- memory -----------------------------------------------------------------------------------------------------------


def _memory_module(device: str) -> Any:
    kind = device.partition(":")[0]
    if kind == "cpu":
        return None
    try:
        module = torch.get_device_module(kind)
    except RuntimeError:
        return None
    return module if hasattr(module, "max_memory_allocated") else None


def _reset_peak_memory(device: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # proc(5): resets the peak resident set size of this process, and nothing else
    module = _memory_module(device)
    if module is not None and hasattr(module, "reset_peak_memory_stats"):
        module.reset_peak_memory_stats()


def _peak_memory(device: str) -> tuple[int, int | None]:
    try:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith("VmHWM"))
        process = int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    module = _memory_module(device)
    return process, int(module.max_memory_allocated()) if module is not None else None


# --- upstream Inductor ------------------------------------------------------------------------------------------------


READS = "conformance: reads, changes nothing"
"""What our passes are in Inductor's cache key."""


class _LoweredPass(CustomGraphPass):
    """Counts the overloads of the graph that is about to be lowered; changes nothing."""

    def __init__(self, probe: InductorProbe) -> None:
        self.probe = probe

    def __call__(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                self.probe.lowered[node.target.name()] += 1

    def uuid(self) -> str:
        return READS

    def __reduce__(self) -> tuple[Any, ...]:  # Inductor's cache key pickles its settings
        return str, (READS,)


class _ScheduledPass(CustomSchedulerPass):
    """Counts the scheduled nodes that call an ATen kernel instead of a generated one; changes nothing."""

    def __init__(self, probe: InductorProbe) -> None:
        self.probe = probe

    def __call__(self, nodes: list[Any]) -> list[Any]:
        for node in nodes:
            called = getattr(node, "node", None)
            if type(node).__name__ == "ExternKernelSchedulerNode" and type(called).__name__ != "MultiOutput":
                overload = getattr(called, "op_overload", None)
                name = overload.name() if isinstance(overload, torch._ops.OpOverload) else None
                self.probe.external[
                    name or str(getattr(called, "python_kernel_name", None) or type(called).__name__)
                ] += 1
        return nodes

    def uuid(self) -> str:
        return READS

    def __reduce__(self) -> tuple[Any, ...]:  # Inductor's cache key pickles its settings
        return str, (READS,)


class InductorProbe:
    """What upstream Inductor lowered, through its own hooks for custom passes: give `options` to `torch.compile`.

    `kernels` are the kernels that Inductor generated; each runs once a call. ATen kernels of the device that it calls
    instead are `custom_kernels`. Both and `lowered` are unknown when a graph came out of a cache.
    """

    def __init__(self) -> None:
        self.lowered: Counter[str] = Counter()
        self.external: Counter[str] = Counter()
        hooks = {"post_grad_custom_post_pass": _LoweredPass(self), "_post_fusion_custom_pass": _ScheduledPass(self)}
        self.options: dict[str, Any] = {name: hook for name, hook in hooks.items() if hasattr(inductor_config, name)}

    @contextlib.contextmanager
    def observe(self) -> Iterator[dict[str, Any]]:
        self.lowered.clear()
        self.external.clear()
        counts = dynamo_utils.counters
        before = counts["inductor"]["fxgraph_cache_hit"] + counts["aot_autograd"]["autograd_cache_hit"]
        generated = inductor_metrics.generated_kernel_count
        seen: dict[str, Any] = {}
        try:
            yield seen
        finally:
            cached = counts["inductor"]["fxgraph_cache_hit"] + counts["aot_autograd"]["autograd_cache_hit"] > before
            seen["kernels"] = inductor_metrics.generated_kernel_count - generated
            if not cached and "post_grad_custom_post_pass" in self.options:
                seen["lowered"] = dict(self.lowered)
            if not cached and "_post_fusion_custom_pass" in self.options:
                seen["custom_kernels"] = dict(self.external)


# --- captured graphs --------------------------------------------------------------------------------------------------


def is_operator(target: Any) -> bool:
    """Whether what a node calls is one overload of an operator: the class has no public name."""
    return isinstance(target, torch._ops.OpOverload)


def capturing(read: Callable[[torch.fx.GraphModule], None]) -> Callable[..., Any]:
    """A backend for `torch.compile` that shows each graph to `read`, decomposed into core ATen, and runs it op by op.

    Graphs of a backward too. Nodes have fake values.
    """
    # Private: how Dynamo's own backends go through AOTAutograd, the table of decompositions that `torch.export` aims
    # at, and the calling convention of what a compiler returns; the public way to them exports and does not run.
    from torch._decomp import core_aten_decompositions
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    def compiler(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        read(graph)
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=compiler, decompositions=core_aten_decompositions())


def symbolic(value: Any) -> tuple[Any, Any]:
    """Expression (of sympy) and value at capture of a `SymInt`, `SymFloat` or `SymBool`.

    The value is None where it is known only when the graph runs.
    """
    node = value.node  # private by custom: how everything in torch reads a symbolic number without a guard
    return node.expr, node.hint if node.has_hint() else None


def symbol_hint(size: Any, symbol: Any) -> int | None:
    """The value at capture of a symbol in the expression of `size`; None where it is known only when the graph runs."""
    environment = size.node.shape_env  # private by custom, as above
    values = getattr(environment, "backed_var_to_val", None)  # torch 2.13 and later; before: var_to_val
    found = (environment.var_to_val if values is None else values).get(symbol)
    return None if found is None else int(found)


# --- what eager does --------------------------------------------------------------------------------------------------


class _Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops[func.name()] += 1
        return func(*args, **(kwargs or {}))


def eager_ops(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> dict[str, int]:
    """The ATen overloads that `fn(*args, **kwargs)` dispatches to below autograd, with counts; runs it once."""
    with _Dispatched() as mode:
        fn(*args, **(kwargs or {}))
    return dict(mode.ops)


class _Recorded(TorchDispatchMode):
    """Keeps the inputs of each op as they were before it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def kept(_path: str, leaf: Any) -> Any:
            return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

        self.calls.append((func, trees.map_leaves(args, kept), trees.map_leaves(dict(kwargs or {}), kept)))
        return func(*args, **(kwargs or {}))


def dispatched_calls(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """(overload, args, kwargs) of each op that `fn(*args, **kwargs)` dispatches to below autograd; runs it once."""
    with _Recorded() as mode:
        fn(*args, **(kwargs or {}))
    return mode.calls


class _Written(TorchDispatchMode):
    """Writes each op down, with numbers for the tensors in the order in which they appear."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.tensors: dict[int, tuple[int, torch.Tensor]] = {}  # id -> number, and the tensor so that the id stays its

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = ", ".join(self._text(leaf) for _, leaf in trees.flatten((args, dict(kwargs or {}))))
        output = func(*args, **(kwargs or {}))
        made = ", ".join(self._text(leaf) for _, leaf in trees.flatten(output))
        self.lines.append(f"{made} = {func.name()}({given})")
        return output

    def _text(self, leaf: Any) -> str:
        if not isinstance(leaf, torch.Tensor):
            return repr(leaf)
        number, _ = self.tensors.setdefault(id(leaf), (len(self.tensors), leaf))
        return f"%{number}:{leaf.dtype}{tuple(leaf.shape)}{leaf.stride()}"


def written_graph(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> str:
    """The ops that `fn(*args, **kwargs)` dispatches to below autograd, a line each; runs it once. Equal texts are equal
    graphs: ops, shapes, strides, dtypes, numbers, and which tensor goes where, but not the values of tensors."""
    with _Written() as mode:
        fn(*args, **(kwargs or {}))
    return "\n".join(mode.lines)


def out_of_tree_device() -> str | None:
    """The name under which a PrivateUse1 device is registered in this process; None where there is none."""
    name = torch._C._get_privateuse1_backend_name()  # private: torch.accelerator sees a device only with its hooks
    return None if name == "privateuseone" or not hasattr(torch, name) else name
