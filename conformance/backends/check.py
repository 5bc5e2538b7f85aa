"""`conformance backends check`: proves that a backend fulfils the protocol, and says what is missing.

What can be read is checked here; what has to run (compile, gradients, observation, the declared dtypes) runs in a
forked child with a time limit, so that a backend that crashes is a failed row.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from conformance.backends.protocol import PROTOCOL_VERSION, Backend, BackendError, Observation
from conformance.backends.registry import capabilities, missing
from conformance.isolation import forked
from conformance.stages import is_refusal

NUMBER_FORMATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "dl16", "fp8_e4m3", "fp8_e5m2")
OPTIONAL_METHODS = ("begin", "observe", "reset", "unsupported", "generated", "environment")
TOLERANCE = {"fp64": 1e-9, "fp32": 1e-4, "tf32": 1e-2, "fp16": 2e-2, "bf16": 1e-1, "dl16": 2e-2}
"""Relative, for one small product and a sigmoid: generous, because right is judged by the sweep and not here."""


class Row(msgspec.Struct, frozen=True):
    """One thing that was checked. `ok` is None where it does not apply."""

    check: str
    ok: bool | None
    detail: str = ""


def check(backend: Backend, *, seconds: float = 300.0) -> list[Row]:
    """Every check of the protocol, in order; the backend fulfils it when no row has `ok` False."""
    rows = list(_static(backend))
    if any(row.ok is False for row in rows):
        return rows
    available, reason = backend.availability()
    rows.append(Row("available here", available, reason))
    if not available:
        return rows
    report = forked.run(lambda: (msgspec.json.encode(row) for row in _running(backend)), seconds)
    rows += [msgspec.json.decode(line, type=Row) for line in report.lines]
    if report.end is not forked.End.DONE:
        after = rows[-1].check
        rows.append(Row("runs to the end", False, f"{report.end} ({report.detail}) in the check after {after!r}"))
    return rows


# --- what can be read -------------------------------------------------------------------------------------------------


def _static(backend: Backend) -> Iterator[Row]:
    lacking = missing(backend)
    yield Row("required members", not lacking, "; ".join(lacking) or "all there")
    if lacking:
        return
    version = backend.protocol_version
    yield Row("protocol version", version == PROTOCOL_VERSION, f"{version}, this suite speaks {PROTOCOL_VERSION}")
    wrong = [name for name in OPTIONAL_METHODS if hasattr(backend, name) and not callable(getattr(backend, name))]
    has = [name for name in OPTIONAL_METHODS if hasattr(backend, name)]
    yield Row("optional members", not wrong, f"not callable: {', '.join(wrong)}" if wrong else ", ".join(has) or "none")
    yield _availability(backend)
    yield _capabilities(backend)
    yield _template(backend)
    if hasattr(backend, "environment"):
        value = backend.environment()
        ok = isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, str) for k, v in value.items())
        yield Row("environment()", ok, ", ".join(value) if ok else f"must be a dict of strings, is {value!r}")


def _availability(backend: Backend) -> Row:
    heavy_before = "torch" in sys.modules
    try:
        answer = backend.availability()
    except Exception as error:
        return Row("availability()", False, f"must say why, not raise {_line(error)}")
    shape = isinstance(answer, tuple) and [type(part) for part in answer] == [bool, str]
    if not shape:
        return Row("availability()", False, f"must return (bool, str), not {answer!r}")
    if not heavy_before and "torch" in sys.modules:
        return Row("availability()", False, "imports torch; look at package metadata instead")
    if not answer[0] and not answer[1]:
        return Row("availability()", False, "says no without a reason")
    return Row("availability()", True, answer[1])


def _capabilities(backend: Backend) -> Row:
    try:
        declared = capabilities(backend)
    except BackendError as error:
        return Row("capabilities()", False, str(error))
    unknown = [
        f"{field}[{dtype}]={form}"
        for field in ("number_formats", "accumulation")
        for dtype, form in getattr(declared, field).items()
        if form not in NUMBER_FORMATS
    ]
    if unknown:
        return Row("capabilities()", False, f"{', '.join(unknown)}: formats are {', '.join(NUMBER_FORMATS)}")
    if declared.device != backend.device:
        return Row("capabilities()", False, f"device is {declared.device!r}, the backend's is {backend.device!r}")
    silent = [name for name in declared.__struct_fields__ if getattr(declared, name) in (None, {})]
    return Row("capabilities()", True, f"unknown: {', '.join(silent)}" if silent else "all declared")


def _template(backend: Backend) -> Row:
    try:
        ast.parse(backend.imports)
        expression = ast.parse(backend.compile_source.format(dynamic=True), mode="eval")
    except (SyntaxError, KeyError, IndexError, ValueError) as error:
        return Row("repro template", False, f"imports and compile_source must give Python: {_line(error)}")
    if not any(isinstance(node, ast.Name) and node.id == "fn" for node in ast.walk(expression)):
        return Row("repro template", False, "compile_source does not mention fn")
    return Row("repro template", True, backend.compile_source)


# --- what has to run --------------------------------------------------------------------------------------------------

Checked = Callable[["_Bench"], tuple[bool | None, str]]


def _running(backend: Backend) -> Iterator[Row]:
    if hasattr(backend, "environment"):
        os.environ.update(backend.environment())
    try:
        backend.setup()
    except Exception as error:
        yield Row("setup()", False, _line(error))
        return
    yield Row("setup()", True)
    bench = _Bench(backend)
    for name, run in CHECKS.items():
        try:
            ok, detail = run(bench)
        except Exception as error:
            ok, detail = False, _line(error)
        if ok is False and name in CLAIMS and getattr(bench.declared, CLAIMS[name]) is None:
            ok, detail = None, f"does not work, and is not declared: {detail}"
        yield Row(name, ok, detail)
        bench.reset()


class _Bench:
    """A backend that is set up, and what it declares."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.declared = capabilities(backend)
        names = self.declared.dtypes or ("float32",)
        floats = [name for name in ("float32", "float16", "bfloat16", "float64") if name in names]
        self.dtype = floats[0] if floats else names[0]
        self.model = MODELS[0]

    def reset(self) -> None:
        import torch

        with contextlib.suppress(Exception):  # a failing reset() is a row of its own
            getattr(self.backend, "reset", torch.compiler.reset)()

    def tensor(self, *shape: int, dtype: str | None = None) -> Any:
        import torch

        kind = getattr(torch, dtype or self.dtype)
        small = torch.arange(1, 1 + _numel(shape)).reshape(shape) % 7
        return (small - 2 if kind.is_signed else small).to(kind)

    def agree(self, fn: Callable[..., Any], *inputs: Any, compiled: Callable[..., Any] | None = None) -> str:
        """Runs on the backend and on the CPU: an empty string where they agree, else what differs."""
        import torch

        run = compiled or self.backend.compile(fn, dynamic=False)
        got, want = run(*(t.to(self.backend.device) for t in inputs)), fn(*inputs)
        if got.device.type != torch.device(self.backend.device).type:
            return f"the result is on {got.device}"
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"gives {got.dtype} {tuple(got.shape)} instead of {want.dtype} {tuple(want.shape)}"
        return "" if self.close(got, want) else f"gives {got.cpu().flatten()[:3].tolist()}..., wrong"

    def close(self, got: Any, want: Any) -> bool:
        import torch

        name = str(want.dtype).removeprefix("torch.")
        native = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(name, "")
        rtol = TOLERANCE.get(self.declared.number_formats.get(name, native), 0.3) if native else 0.0
        return torch.allclose(got.detach().cpu().double(), want.detach().double(), rtol=rtol, atol=rtol)


def _numel(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


class Model(NamedTuple):
    """A function of two tensors to try, with a number of rows to vary."""

    what: str
    fn: Callable[..., Any]
    shapes: Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]]

    def inputs(self, bench: _Bench, rows: int = 4) -> tuple[Any, ...]:
        return tuple(bench.tensor(*shape) for shape in self.shapes(rows))


def _product(x: Any, y: Any) -> Any:
    import torch

    return torch.sigmoid(x @ y) * 2 + x.sum(dim=-1, keepdim=True)


def _sum(x: Any, y: Any) -> Any:
    return x + y


MODELS = (
    Model("a product, a sigmoid and a sum", _product, lambda rows: ((rows, 8), (8, rows))),
    Model("x + y", _sum, lambda rows: ((rows, 5), (rows, 5))),
)
"""From much to little: the checks use the first that the backend does not refuse."""


def _static_shapes(bench: _Bench) -> tuple[bool | None, str]:
    refused = ""
    for model in MODELS:
        bench.model = model
        try:
            complaint = bench.agree(model.fn, *model.inputs(bench))
        except Exception as error:
            if not is_refusal(error, bench.backend):
                raise
            refused, complaint = refused or _line(error), _line(error)
            bench.reset()
            continue
        return not complaint, complaint or f"{model.what} in {bench.dtype}" + (f"; {refused}" if refused else "")
    return False, f"refuses even {MODELS[-1].what}: {complaint}"


def _dynamic_shapes(bench: _Bench) -> tuple[bool | None, str]:
    if bench.declared.dynamic_shapes is False:
        return None, "declares static shapes only"
    compiled = bench.backend.compile(bench.model.fn, dynamic=True)
    for rows in (5, 9):
        complaint = bench.agree(bench.model.fn, *bench.model.inputs(bench, rows), compiled=compiled)
        if complaint:
            return False, f"with {rows} rows: {complaint}"
    return True, "two sizes by one callable"


def _backward(bench: _Bench) -> tuple[bool | None, str]:
    import torch

    if bench.declared.backward is False:
        return None, "declares forward only"
    if not getattr(torch, bench.dtype).is_floating_point:
        return None, "no floating dtype is declared"
    try:
        torch.ones(1, requires_grad=True).sum().backward()
    except RuntimeError as error:  # not the backend's: the caller's own process has used autograd on a device
        return None, f"cannot be tried in a fork of this process: {_line(error)}"
    compiled = bench.backend.compile(bench.model.fn, dynamic=False)
    grads = []
    for fn, device in ((compiled, bench.backend.device), (bench.model.fn, "cpu")):
        inputs = [t.to(device).requires_grad_() for t in bench.model.inputs(bench)]
        grads.append(torch.autograd.grad(fn(*inputs).sum(), inputs))
    wrong = [name for name, got, want in zip("xy", *grads, strict=True) if not bench.close(got, want)]
    return not wrong, f"the gradient of {' and '.join(wrong)} is wrong" if wrong else "two gradients"


def _fullgraph(bench: _Bench) -> tuple[bool | None, str]:
    compiled = bench.backend.compile(bench.model.fn, dynamic=False, fullgraph=True)
    complaint = bench.agree(bench.model.fn, *bench.model.inputs(bench), compiled=compiled)
    return not complaint, complaint


def _dtypes(bench: _Bench) -> tuple[bool | None, str]:
    if bench.declared.dtypes is None:
        return None, "declares none"
    import torch

    failed = {}
    for name in bench.declared.dtypes:
        if not isinstance(getattr(torch, name, None), torch.dtype):
            failed[name] = "no torch dtype of that name"
            continue
        bench.reset()
        try:
            complaint = bench.agree(_sum, bench.tensor(3, 5, dtype=name), bench.tensor(3, 5, dtype=name))
        except Exception as error:
            complaint = _line(error)
        if complaint:
            failed[name] = complaint
    shown = "; ".join(f"{name}: {complaint}" for name, complaint in failed.items())
    return not failed, shown or ", ".join(bench.declared.dtypes)


def _observes(bench: _Bench) -> tuple[bool | None, str]:
    if not hasattr(bench.backend, "observe"):
        return None, "no observe(): kernels and fallbacks are unknown"
    complaint, empty = _observed(bench, call=False)
    if complaint:
        return False, complaint
    for name in ("kernels", "custom_kernels", "fallbacks", "lowered", "transfers"):
        if getattr(empty, name):
            return False, f"{name} is {getattr(empty, name)!r} though nothing was called"
    complaint, first = _observed(bench, call=True)
    if complaint:
        return False, complaint
    bench.reset()
    complaint, second = _observed(bench, call=True)
    if complaint:
        return False, complaint
    for name in ("kernels", "fallbacks"):
        before, after = getattr(first, name), getattr(second, name)
        if before and after and _total(after) >= 2 * _total(before):
            return False, f"{name} adds up over blocks: {before!r}, then {after!r} for the same call"
    says = [name for name in first.__struct_fields__ if name != "notes" and getattr(first, name) is not None]
    return True, f"tells {', '.join(says)}" if says else "tells nothing but notes"


def _total(value: Any) -> int:
    return sum(value.values()) if isinstance(value, dict) else int(value)


def _observed(bench: _Bench, *, call: bool) -> tuple[str, Observation]:
    with bench.backend.observe() as seen:  # type: ignore[attr-defined]
        if call:
            bench.agree(bench.model.fn, *bench.model.inputs(bench))
    try:
        return "", msgspec.convert(dict(seen), Observation)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        return f"the yielded dict must hold fields of Observation: {error}", Observation()


def _unknown_fields(bench: _Bench) -> tuple[bool | None, str]:
    if not hasattr(bench.backend, "observe"):
        return None, ""
    with bench.backend.observe() as seen:  # type: ignore[attr-defined]
        pass
    extra = sorted(set(seen) - set(Observation.__struct_fields__))
    known = ", ".join(Observation.__struct_fields__)
    return not extra, f"unknown: {', '.join(extra)} (fields: {known})" if extra else ""


def _refusals(bench: _Bench) -> tuple[bool | None, str]:
    if not hasattr(bench.backend, "unsupported"):
        return None, "no unsupported(): refusals are told by their type and message"
    answer = bench.backend.unsupported(KeyError("an internal error"))
    if not isinstance(answer, bool):
        return False, f"unsupported() must return a bool, not {answer!r}"
    return not answer, "calls a KeyError a refusal" if answer else ""


def _resets(bench: _Bench) -> tuple[bool | None, str]:
    if not hasattr(bench.backend, "reset"):
        return None, "no reset(): torch.compiler.reset() is used"
    bench.agree(_sum, bench.tensor(3, 5), bench.tensor(3, 5))
    bench.backend.reset()
    complaint = bench.agree(_sum, bench.tensor(3, 5), bench.tensor(3, 5))
    return not complaint, complaint


def _repro(bench: _Bench) -> tuple[bool | None, str]:
    scope: dict[str, Any] = {"fn": bench.model.fn}
    exec(bench.backend.imports, scope)
    compiled = eval(bench.backend.compile_source.format(dynamic=False), scope)
    complaint = bench.agree(bench.model.fn, *bench.model.inputs(bench), compiled=compiled)
    return not complaint, complaint or bench.backend.compile_source.format(dynamic=False)


CHECKS: dict[str, Checked] = {
    "compiles and runs": _static_shapes,
    "dynamic shapes": _dynamic_shapes,
    "backward": _backward,
    "fullgraph": _fullgraph,
    "declared dtypes": _dtypes,
    "observe()": _observes,
    "observe() fields": _unknown_fields,
    "unsupported()": _refusals,
    "reset()": _resets,
    "repro template runs": _repro,
}


CLAIMS = {"dynamic shapes": "dynamic_shapes", "backward": "backward"}
"""Checks of what a backend may lack, and the capability that claims it."""


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
