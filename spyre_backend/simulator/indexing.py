"""Index expressions over whole iteration spaces: tensors of element numbers."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from spyre_backend.program.expr import Expr, Fn, evaluate

Number = int | float | bool
Index = torch.Tensor | Number


def evaluate_index(expr: Expr, bindings: Mapping[str, Index]) -> Index:
    """`expr` where names are bound to numbers or to int64 tensors that broadcast against each other."""
    return evaluate(expr, bindings, _TENSOR)


def _pairwise(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def fold(*args: Index) -> Index:
        result = args[0]
        for arg in args[1:]:
            result = function(result, arg)
        return result

    return fold


def _choose(tensor_function: Callable[..., Any], scalar_function: Callable[..., Any]) -> Callable[..., Any]:
    """Use `tensor_function` once any argument is a tensor (numbers become tensors first)."""

    def apply(*args: Index) -> Index:
        if not any(isinstance(arg, torch.Tensor) for arg in args):
            return scalar_function(*args)
        return tensor_function(*(arg if isinstance(arg, torch.Tensor) else torch.tensor(arg) for arg in args))

    return apply


def _divide(rounding: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    # an empty extent may leave a division by zero in an expression whose result addresses nothing
    def apply(a: Index, b: Index) -> Index:
        if isinstance(b, torch.Tensor):
            zero = b == 0
            return rounding(a, b.masked_fill(zero, 1)) * ~zero
        return rounding(a, b) if b != 0 else a * 0

    return apply


def _to_int(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda a: function(a).to(torch.int64) if a.is_floating_point() else a


def _power(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.pow(a, b)


_TENSOR: dict[Fn, Callable[..., Any]] = {
    Fn.ADD: _pairwise(lambda a, b: a + b),
    Fn.MUL: _pairwise(lambda a, b: a * b),
    Fn.FLOORDIV: _divide(lambda a, b: a // b),
    Fn.MOD: _divide(lambda a, b: a % b),
    Fn.TRUEDIV: _choose(lambda a, b: a.to(torch.float64) / b.to(torch.float64), lambda a, b: a / b),
    Fn.POW: _choose(_power, lambda a, b: a**b),
    Fn.LT: lambda a, b: a < b,
    Fn.LE: lambda a, b: a <= b,
    Fn.EQ: lambda a, b: a == b,
    Fn.NE: lambda a, b: a != b,
    Fn.MIN: _pairwise(_choose(torch.minimum, min)),
    Fn.MAX: _pairwise(_choose(torch.maximum, max)),
    Fn.WHERE: _choose(lambda c, a, b: torch.where(c.to(torch.bool), a, b), lambda c, a, b: a if c else b),
    Fn.AND: _pairwise(_choose(torch.logical_and, lambda a, b: a and b)),
    Fn.OR: _pairwise(_choose(torch.logical_or, lambda a, b: a or b)),
    Fn.NOT: _choose(torch.logical_not, lambda a: not a),
    Fn.FLOAT: _choose(lambda a: a.to(torch.float64), float),
    Fn.FLOOR: _choose(_to_int(torch.floor), math.floor),
    Fn.CEIL: _choose(_to_int(torch.ceil), math.ceil),
    Fn.TRUNC: _choose(_to_int(torch.trunc), math.trunc),
    Fn.ROUND: _choose(_to_int(torch.round), round),
    Fn.ABS: abs,
}
