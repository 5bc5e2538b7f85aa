"""What an op was called with in a graph, as text: shapes, strides, offsets, dtypes, scalars and symbolic sizes.

A signature is one line of JSON, `[op, dtype, args, kwargs, symbols]`: equal calls have equal texts in every process.
An argument is a number, string, bool, null or a list, or an object with one key that says what it is:

    {"tensor": [dtype, sizes]}                     contiguous from the start of its memory
    {"tensor": [dtype, sizes, strides, offset]}    any other; counted in elements
    {"size": "2*s0"}                               an integer that depends on symbolic sizes
    {"dtype": "float32"}, {"device": "cpu"}, {"layout": "strided"}, {"memory_format": "contiguous_format"}
    {"float": "inf"}, {"complex": [re, im]}        what JSON has no number for

Sizes, strides and offsets are integers or expressions such as `s0*s1`; `symbols` has the value that each symbol had.
Pure: never imports torch.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import math
import operator
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

Size = int | str
"""A size, stride or offset: a number, or an expression in symbols."""

NUMBER_BYTES = 4
SYMBOL = re.compile(r"\bs\d+\b")


class SignatureError(ValueError):
    """A text that is no signature, or an expression that cannot be evaluated; one line."""


class Signature(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One call. `dtype` is that of its case: of the first floating tensor, else of the first, else of the result."""

    op: str  # as torch.ops has it: aten.addmm.default
    dtype: str
    args: list[Any]
    kwargs: dict[str, Any]
    symbols: dict[str, int]

    @property
    def is_symbolic(self) -> bool:
        """Whether some size was symbolic."""
        return bool(self.symbols)


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Signature)


def encode(signature: Signature) -> str:
    """The text of a signature."""
    return _encoder.encode(signature).decode()


def decode(text: str) -> Signature:
    """The signature of a text. Raises `SignatureError`."""
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise SignatureError(f"{text[:80]!r} is no signature: {error}") from None


def number(text: str, attempt: int = 0) -> int:
    """A number below 2**32 for a signature, from its text alone: it stays whatever else is traced.

    `attempt` gives another one, for the rare case that two signatures of one op and dtype have the same.
    """
    salt = attempt.to_bytes(2, "little") if attempt else b""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=NUMBER_BYTES, salt=salt).digest(), "big")


def pack(texts: Iterable[str]) -> str:
    """Texts as one short ASCII string; empty for none. Calls of one model are much alike, and compress to a tenth."""
    joined = "\n".join(dict.fromkeys(texts))
    return base64.b85encode(zlib.compress(joined.encode(), 9)).decode() if joined else ""


def unpack(packed: str) -> list[str]:
    """Inverse of `pack`, duplicates apart. Raises `SignatureError`."""
    if not packed:
        return []
    try:
        return zlib.decompress(base64.b85decode(packed)).decode().split("\n")
    except (ValueError, zlib.error) as error:
        raise SignatureError(f"packed signatures cannot be read: {error}") from None


# --- expressions in symbols -------------------------------------------------------------------------------------------


def _floor_mod_index(value: int, divisor: int, modulus: int) -> int:
    return value // divisor % modulus


def _exact_ratio(dividend: int, divisor: int) -> int:
    quotient, rest = divmod(dividend, divisor)
    if rest:
        raise ValueError(f"{dividend} is no multiple of {divisor}")
    return quotient


FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "Max": max,
    "Min": min,
    "Abs": abs,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "FloorDiv": operator.floordiv,
    "CleanDiv": _exact_ratio,
    "CeilDiv": lambda a, b: -(-a // b),
    "ModularIndexing": _floor_mod_index,
    "floor": math.floor,
    "ceiling": math.ceil,
    "TruncToInt": math.trunc,
    "ToFloat": lambda x: x,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
}
"""Functions that upstream's symbolic sizes use, by the name under which they are printed."""

_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def evaluate(size: Size, symbols: Mapping[str, int]) -> int:
    """The value of a size. Raises `SignatureError` for what is no such expression, or has no whole value."""
    if isinstance(size, int):
        return size
    try:
        value = _value(ast.parse(size, mode="eval").body, symbols)
        if value != int(value):
            raise ValueError(f"it is {value}")
        return int(value)
    except (SyntaxError, ValueError, KeyError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise SignatureError(f"size {size!r} has no value for {dict(symbols)}: {error}") from None


def _value(node: ast.expr, symbols: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            return symbols[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, symbols)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, symbols), _value(right, symbols))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_value(arg, symbols) for arg in args))
    raise ValueError(f"{ast.unparse(node)!r} is not understood")


def contiguous(sizes: Iterable[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor of these sizes, as PyTorch sets them."""
    strides, step = [], 1
    for size in reversed(list(sizes)):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


# --- arguments --------------------------------------------------------------------------------------------------------


def walk(value: Any) -> Iterable[Mapping[str, Any]]:
    """All objects with a key among arguments, such as `{"tensor": ...}`, in order."""
    if isinstance(value, Mapping):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)


def shown(signature: Signature) -> str:
    """For people: `aten.addmm.default(float32[32], float32[s0, 16], float32[16, 32](1, 16))`."""
    parts = [_shown(arg) for arg in signature.args]
    parts += [f"{name}={_shown(value)}" for name, value in signature.kwargs.items()]
    sizes = ", ".join(f"{name}={value}" for name, value in signature.symbols.items())
    return f"{signature.op}({', '.join(parts)})" + (f" with {sizes}" if sizes else "")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if not isinstance(value, Mapping):
        return repr(value)
    ((kind, content),) = value.items()
    if kind != "tensor":
        return str(content)
    dtype, sizes, *rest = content
    text = f"{dtype}[{', '.join(map(str, sizes))}]"
    if rest:
        strides, offset = rest
        text += f"({', '.join(map(str, strides))})" + (f"+{offset}" if offset else "")
    return text
