"""From a signature to a Python expression and what its parameters stand for.

What varies between calls, or between the device and the CPU, is a parameter: tensors, symbolic integers, dtypes and
devices. All other arguments are constants of the graph, and so of the expression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.signatures import Signature, evaluate

PREFIXES: Mapping[str, str] = {"tensor": "t", "size": "n", "dtype": "dtype", "device": "device"}
"""Kinds of argument that become parameters, with the letters that their names begin with."""

Spec = Mapping[str, Any]
"""An argument as signatures have it, e.g. `{"tensor": ["float32", [2, 16]]}`."""


@dataclass(frozen=True)
class Parameter:
    """What a parameter of the expression stands for, and where in the call it is."""

    name: str
    kind: str  # a key of PREFIXES
    content: Any  # as in the signature
    argument: int | str  # position or keyword of the op's argument
    place: int | None = None  # within it, where that is a list


@dataclass(frozen=True)
class Shape:
    """A tensor to be made; elements."""

    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None  # None: contiguous
    offset: int

    @property
    def memory(self) -> int:
        """Elements of memory that it reaches to, from the start."""
        if 0 in self.sizes:
            return self.offset
        if self.strides is None:
            return math.prod(self.sizes) + self.offset
        return self.offset + 1 + sum((n - 1) * step for n, step in zip(self.sizes, self.strides, strict=True))


@dataclass(frozen=True)
class Call:
    """A call of an op: `source` is a lambda with the parameters in this order."""

    source: str
    parameters: tuple[Parameter, ...]
    signature: Signature

    def rebuilt(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments and keyword arguments of the op itself, from values of the parameters; constants as Python has
        them where these are plain, else as they are in the signature."""
        left = iter(values)
        args = [_replaced(arg, left) for arg in self.signature.args]
        return args, {name: _replaced(value, left) for name, value in self.signature.kwargs.items()}


def of(signature: Signature) -> Call:
    """The call of a signature."""
    parameters: list[Parameter] = []
    counts = dict.fromkeys(PREFIXES, 0)

    def text(value: Any, argument: int | str, place: int | None = None) -> str:
        if isinstance(value, list):
            return f"[{', '.join(text(item, argument, i) for i, item in enumerate(value))}]"
        if not isinstance(value, Mapping):
            return repr(value)
        ((kind, content),) = value.items()
        if kind not in PREFIXES:
            return CONSTANTS[kind](content)
        name = f"{PREFIXES[kind]}{counts[kind]}"
        counts[kind] += 1
        parameters.append(Parameter(name, kind, content, argument, place))
        return name

    passed = [text(arg, i) for i, arg in enumerate(signature.args)]
    passed += [f"{name}={text(value, name)}" for name, value in signature.kwargs.items()]
    names = ", ".join(parameter.name for parameter in parameters)
    source = f"lambda {names}: torch.ops.{signature.op}({', '.join(passed)})".replace("lambda :", "lambda:")
    return Call(source, tuple(parameters), signature)


CONSTANTS: Mapping[str, Callable[[Any], str]] = {
    "float": lambda text: f"float({text!r})",
    "complex": lambda parts: f"complex({float(parts[0])!r}, {float(parts[1])!r})",
    "layout": lambda name: f"torch.{name}",
    "memory_format": lambda name: f"torch.{name}",
}
"""Kind of constant -> its Python source."""


def shape(content: Sequence[Any], symbols: Mapping[str, int]) -> Shape:
    """The tensor of a signature with these values of its symbols. Raises `SignatureError` where they do not fit it."""
    dtype, sizes, *rest = content
    strides, offset = rest or (None, 0)
    return Shape(
        dtype,
        tuple(evaluate(size, symbols) for size in sizes),
        None if strides is None else tuple(evaluate(stride, symbols) for stride in strides),
        evaluate(offset, symbols),
    )


def _replaced(value: Any, left: Any) -> Any:
    if isinstance(value, list):
        return [_replaced(item, left) for item in value]
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    if kind in PREFIXES:
        return next(left)
    return float(content) if kind == "float" else content
