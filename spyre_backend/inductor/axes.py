"""From Inductor's range trees to the axes of a program.

A range tree is one flat index that each fused node splits in its own way. The axes are the common refinement of all
splits in use, so that every iteration variable is a mixed-radix sum of axes and accesses stay affine.
"""

from collections.abc import Iterable
from typing import Any

import sympy

from spyre_backend import upstream
from spyre_backend.inductor.expressions import SymbolTable, Translator
from spyre_backend.inductor.sizes import equal, exact_quotient
from spyre_backend.program.expr import ZERO, Expr, Sym, add, floordiv, mod, mul
from spyre_backend.program.ir import Axis


def refine(trees: Iterable[Any], used: set[sympy.Symbol], symbols: SymbolTable) -> tuple[list[Axis], dict]:
    """Axes for `trees` and, for every iteration variable in `used`, its value in terms of them.

    Axes come in tree order (pointwise first), outermost first within a tree. A tree of one element has no axis.
    """
    sizes = Translator({}, symbols)
    axes: list[Axis] = []
    variables: dict[sympy.Symbol, Expr] = {}
    for tree in trees:
        entries = [entry for entry in tree.nodes.values() if entry.symbol() in used]
        if upstream.statically_equal(tree.numel, 1):
            variables.update((entry.symbol(), ZERO) for entry in entries)
            continue
        bounds, factors = _chain(tree.numel, entries)
        inner_first = [
            (f"{tree.prefix}{position}", low, size)
            for position, (low, size) in enumerate(zip(bounds, factors, strict=False))
        ]
        axes.extend(Axis(name, sizes(size), tree.is_reduction) for name, _, size in reversed(inner_first))
        for entry in entries:
            variables[entry.symbol()] = _variable(entry, bounds, inner_first, sizes)
    return axes, variables


def _chain(numel: sympy.Expr, entries: list[Any]) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
    """1, then every split point that the previous one divides and that divides `numel`, then `numel`; and the quotient
    of each two neighbours."""
    points = {entry.divisor for entry in entries} | {entry.divisor * entry.length for entry in entries}
    chain, factors, rest = [sympy.S.One], [], numel
    for point in sorted(points, key=upstream.size_hint):
        factor = exact_quotient(point, chain[-1])
        if factor is None or upstream.statically_equal(factor, 1):
            continue
        remaining = exact_quotient(numel, point)
        if remaining is not None:
            chain.append(point)
            factors.append(factor)
            rest = remaining
    if not upstream.statically_equal(rest, 1):
        chain.append(numel)
        factors.append(rest)
    return chain, factors


def _variable(entry: Any, bounds: list[sympy.Expr], axes: list[tuple], sizes: Translator) -> Expr:
    """The value of `entry`, which counts `(flat // divisor) % length`."""
    start = _position(entry.divisor, bounds)
    stop = _position(entry.divisor * entry.length, bounds)
    if start is not None and stop is not None:
        terms, weight = [], sizes(1)
        for name, _, size in axes[start:stop]:
            terms.append(mul(weight, Sym(name)))
            weight = mul(weight, sizes(size))
        return add(ZERO, *reversed(terms))
    flat = add(ZERO, *(mul(sizes(low), Sym(name)) for name, low, _ in reversed(axes)))
    return mod(floordiv(flat, sizes(entry.divisor)), sizes(entry.length))


def _position(point: sympy.Expr, bounds: list[sympy.Expr]) -> int | None:
    return next((i for i, bound in enumerate(bounds) if equal(point, bound)), None)
