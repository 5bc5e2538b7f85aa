"""Division of sizes that hold symbols."""

import functools
from typing import Any

import sympy

from spyre_backend import upstream


def exact_quotient(size: Any, divisor: Any) -> sympy.Expr | None:
    """`size / divisor` where it is whole whatever the symbols are; None where that is not known.

    Asks upstream only about what is left in lowest terms. Sizes of symbolic convolutions are polynomials, upstream
    neither multiplies nor divides these, and its range analysis fails on the fractions that common factors leave.
    """
    size, divisor = sympy.sympify(size), sympy.sympify(divisor)
    if divisor == 0:
        return sympy.S.One if size == 0 else None
    whole, part = _lowest_terms(size, divisor)
    if part == 1:
        return whole
    return upstream.exact_quotient(whole, part) if upstream.statically_multiple(whole, part) else None


def equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal whatever the symbols are, as far as is known."""
    return a == b or exact_quotient(a, b) == 1 or upstream.statically_equal(a, b)


@functools.lru_cache(maxsize=1024)
def _lowest_terms(size: sympy.Expr, divisor: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Numerator and denominator of `size / divisor`, as polynomials with whole coefficients and no common factor."""
    if size == divisor:
        return sympy.S.One, sympy.S.One
    if divisor == 1:
        return size, divisor
    # what is no polynomial counts as one more unknown
    unknowns: dict[sympy.Basic, sympy.Symbol] = {}
    numerator, denominator = _polynomial(size, unknowns), _polynomial(divisor, unknowns)
    generators = sorted(numerator.free_symbols | denominator.free_symbols, key=str) or [sympy.Dummy()]
    factor, numerator, denominator = sympy.Poly(numerator, *generators, domain="QQ").cancel(
        sympy.Poly(denominator, *generators, domain="QQ")
    )
    meaning = {unknown: expression for expression, unknown in unknowns.items()}
    return (
        (factor.p * numerator.as_expr()).xreplace(meaning),
        (factor.q * denominator.as_expr()).xreplace(meaning),
    )


def _polynomial(expression: sympy.Expr, unknowns: dict[sympy.Basic, sympy.Symbol]) -> sympy.Expr:
    """`expression` with everything but sums, products and natural powers replaced by entries of `unknowns`."""
    if expression.is_Symbol or expression.is_Rational:
        return expression
    if expression.is_Add or expression.is_Mul:
        return expression.func(*(_polynomial(arg, unknowns) for arg in expression.args))
    if expression.is_Pow and expression.exp.is_Integer and expression.exp.is_positive:
        return _polynomial(expression.base, unknowns) ** expression.exp
    return unknowns.setdefault(expression, sympy.Dummy(f"u{len(unknowns)}", integer=True))
