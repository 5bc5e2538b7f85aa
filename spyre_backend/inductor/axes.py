"""From Inductor's range trees to the axes of a program.

A range tree is one flat index that each fused node splits in its own way. The axes are the common refinement of all
splits in use, so that every iteration variable is a mixed-radix sum of axes and accesses stay affine.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import sympy

from spyre_backend import upstream
from spyre_backend.inductor.expressions import SymbolTable, Translator
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
        bounds = _chain(tree.numel, entries)
        inner_first = []
        for position, (low, high) in enumerate(itertools.pairwise(bounds)):
            inner_first.append((f"{tree.prefix}{position}", low, upstream.exact_quotient(high, low)))
        axes.extend(Axis(name, sizes(size), tree.is_reduction) for name, _, size in reversed(inner_first))
        for entry in entries:
            variables[entry.symbol()] = _variable(entry, bounds, inner_first, sizes)
    return axes, variables


def _chain(numel: sympy.Expr, entries: list[Any]) -> list[sympy.Expr]:
    """1, then every split point that the previous one divides and that divides `numel`, then `numel`."""
    points = {entry.divisor for entry in entries} | {entry.divisor * entry.length for entry in entries}
    chain = [sympy.S.One]
    for point in sorted(points, key=upstream.size_hint):
        if (
            not upstream.statically_equal(point, chain[-1])
            and upstream.statically_multiple(point, chain[-1])
            and upstream.statically_multiple(numel, point)
        ):
            chain.append(point)
    if not upstream.statically_equal(numel, chain[-1]):
        chain.append(numel)
    return chain


def _variable(entry: Any, bounds: list[sympy.Expr], axes: list[tuple], sizes: Translator) -> Expr:
    """The value of `entry`, which counts `(flat // divisor) % length`."""
    start = _position(entry.divisor, bounds)
    stop = _position(entry.divisor * entry.length, bounds)
    if start is not None and stop is not None:
        return add(
            ZERO,
            *(
                mul(sizes(upstream.exact_quotient(low, entry.divisor)), Sym(name))
                for name, low, _ in reversed(axes[start:stop])
            ),
        )
    flat = add(ZERO, *(mul(sizes(low), Sym(name)) for name, low, _ in reversed(axes)))
    return mod(floordiv(flat, sizes(entry.divisor)), sizes(entry.length))


def _position(point: sympy.Expr, bounds: list[sympy.Expr]) -> int | None:
    return next((i for i, bound in enumerate(bounds) if upstream.statically_equal(point, bound)), None)
