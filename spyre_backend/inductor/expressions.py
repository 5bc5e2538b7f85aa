"""From Inductor's sympy expressions to the index expressions of the tile program."""

from collections.abc import Callable

import sympy

from spyre_backend import upstream
from spyre_backend.program.expr import Call, Const, Expr, Fn, Sym, add, call, mul


class Untranslatable(Exception):
    """An expression that the index language cannot say, of something that is known only inside of a launch."""


Leaf = Callable[[sympy.Basic], Expr]


def translate(expression: sympy.Basic, symbol: Leaf, opaque: Leaf) -> Expr:
    """`expression` in the index language, with each sympy symbol replaced by `symbol(s)`, and each part of it that
    applies a function without counterpart by `opaque(part)`."""
    rule = _RULES.get(type(expression).__name__)
    if rule is not None:
        return rule(*(translate(arg, symbol, opaque) for arg in expression.args))
    if isinstance(expression, sympy.Symbol):
        return symbol(expression)
    if isinstance(expression, sympy.Integer):
        return Const(int(expression))
    if expression in (sympy.true, sympy.false):
        return Const(bool(expression))
    if isinstance(expression, sympy.Number) and not expression.is_Rational:
        return Const(float(expression))
    if isinstance(expression, sympy.Rational):
        return Call(Fn.TRUEDIV, (Const(int(expression.p)), Const(int(expression.q))))
    if isinstance(expression, sympy.Pow):
        return _power(expression, symbol, opaque)
    return opaque(expression)


def _power(expression: sympy.Pow, symbol: Leaf, opaque: Leaf) -> Expr:
    base, exponent = expression.args
    if not exponent.is_Integer:
        return opaque(expression)
    power = translate(base, symbol, opaque)
    if int(exponent) == -1:
        return call(Fn.TRUEDIV, Const(1), power)
    if int(exponent) < 0:
        return call(Fn.TRUEDIV, Const(1), call(Fn.POW, power, Const(-int(exponent))))
    return call(Fn.POW, power, Const(int(exponent)))


def _function(fn: Fn) -> Callable[..., Expr]:
    return lambda *args: call(fn, *args)


def _modular(value: Expr, divisor: Expr, modulus: Expr) -> Expr:
    return call(Fn.MOD, call(Fn.FLOORDIV, value, divisor), modulus)


# by class name: sympy's own classes and Inductor's, without importing the latter
_RULES: dict[str, Callable[..., Expr]] = {
    "Add": add,
    "Mul": mul,
    "FloorDiv": _function(Fn.FLOORDIV),
    "CleanDiv": _function(Fn.FLOORDIV),
    "ModularIndexing": _modular,
    "Mod": _function(Fn.MOD),
    "PythonMod": _function(Fn.MOD),
    "IntTrueDiv": _function(Fn.TRUEDIV),
    "FloatTrueDiv": _function(Fn.TRUEDIV),
    "PowByNatural": _function(Fn.POW),
    "FloatPow": _function(Fn.POW),
    "Min": _function(Fn.MIN),
    "Max": _function(Fn.MAX),
    "Where": _function(Fn.WHERE),
    "Identity": lambda value: value,
    "ToFloat": _function(Fn.FLOAT),
    "TruncToInt": _function(Fn.TRUNC),
    "TruncToFloat": lambda value: call(Fn.FLOAT, call(Fn.TRUNC, value)),
    "FloorToInt": _function(Fn.FLOOR),
    "CeilToInt": _function(Fn.CEIL),
    "RoundToInt": _function(Fn.ROUND),
    "floor": _function(Fn.FLOOR),
    "ceiling": _function(Fn.CEIL),
    "Abs": _function(Fn.ABS),
    "Equality": _function(Fn.EQ),
    "Unequality": _function(Fn.NE),
    "StrictLessThan": _function(Fn.LT),
    "LessThan": _function(Fn.LE),
    "StrictGreaterThan": lambda a, b: call(Fn.LT, b, a),
    "GreaterThan": lambda a, b: call(Fn.LE, b, a),
    "And": _function(Fn.AND),
    "Or": _function(Fn.OR),
    "Not": _function(Fn.NOT),
}


class SymbolTable:
    """The program's symbols: numbers that the launch passes, one per distinct sympy expression, in order of use."""

    def __init__(self) -> None:
        self._names: dict[sympy.Basic, str] = {}

    def name(self, expression: sympy.Basic) -> str:
        """The symbol that stands for `expression`."""
        return self._names.setdefault(expression, f"s{len(self._names)}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names.values())

    @property
    def expressions(self) -> tuple[sympy.Basic, ...]:
        """What each symbol stands for, in the order of `names`."""
        return tuple(self._names)


class Translator:
    """Translates with iteration variables replaced by axes, values by name, and all else by program symbols."""

    def __init__(self, variables: dict[sympy.Symbol, Expr], symbols: SymbolTable) -> None:
        self._variables = variables
        self._symbols = symbols
        self._done: dict[sympy.Basic, Expr] = {}

    def __call__(self, expression: sympy.Basic | int) -> Expr:
        """`expression` in the index language; a part that cannot be said, but is known at launch, becomes a symbol.

        Raises Untranslatable for a part that is not known then.
        """
        expression = sympy.sympify(expression)
        if expression not in self._done:
            self._done[expression] = translate(expression, self._symbol, self._opaque)
        return self._done[expression]

    def _opaque(self, part: sympy.Basic) -> Expr:
        if any(s in self._variables or upstream.is_value_symbol(s) for s in part.free_symbols):
            raise Untranslatable(type(part).__name__)
        return Sym(self._symbols.name(part))

    def _symbol(self, symbol: sympy.Symbol) -> Expr:
        if symbol in self._variables:
            return self._variables[symbol]
        if upstream.is_value_symbol(symbol):
            return Sym(symbol.name)
        return Sym(self._symbols.name(symbol))
