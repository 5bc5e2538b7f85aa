"""What an OpInfo calls, as a Python expression that needs only `import torch`.

The sweep judges `eval(expression)`, so that a repro script and the sweep run the same thing. Where OpInfo seeds the
generator around a random op, the expression has the bare op: seeding belongs to the engine, and inside a compiled
function it would break the graph.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import types
from collections.abc import Callable
from typing import Any

import torch

from op_coverage import upstream

_ROOTS = (
    "torch",
    "torch.nn.functional",
    "torch.Tensor",
    "torch.linalg",
    "torch.special",
    "torch.fft",
    "torch.signal.windows",
    "torch.masked",
    "torch.sparse",
)
"""Where a callable may live, most familiar first."""

_SEEDING = "wrapper_set_seed"
"""OpInfo's helper that seeds, calls its first argument with the others, and restores the generator."""

_WRITTEN_OUT = {
    # OpInfo 2.13 to 2.15 calls randn_like here.
    "rand_like": "torch.rand_like",
    # A function of the database's own module.
    "max_pool2d_with_indices_backward": (
        "lambda x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, **kwargs: "
        "(lambda out, indices: torch.ops.aten.max_pool2d_with_indices_backward(torch.ones_like(out), x, kernel_size, "
        "kernel_size if stride is None else stride, padding, dilation, ceil_mode, indices))"
        "(*torch.nn.functional.max_pool2d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode))"
    ),
}
"""Subjects whose callable cannot be derived, or is not the op that the subject names."""

_PROJECTIONS = {
    "gradcheck_wrapper_hermitian_input": "lambda input, *args, **kwargs: {fn}(input + input.mH, *args, **kwargs)",
    "gradcheck_wrapper_ctc_loss": "lambda input, *args, **kwargs: {fn}(input.log_softmax(dim=2), *args, **kwargs)",
    "gradcheck_wrapper_triangular_input": (
        "lambda a, b, upper=False, **kwargs: {fn}(a, b.triu() if upper else b.tril(), upper, **kwargs)"
    ),
    "gradcheck_wrapper_triangular_input_real_positive_diagonal": (
        "lambda a, upper=False: (lambda m: {fn}(m.triu() if upper else m.tril(), upper))"
        "(a - torch.diag_embed(a.diagonal(0, -2, -1) - 1))"
    ),
}
"""For gradients: ops that read only part of their input or need a constrained one are preceded by the projection onto
that set, as in OpInfo's gradient checks, whose helpers have these names. Masked ops go without: what they put into
masked-out elements is the same on every backend."""


_UNIQUE_OUTPUTS = {
    "linalg.eig": "lambda out: (out[0], out[1].abs())",
    "linalg.eigh": "lambda out: (out[0], out[1].abs())",
    "linalg.eigvalsh": None,
    "linalg.lu": "lambda out: (out[1], out[2])",
    "linalg.lu_factor": None,
    "linalg.lu_factor_ex": None,
    "linalg.svd": "lambda out: (out[1], out[0][..., : out[1].shape[-1]] @ out[2][..., : out[1].shape[-1], :])",
    "lu_unpack": "lambda out: (out[1], out[2])",
    "pca_lowrank": "lambda out: (out[1], out[0] @ out[2].mH)",
    "svd": "lambda out: (out[1], out[0][..., : out[1].shape[-1]] @ out[2][..., : out[1].shape[-1]].mH)",
    "svd_lowrank": "lambda out: (out[1], out[0] @ out[2].mH)",
}
"""For gradients: what of the output is differentiable and unique, where OpInfo says it with a function that cannot be
written as an expression. Singular vectors, for instance, are unique only up to a phase. None: all of it."""


def expression(info: upstream.OpInfo) -> str:
    """Python source for the callable of an OpInfo. Falls back on looking it up in the database, which always works."""
    if info.full_name in _WRITTEN_OUT:
        return _WRITTEN_OUT[info.full_name]
    fn = info.op
    if isinstance(fn, types.FunctionType) and fn.__name__ == "<lambda>":
        return _from_lambda(fn) or _from_database(info)
    return _from_name(info) or _from_database(info)


def backward_expression(info: upstream.OpInfo, sample: upstream.SampleInput) -> str | None:
    """The same for gradients: with the projection of the inputs, and the choice of the differentiable outputs.

    None if the choice is a function of the database that cannot be written down.
    """
    source = expression(info)
    wrapper = info.gradcheck_wrapper
    named = {wrapper.__name__, *(wrapper.__code__.co_names if wrapper.__name__ == "<lambda>" else ())}
    for name, template in _PROJECTIONS.items():
        if name in named:
            source = template.format(fn=_callee(source))
            break
    if info.full_name in _UNIQUE_OUTPUTS:
        choice = _UNIQUE_OUTPUTS[info.full_name]
    elif _is_identity(sample.output_process_fn_grad):
        choice = None
    else:
        choice = _from_lambda(sample.output_process_fn_grad)
        if choice is None:
            return None
    return f"lambda *args, **kwargs: ({choice})({_callee(source)}(*args, **kwargs))" if choice else source


@functools.cache
def evaluate(source: str) -> Callable[..., Any]:
    """The callable that `source` denotes. It is known to `linecache`, so that tracebacks and graph breaks show it."""
    name = f"<op_coverage: {source}>"
    linecache.cache[name] = (len(source), None, [source + "\n"], name)
    return eval(compile(source, name, "eval"), {"torch": torch})


def _callee(source: str) -> str:
    return f"({source})" if source.startswith("lambda") else source


def _is_identity(fn: Callable[..., Any]) -> bool:
    code = getattr(fn, "__code__", None)
    return code is not None and code.co_code == _IDENTITY and code.co_argcount == 1


_IDENTITY = (lambda x: x).__code__.co_code


def _from_database(info: upstream.OpInfo) -> str:
    return (
        f"next(o for o in {upstream.OP_DB_EXPRESSION} "
        f"if (o.name, o.variant_test_name) == ({info.name!r}, {info.variant_test_name!r})).op"
    )


def _from_name(info: upstream.OpInfo) -> str | None:
    fn = info.op
    if upstream.is_overload(fn):
        return f"torch.ops.{fn}"
    bare = getattr(fn, "__name__", "")
    last = info.name.rpartition(".")[2]
    names = dict.fromkeys([info.name, last, bare, bare.partition("_")[2], f"_{last}"])
    paths = [f"{root}.{name}" for name in names if name for root in _ROOTS]
    module = getattr(fn, "__module__", None) or ""
    if module.startswith("torch.") and not module.startswith("torch.testing"):
        paths.append(f"{module}.{bare}")
    return next((path for path in paths if _lookup(path) is fn), None)


def _lookup(path: str) -> Any:
    found: Any = torch
    for name in path.split(".")[1:]:
        found = getattr(found, name, None)
        if found is None:
            return None
    return found


def _from_lambda(fn: Callable[..., Any]) -> str | None:
    """A lambda's source, or None if it uses anything but its parameters, `torch` and builtins.

    The compiled positions of its body say where it stands in the file, however many lambdas share the line.
    """
    body = _body(fn)
    if body is None:
        return None
    body = _Unseed().visit(body)
    parameters = inspect.signature(fn).parameters
    if not all(p.default is p.empty or isinstance(p.default, int | float | str | None) for p in parameters.values()):
        return None
    forwarded = _forwarded(body, parameters)
    text = forwarded or f"lambda {', '.join(map(str, parameters.values()))}: {ast.unparse(body)}"
    tree = ast.parse(text, mode="eval")
    bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    allowed = bound | {"torch"} | set(dir(__import__("builtins")))
    return text if used <= allowed else None


def _body(fn: Callable[..., Any]) -> ast.expr | None:
    code = getattr(fn, "__code__", None)
    if code is None or fn.__name__ != "<lambda>" or code.co_freevars:
        return None
    spans = [p for p in code.co_positions() if None not in p and (p[0], p[2]) != (p[1], p[3])]
    if not spans:
        return None
    start = min((line, column) for line, _, column, _ in spans)
    end = max((line, column) for _, line, _, column in spans)
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(start[0], end[0] + 1)]
    if not all(lines):
        return None
    lines[-1] = lines[-1][: end[1]]
    lines[0] = lines[0][start[1] :]
    try:
        return ast.parse(f"({b''.join(lines).decode()})", mode="eval").body
    except SyntaxError:
        return None


class _Unseed(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == _SEEDING:
            return ast.Call(func=node.args[0], args=node.args[1:], keywords=node.keywords)
        return node


def _forwarded(body: ast.expr, parameters: types.MappingProxyType[str, inspect.Parameter]) -> str | None:
    """`f`, where the body is `f(*args, **kwargs)` with all parameters passed on as they come."""
    if not isinstance(body, ast.Call):
        return None
    expected = [str(p) for p in parameters.values()]
    passed = [ast.unparse(a) for a in body.args] + [
        f"{k.arg}={ast.unparse(k.value)}" if k.arg else f"**{ast.unparse(k.value)}" for k in body.keywords
    ]
    callee = ast.unparse(body.func)
    reads = {node.id for node in ast.walk(body.func) if isinstance(node, ast.Name)}
    return callee if passed == expected and not reads & set(parameters) else None
