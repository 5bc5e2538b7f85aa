"""Operators that compute each element from the elements at its place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from spyre_backend.program import DType
from spyre_backend.program.expr import ZERO
from spyre_backend.program.opcodes import Elementwise as E
from spyre_backend.sendnn.block import Block, compute_dtype
from spyre_backend.sendnn.index import Index
from spyre_backend.sendnn.ops.table import LOWERINGS, lowers
from spyre_backend.sendnn.tensors import Tensor, Traits, joined

if TYPE_CHECKING:
    from spyre_backend.sendnn.graph import Graph

aten = torch.ops.aten
Formula = Callable[..., str]
"""Takes the block, the values of the operands in the dtype that they are computed in, and whatever else was given."""


def broadcast(x: Tensor, index: Index) -> Index:
    """Where the element of `x` lies that takes part in the one at `index` of a result."""
    at = index[len(index) - len(x.shape) :]
    return tuple(ZERO if size == 1 else position for position, size in zip(at, x.shape, strict=True))


def operand_dtype(graph: Graph, operands: list[Any], result: DType) -> DType:
    """The dtype in which operands meet: that of the result, or of what is compared."""
    if result is not DType.BOOL:
        return compute_dtype(result)
    dtype = _result_type(graph, operands)
    return compute_dtype(graph.dtype(dtype))


def _result_type(graph: Graph, operands: list[Any]) -> torch.dtype:
    examples = [
        torch.empty(each.shape and (1,) * len(each.shape), dtype=getattr(torch, each.dtype.value), device="meta")
        if isinstance(each, Tensor)
        else each
        for each in operands
    ]
    found = examples[0].dtype if isinstance(examples[0], torch.Tensor) else torch.result_type(examples[0], examples[0])
    kept: Any = examples[0]
    for each in examples[1:]:
        found = torch.result_type(kept, each)
        kept = torch.empty(
            (1,) if any(isinstance(x, torch.Tensor) and x.dim() for x in (kept, each)) else (),
            dtype=found,
            device="meta",
        )
    return found


def pointwise(
    graph: Graph, formula: Formula, operands: list[Any], *, depth: int = 1, dtype: DType | None = None
) -> Tensor:
    """The result of the current operator by a formula of its operands, tensors or numbers."""
    tensors = [each for each in operands if isinstance(each, Tensor)]
    result = graph.dtype(graph.node.meta["val"].dtype)
    meets = dtype or operand_dtype(graph, operands, result)

    def at(block: Block, index: Index) -> str:
        values = [
            block.cast(each.read(block, broadcast(each, index)), meets)
            if isinstance(each, Tensor)
            else block.constant(each, meets)
            for each in operands
        ]
        return block.cast(formula(block, *values), compute_dtype(result))

    return graph.output(at, joined(tensors) | Traits(depth=depth))


def _register(name: str, formula: Formula, depth: int) -> None:
    packet = getattr(aten, name)
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        if not overload_name.endswith("out") and "generator" not in str(overload._schema):
            arguments = [argument.name for argument in overload._schema.arguments]

            def lower(
                graph: Graph, *args: Any, formula: Formula = formula, arguments: list[str] = arguments, **kwargs: Any
            ) -> Tensor:
                operands = [*args, *(kwargs[each] for each in arguments[len(args) :] if kwargs.get(each) is not None)]
                return pointwise(graph, formula, operands, depth=depth)

            LOWERINGS.setdefault(overload, lower)


def _op(op: E) -> Formula:
    return lambda block, *args: block.compute(op, *args)


_SAME_NAME = (
    "abs", "neg", "sign", "relu", "floor", "ceil", "trunc", "reciprocal", "exp",
    "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sigmoid",
    "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "digamma", "minimum",
    "maximum", "eq", "ne", "lt", "le", "gt", "ge", "mul", "bitwise_and",
    "bitwise_or", "bitwise_xor", "bitwise_not", "fmax", "fmod", "remainder", "hypot", "copysign", "square",
    "isnan", "isinf", "signbit",
)  # fmt: skip
_NAMED = {op.mnemonic: op for op in E}
_RENAMED = {
    "special_erfcx": E.ERFCX, "erfinv": E.ERFINV, "special_i0e": E.I0E, "special_i1": E.I1, "special_i1e": E.I1E,
    "i0": E.I0, "special_ndtri": E.NDTRI, "special_log_ndtr": E.LOG_NDTR,
    "bitwise_left_shift": E.LEFT_SHIFT, "bitwise_right_shift": E.RIGHT_SHIFT, "__lshift__": E.LEFT_SHIFT,
    "__rshift__": E.RIGHT_SHIFT, "nextafter": E.NEXTAFTER,
}  # fmt: skip
for _name, _found in ({name: _NAMED[name] for name in _SAME_NAME} | _RENAMED).items():
    _register(_name, _op(_found), 1)


# ---- formulas of several instructions -----------------------------------------------------------------------------


def _sigmoid(b: Block, x: str) -> str:
    return b.compute(E.SIGMOID, x)


def _silu(b: Block, x: str) -> str:
    return b.compute(E.MUL, x, _sigmoid(b, x))


def _gelu_exact(b: Block, x: str) -> str:
    erf = b.compute(E.ERF, b.compute(E.MUL, x, math.sqrt(0.5)))
    return b.compute(E.MUL, b.compute(E.MUL, x, 0.5), b.compute(E.ADD, erf, 1.0))


def _gelu_tanh(b: Block, x: str) -> str:
    cube = b.compute(E.MUL, b.compute(E.MUL, x, x), x)
    inner = b.compute(E.MUL, b.compute(E.ADD, x, b.compute(E.MUL, cube, 0.044715)), math.sqrt(2 / math.pi))
    return b.compute(E.MUL, b.compute(E.MUL, x, 0.5), b.compute(E.ADD, b.compute(E.TANH, inner), 1.0))


def _clamp(b: Block, x: str, low: Any = None, high: Any = None) -> str:
    found = x if low is None else b.compute(E.MAXIMUM, x, low)
    return found if high is None else b.compute(E.MINIMUM, found, high)


def where(b: Block, condition: str, x: Any, y: Any) -> str:
    """A choice; one of `x` and `y` may be a number."""
    kind = b.dtypes[x if isinstance(x, str) else y]
    x, y = (each if isinstance(each, str) else b.constant(each, kind) for each in (x, y))
    return b.compute(E.WHERE, condition, x, y)


def _hardtanh(b: Block, x: str, low: float = -1.0, high: float = 1.0) -> str:
    return _clamp(b, x, low, high)


def _hardsigmoid(b: Block, x: str) -> str:
    return b.compute(E.TRUEDIV, _clamp(b, b.compute(E.ADD, x, 3.0), 0.0, 6.0), 6.0)


def _logical(op: E) -> Formula:
    return lambda b, *args: b.compute(op, *(b.cast(arg, DType.BOOL) for arg in args))


_LOGICAL = {
    "logical_and": E.LOGICAL_AND,
    "logical_or": E.LOGICAL_OR,
    "logical_xor": E.LOGICAL_XOR,
    "logical_not": E.LOGICAL_NOT,
}
for _name, _found in _LOGICAL.items():
    _register(_name, _logical(_found), 1)


def _xlogy(b: Block, x: str, y: str) -> str:
    found = where(b, b.compute(E.EQ, x, 0), 0, b.compute(E.MUL, x, b.compute(E.LOG, y)))
    return where(b, b.compute(E.ISNAN, y), y, found)


_FORMULAS: dict[str, tuple[Formula, int]] = {
    "silu": (_silu, 2),
    "hardsigmoid": (_hardsigmoid, 4),
    "hardswish": (lambda b, x: b.compute(E.MUL, x, _hardsigmoid(b, x)), 5),
    "relu6": (lambda b, x: _clamp(b, x, 0.0, 6.0), 2),
    "mish": (lambda b, x: b.compute(E.MUL, x, b.compute(E.TANH, _softplus(b, x))), 5),
    "frac": (lambda b, x: b.compute(E.SUB, x, b.compute(E.TRUNC, x)), 2),
    "deg2rad": (lambda b, x: b.compute(E.MUL, x, math.pi / 180), 1),
    "rad2deg": (lambda b, x: b.compute(E.MUL, x, 180 / math.pi), 1),
    "fmin": (lambda b, x, y: b.compute(E.NEG, b.compute(E.FMAX, b.compute(E.NEG, x), b.compute(E.NEG, y))), 4),
    "xlogy": (_xlogy, 5),
}  # fmt: skip


def _softplus(b: Block, x: str, beta: float = 1.0, threshold: float = 20.0) -> str:
    scaled = b.compute(E.MUL, x, beta)
    # log(1 + exp(s)) = max(s, 0) + log1p(exp(-|s|)), which does not overflow
    tail = b.compute(E.LOG1P, b.compute(E.EXP, b.compute(E.NEG, b.compute(E.ABS, scaled))))
    found = b.compute(E.TRUEDIV, b.compute(E.ADD, b.compute(E.MAXIMUM, scaled, 0.0), tail), beta)
    return where(b, b.compute(E.GT, scaled, threshold), x, found)


for _name, (_formula, _depth) in _FORMULAS.items():
    _register(_name, _formula, _depth)


# ---- operators with arguments of their own --------------------------------------------------------------------------


@lowers(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def add(graph: Graph, x: Any, y: Any, alpha: float = 1) -> Tensor:
    op = E.ADD if graph.node.target in (aten.add.Tensor, aten.add.Scalar) else E.SUB

    def formula(b: Block, x: str, y: str) -> str:
        return b.compute(op, x, y if alpha == 1 else b.compute(E.MUL, y, alpha))

    return pointwise(graph, formula, [x, y])


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(graph: Graph, x: Any, y: Any, alpha: float = 1) -> Tensor:
    def formula(b: Block, x: str, y: str) -> str:
        return b.compute(E.SUB, y, x if alpha == 1 else b.compute(E.MUL, x, alpha))

    return pointwise(graph, formula, [x, y])


@lowers(aten.div.Tensor, aten.div.Scalar)
def div(graph: Graph, x: Any, y: Any) -> Tensor:
    return pointwise(graph, _op(E.TRUEDIV), [x, y])


@lowers(aten.true_divide.Tensor)
def true_divide(graph: Graph, x: Any, y: Any) -> Tensor:
    return div(graph, x, y)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(graph: Graph, x: Any, y: Any, rounding_mode: str | None = None) -> Tensor:
    op = {None: E.TRUEDIV, "floor": E.FLOORDIV, "trunc": E.TRUNCDIV}[rounding_mode]
    return pointwise(graph, _op(op), [x, y])


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(graph: Graph, x: Any, y: Any) -> Tensor:
    return pointwise(graph, _op(E.FLOORDIV), [x, y])


@lowers(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_(graph: Graph, x: Any, y: Any) -> Tensor:
    known: dict[Any, Formula] = {
        1: lambda b, x, y: x,
        2: lambda b, x, y: b.compute(E.MUL, x, x),
        3: lambda b, x, y: b.compute(E.MUL, b.compute(E.MUL, x, x), x),
        0.5: lambda b, x, y: b.compute(E.SQRT, x),
        -0.5: lambda b, x, y: b.compute(E.RSQRT, x),
    }
    found = known.get(y) if isinstance(y, (int, float)) else None
    return pointwise(graph, found or _op(E.POW), [x, y])


@lowers(aten.gelu.default)
def gelu(graph: Graph, x: Tensor, approximate: str = "none") -> Tensor:
    return pointwise(graph, _gelu_tanh if approximate == "tanh" else _gelu_exact, [x], depth=8)


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(graph: Graph, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    given = [each for each in (low, high) if each is not None]

    def formula(b: Block, x: str, *limits: str) -> str:
        rest = iter(limits)
        return _clamp(b, x, next(rest) if low is not None else None, next(rest) if high is not None else None)

    return pointwise(graph, formula, [x, *given], depth=2)


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(graph: Graph, x: Tensor, low: Any) -> Tensor:
    return clamp(graph, x, low)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(graph: Graph, x: Tensor, high: Any) -> Tensor:
    return clamp(graph, x, None, high)


@lowers(aten.hardtanh.default)
def hardtanh(graph: Graph, x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    return clamp(graph, x, low, high)


@lowers(aten.leaky_relu.default)
def leaky_relu(graph: Graph, x: Tensor, slope: float = 0.01) -> Tensor:
    return pointwise(graph, lambda b, x: where(b, b.compute(E.GT, x, 0), x, b.compute(E.MUL, x, slope)), [x], depth=3)


@lowers(aten.elu.default)
def elu(graph: Graph, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    def formula(b: Block, x: str) -> str:
        low = b.compute(E.MUL, b.compute(E.EXPM1, b.compute(E.MUL, x, input_scale)), alpha * scale)
        return where(b, b.compute(E.GT, x, 0.0), b.compute(E.MUL, x, scale), low)

    return pointwise(graph, formula, [x], depth=5)


@lowers(aten.softplus.default)
def softplus(graph: Graph, x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return pointwise(graph, lambda b, x: _softplus(b, x, beta, threshold), [x], depth=7)


@lowers(aten.threshold.default)
def threshold(graph: Graph, x: Tensor, limit: float, value: float) -> Tensor:
    return pointwise(graph, lambda b, x: where(b, b.compute(E.LE, x, limit), value, x), [x], depth=2)


@lowers(aten._prelu_kernel.default)
def prelu(graph: Graph, x: Tensor, weight: Tensor) -> Tensor:
    return pointwise(
        graph, lambda b, x, w: where(b, b.compute(E.GT, x, 0.0), x, b.compute(E.MUL, x, w)), [x, weight], depth=3
    )


@lowers(aten.round.default)
def round_(graph: Graph, x: Tensor) -> Tensor:
    return pointwise(graph, _op(E.ROUND), [x])


@lowers(aten.logit.default)
def logit(graph: Graph, x: Tensor, eps: float | None = None) -> Tensor:
    def formula(b: Block, x: str) -> str:
        p = x if eps is None else _clamp(b, x, eps, 1 - eps)
        return b.compute(E.LOG, b.compute(E.TRUEDIV, p, b.compute(E.SUB, b.constant(1.0, b.dtypes[p]), p)))

    return pointwise(graph, formula, [x], depth=4)


@lowers(aten.nan_to_num.default)
def nan_to_num(
    graph: Graph, x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    if not x.dtype.is_float:
        return pointwise(graph, lambda b, x: x, [x])
    limits = torch.finfo(getattr(torch, x.dtype.value))
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf

    def formula(b: Block, x: str) -> str:
        found = where(b, b.compute(E.EQ, x, math.inf), high, x)
        found = where(b, b.compute(E.EQ, x, -math.inf), low, found)
        return where(b, b.compute(E.ISNAN, x), nan or 0.0, found)

    return pointwise(graph, formula, [x], depth=6)


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(graph: Graph, x: Tensor, y: Tensor, weight: Any) -> Tensor:
    def formula(b: Block, x: str, y: str, w: str) -> str:
        far = b.compute(E.GE, b.compute(E.ABS, w), 0.5)
        step = b.compute(E.SUB, y, x)
        near = b.compute(E.ADD, x, b.compute(E.MUL, w, step))
        rest = b.compute(E.SUB, b.constant(1.0, b.dtypes[w]), w)
        return where(b, far, b.compute(E.SUB, y, b.compute(E.MUL, step, rest)), near)

    return pointwise(graph, formula, [x, y, weight], depth=6)


@lowers(aten.addcmul.default, aten.addcdiv.default)
def addc(graph: Graph, x: Tensor, y: Tensor, z: Tensor, value: float = 1) -> Tensor:
    op = E.MUL if graph.node.target is aten.addcmul.default else E.TRUEDIV

    def formula(b: Block, x: str, y: str, z: str) -> str:
        term = b.compute(op, y, z)
        return b.compute(E.ADD, x, term if value == 1 else b.compute(E.MUL, term, value))

    return pointwise(graph, formula, [x, y, z], depth=3)


@lowers(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where_(graph: Graph, condition: Tensor, x: Any, y: Any) -> Tensor:
    result = graph.dtype(graph.node.meta["val"].dtype)
    kind = compute_dtype(result)
    tensors = [each for each in (condition, x, y) if isinstance(each, Tensor)]

    def value(block: Block, each: Any, index: Index) -> str:
        if isinstance(each, Tensor):
            return block.cast(each.read(block, broadcast(each, index)), kind)
        return block.constant(each, kind)

    def at(block: Block, index: Index) -> str:
        chosen = block.cast(condition.read(block, broadcast(condition, index)), DType.BOOL)
        return block.compute(E.WHERE, chosen, value(block, x, index), value(block, y, index))

    return graph.output(at, joined(tensors) | Traits(depth=1))


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(graph: Graph, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return where_(graph, mask, value, x)


@lowers(aten._to_copy.default, aten.to.dtype, aten._conj_physical.default)
def to_copy(
    graph: Graph, x: Tensor, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: Any
) -> Tensor:
    if device is not None and torch.device(device).type != graph.device.type:
        graph.refuse(f"it copies to {device} inside of a graph")
    target = graph.dtype(graph.node.meta["val"].dtype)
    if target.itemsize > x.dtype.itemsize and graph.uses > 1 and not graph.is_cheap(x):
        graph.settle(x)  # several will convert it, which is less than storing what is wider

    def at(block: Block, index: Index) -> str:
        # a conversion rounds, also where what follows is computed in a wider dtype
        return block.cast(block.cast(x.read(block, index), target), compute_dtype(target))

    return graph.output(at, joined([x]) | Traits(depth=1))


@lowers(aten.copy.default)
def copy(graph: Graph, x: Tensor, source: Tensor, *_: Any) -> Tensor:
    return pointwise(graph, lambda b, source: source, [source])


@lowers(aten.isfinite.default)
def isfinite(graph: Graph, x: Tensor) -> Tensor:
    def formula(b: Block, x: str) -> str:
        return b.compute(E.LT, b.compute(E.ABS, x), math.inf) if b.dtypes[x].is_float else b.constant(True, DType.BOOL)

    return pointwise(graph, formula, [x], dtype=x.compute_dtype, depth=2)


@lowers(aten.sgn.default)
def sgn(graph: Graph, x: Tensor) -> Tensor:
    return pointwise(graph, _op(E.SIGN), [x])


@lowers(aten.tril.default, aten.triu.default)
def triangle(graph: Graph, x: Tensor, diagonal: int = 0) -> Tensor:
    lower = graph.node.target is aten.tril.default

    def at(block: Block, index: Index) -> str:
        row, column = (block.position(each) for each in index[-2:])
        kept = block.compute(E.LE if lower else E.GE, column, block.compute(E.ADD, row, diagonal))
        value = x.read(block, index)
        return block.compute(E.WHERE, kept, value, block.constant(0, block.dtypes[value]))

    return graph.output(at, joined([x]) | Traits(depth=3))
