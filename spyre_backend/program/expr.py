"""The index-expression language of the tile program.

Expressions are immutable trees over integer and float constants, names (axes, program symbols and, for indirect
accesses, values) and a closed set of functions. The printed form is an infix form that `parse` reads back:
`128*x0 + x1`, `(x0 // 4) % 8`, `where(x0 < s0, x0, 0)`. Division and remainder are Python's (rounded
down), on integers.
"""

import ast
import enum
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from spyre_backend.program.errors import ProgramError


class Fn(enum.Enum):
    """Functions of an index expression; the value is the name or operator that is printed."""

    ADD = "+"
    MUL = "*"
    FLOORDIV = "//"
    MOD = "%"
    TRUEDIV = "/"
    POW = "**"
    LT = "<"
    LE = "<="
    EQ = "=="
    NE = "!="
    MIN = "min"
    MAX = "max"
    WHERE = "where"
    AND = "all"
    OR = "any"
    NOT = "negate"
    FLOAT = "float"
    FLOOR = "floor"
    CEIL = "ceil"
    TRUNC = "trunc"
    ROUND = "round"
    ABS = "abs"


class Expr:
    """Base of the three kinds of node. Not a dataclass, so that serialisation treats it as the text it prints as."""

    __slots__ = ("_hash",)
    _hash: int

    def _key(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == other._key()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{type(self).__name__}({to_text(self)!r})"

    def __str__(self) -> str:
        return to_text(self)


class Const(Expr):
    """A literal."""

    __slots__ = ("value",)
    __match_args__ = ("value",)

    def __init__(self, value: int | float | bool) -> None:
        self.value = value
        self._hash = hash(("const", value))

    def _key(self) -> tuple[Any, ...]:
        # 1, 1.0 and True print differently; the text also makes nan equal to itself
        return (repr(self.value),)


class Sym(Expr):
    """A name bound elsewhere: an axis, a program symbol or a value of the program."""

    __slots__ = ("name",)
    __match_args__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name
        self._hash = hash(("sym", name))

    def _key(self) -> tuple[Any, ...]:
        return (self.name,)


class Call(Expr):
    """A function applied to expressions. `ADD`, `MUL`, `MIN`, `MAX`, `AND` and `OR` take two or more."""

    __slots__ = ("args", "fn")
    __match_args__ = ("fn", "args")

    def __init__(self, fn: Fn, args: tuple[Expr, ...]) -> None:
        self.fn = fn
        self.args = args
        self._hash = hash((fn, args))

    def _key(self) -> tuple[Any, ...]:
        return (self.fn, self.args)


ZERO = Const(0)
ONE = Const(1)


def names(expr: Expr) -> frozenset[str]:
    """Every name that occurs in `expr`."""
    return frozenset(_walk_names(expr))


def _walk_names(expr: Expr) -> Iterator[str]:
    match expr:
        case Sym(name):
            yield name
        case Call(_, args):
            for arg in args:
                yield from _walk_names(arg)


def substitute(expr: Expr, bindings: Mapping[str, Expr]) -> Expr:
    """`expr` with names replaced and constants folded."""
    match expr:
        case Sym(name):
            return bindings.get(name, expr)
        case Call(fn, args):
            return call(fn, *(substitute(arg, bindings) for arg in args))
    return expr


# ---- construction with constant folding -------------------------------------------------------------------------


def _as_expr(value: Expr | int | float) -> Expr:
    return Const(value) if isinstance(value, (int, float)) else value


def add(*terms: Expr | int) -> Expr:
    return call(Fn.ADD, *map(_as_expr, terms))


def mul(*factors: Expr | int) -> Expr:
    return call(Fn.MUL, *map(_as_expr, factors))


def floordiv(numerator: Expr | int, denominator: Expr | int) -> Expr:
    return call(Fn.FLOORDIV, _as_expr(numerator), _as_expr(denominator))


def mod(numerator: Expr | int, modulus: Expr | int) -> Expr:
    return call(Fn.MOD, _as_expr(numerator), _as_expr(modulus))


def call(fn: Fn, *args: Expr) -> Expr:
    """`fn(*args)`, folded where all arguments are constants and where a neutral element allows it."""
    if fn in (Fn.ADD, Fn.MUL):
        return _fold_nary(fn, args)
    if all(isinstance(arg, Const) for arg in args):
        return Const(_SCALAR[fn](*(arg.value for arg in args)))  # type: ignore[attr-defined]
    if fn is Fn.FLOORDIV and args[1] == ONE:
        return args[0]
    if fn is Fn.MOD and args[1] == ONE:
        return ZERO
    if fn in (Fn.FLOORDIV, Fn.MOD) and args[0] == ZERO:
        return ZERO
    if fn is Fn.WHERE and isinstance(args[0], Const):
        return args[1] if args[0].value else args[2]
    return Call(fn, args)


def _fold_nary(fn: Fn, args: tuple[Expr, ...]) -> Expr:
    neutral = 0 if fn is Fn.ADD else 1
    constant: int | float = neutral
    rest: list[Expr] = []
    for arg in args:
        parts = arg.args if isinstance(arg, Call) and arg.fn is fn else (arg,)
        for part in parts:
            if isinstance(part, Const):
                constant = constant + part.value if fn is Fn.ADD else constant * part.value
            else:
                rest.append(part)
    if fn is Fn.MUL and constant == 0 and not isinstance(constant, float):
        return ZERO
    if not rest:
        return Const(constant)
    if constant != neutral or isinstance(constant, float):
        rest.insert(0, Const(constant))
    return rest[0] if len(rest) == 1 else Call(fn, tuple(rest))


# ---- evaluation --------------------------------------------------------------------------------------------------


def _floordiv(a: Any, b: Any) -> Any:
    # sympy folds division by an empty extent; the result is never used to address anything
    return 0 if b == 0 else a // b


def _mod(a: Any, b: Any) -> Any:
    return 0 if b == 0 else a % b


def _round_half_even(a: float) -> int:
    return round(a)


_SCALAR: dict[Fn, Callable[..., Any]] = {
    Fn.ADD: lambda *a: sum(a[1:], a[0]),
    Fn.MUL: lambda *a: math.prod(a),
    Fn.FLOORDIV: _floordiv,
    Fn.MOD: _mod,
    Fn.TRUEDIV: lambda a, b: a / b,
    Fn.POW: lambda a, b: a**b,
    Fn.LT: lambda a, b: a < b,
    Fn.LE: lambda a, b: a <= b,
    Fn.EQ: lambda a, b: a == b,
    Fn.NE: lambda a, b: a != b,
    Fn.MIN: min,
    Fn.MAX: max,
    Fn.WHERE: lambda c, a, b: a if c else b,
    Fn.AND: lambda *a: all(a),
    Fn.OR: lambda *a: any(a),
    Fn.NOT: lambda a: not a,
    Fn.FLOAT: float,
    Fn.FLOOR: math.floor,
    Fn.CEIL: math.ceil,
    Fn.TRUNC: math.trunc,
    Fn.ROUND: _round_half_even,
    Fn.ABS: abs,
}


def evaluate(expr: Expr, bindings: Mapping[str, Any], functions: Mapping[Fn, Callable[..., Any]] = _SCALAR) -> Any:
    """Value of `expr`, with names looked up in `bindings`.

    `functions` gives the meaning of each `Fn`; the default works on Python numbers, the simulator passes one that works
    on tensors. Raises ProgramError for an unbound name.
    """
    match expr:
        case Const(value):
            return value
        case Sym(name):
            try:
                return bindings[name]
            except KeyError:
                raise ProgramError(f"index expression uses the unbound name {name!r}") from None
        case Call(fn, args):
            return functions[fn](*(evaluate(arg, bindings, functions) for arg in args))
    raise TypeError(expr)


# ---- printing and parsing ----------------------------------------------------------------------------------------

_PRECEDENCE = {
    Fn.LT: 1, Fn.LE: 1, Fn.EQ: 1, Fn.NE: 1,
    Fn.ADD: 2,
    Fn.MUL: 3, Fn.FLOORDIV: 3, Fn.MOD: 3, Fn.TRUEDIV: 3,
    Fn.POW: 5,
}  # fmt: skip
_ATOM = 9
_ASSOCIATIVE = (Fn.ADD, Fn.MUL)


@functools.lru_cache(maxsize=4096)
def to_text(expr: Expr) -> str:
    """Infix form of `expr`; `parse` is its inverse."""
    return _text(expr)[0]


def _text(expr: Expr) -> tuple[str, int]:
    match expr:
        case Const(value):
            return _const_text(value)
        case Sym(name):
            return name, _ATOM
        case Call(fn, args):
            level = _PRECEDENCE.get(fn)
            if level is None:
                return f"{fn.value}({', '.join(_text(arg)[0] for arg in args)})", _ATOM
            glue = f" {fn.value} " if fn not in (Fn.MUL, Fn.POW) else fn.value
            parts = []
            for position, arg in enumerate(args):
                text, inner = _text(arg)
                tight = inner > level or (position == 0 and inner == level and fn in _LEFT_CHAINS)
                parts.append(text if tight else f"({text})")
            return glue.join(parts), level
    raise TypeError(expr)


# `(a // b) % c` prints without parentheses on the left; an n-ary sum inside a sum must keep them to parse back equal
_LEFT_CHAINS = (Fn.FLOORDIV, Fn.MOD, Fn.TRUEDIV)


def _const_text(value: int | float | bool) -> tuple[str, int]:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value!r}")', _ATOM
    text = repr(value)
    return text, (_ATOM if not text.startswith("-") else 0)


_BINARY = {
    ast.Add: Fn.ADD,
    ast.Mult: Fn.MUL,
    ast.FloorDiv: Fn.FLOORDIV,
    ast.Mod: Fn.MOD,
    ast.Div: Fn.TRUEDIV,
    ast.Pow: Fn.POW,
}
_COMPARE = {ast.Lt: Fn.LT, ast.LtE: Fn.LE, ast.Eq: Fn.EQ, ast.NotEq: Fn.NE}
_NAMED = {fn.value: fn for fn in Fn if fn.value.isidentifier()}


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Expr:
    """The expression that `to_text` printed as `text`. Raises ProgramError on anything else."""
    try:
        return _from_ast(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError) as error:
        raise ProgramError(f"not an index expression: {text!r}") from error


def _from_ast(node: ast.expr) -> Expr:
    match node:
        case ast.Constant(value) if isinstance(value, (bool, int, float)):
            return Const(value)
        case ast.UnaryOp(ast.USub(), ast.Constant(value)) if isinstance(value, (int, float)):
            return Const(-value)
        case ast.Name(name):
            return Sym(name)
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _nary(_BINARY[type(op)], left, right)
        case ast.Compare(left, [op], [right]) if type(op) in _COMPARE:
            return Call(_COMPARE[type(op)], (_from_ast(left), _from_ast(right)))
        case ast.Call(ast.Name("float"), [ast.Constant(str(value))]):
            return Const(float(value))
        case ast.Call(ast.Name(name), args) if name in _NAMED:
            return Call(_NAMED[name], tuple(_from_ast(arg) for arg in args))
    raise ProgramError(f"not an index expression: {ast.unparse(node)!r}")


def _nary(fn: Fn, left: ast.expr, right: ast.expr) -> Expr:
    # Python parses a + b + c as (a + b) + c; parentheses written on purpose leave no trace in the tree, but the printer
    # never prints a sum as the first term of a sum (constructors flatten), so the chain is one n-ary call
    first, second = _from_ast(left), _from_ast(right)
    if fn in _ASSOCIATIVE and isinstance(left, ast.BinOp) and _BINARY.get(type(left.op)) is fn:
        assert isinstance(first, Call)
        return Call(fn, (*first.args, second))
    return Call(fn, (first, second))
