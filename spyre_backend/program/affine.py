"""Which accesses are affine: `offset + Σ coefficient·axis`, so that memory is a strided view of the iteration space."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from spyre_backend.program.expr import Call, Const, Expr, Fn, Sym


@dataclass(frozen=True, slots=True)
class Affine:
    """`offset + Σ coefficients[axis]·axis`, with concrete integers; an axis of coefficient 0 is left out."""

    offset: int
    coefficients: Mapping[str, int] = field(default_factory=dict)

    def bounds(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Smallest and largest value over a non-empty iteration space with these extents."""
        low = high = self.offset
        for axis, coefficient in self.coefficients.items():
            reach = coefficient * max(extents[axis] - 1, 0)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def is_injective(self, extents: Mapping[str, int], axes: Iterable[str]) -> bool:
        """Whether no two points of `axes` have one value, as far as strides show it: each beyond all smaller ones."""
        reach = 0
        for step, extent in sorted((abs(self.coefficients.get(axis, 0)), extents[axis]) for axis in axes):
            if extent != 1 and step <= reach:
                return False
            reach += step * (extent - 1)
        return True

    def plus(self, other: "Affine") -> "Affine":
        merged = dict(self.coefficients)
        for axis, coefficient in other.coefficients.items():
            merged[axis] = merged.get(axis, 0) + coefficient
        return Affine(self.offset + other.offset, {axis: c for axis, c in merged.items() if c})

    def times(self, factor: int) -> "Affine":
        return Affine(self.offset * factor, {axis: c * factor for axis, c in self.coefficients.items() if factor})


def affine(expr: Expr, extents: Mapping[str, int], symbols: Mapping[str, int | float]) -> Affine | None:
    """`expr` as an affine function of the axes in `extents`, or None where it is not one.

    `symbols` binds every program symbol to a number. Floor division and remainder are resolved where the extents allow
    it: `(4*x0 + x1) // 4` is `x0` for `x1 < 4`. Names that are neither axis nor symbol (values) make it non-affine.
    """
    match expr:
        case Const(value):
            return Affine(int(value)) if value == int(value) else None
        case Sym(name):
            if name in extents:
                return Affine(0, {name: 1} if extents[name] != 1 else {})
            bound = symbols.get(name)
            return Affine(bound) if isinstance(bound, int) else None
        case Call(fn, args):
            parts = []
            for arg in args:
                part = affine(arg, extents, symbols)
                if part is None:
                    return None
                parts.append(part)
            return _combine(fn, parts, extents)
    return None


def _combine(fn: Fn, parts: list[Affine], extents: Mapping[str, int]) -> Affine | None:
    if fn is Fn.ADD:
        total = parts[0]
        for part in parts[1:]:
            total = total.plus(part)
        return total
    if fn is Fn.MUL:
        product = parts[0]
        for part in parts[1:]:
            if product.coefficients and part.coefficients:
                return None
            product = product.times(part.offset) if not part.coefficients else part.times(product.offset)
        return product
    if fn in (Fn.FLOORDIV, Fn.MOD) and not parts[1].coefficients and parts[1].offset > 0:
        return _divide(fn, parts[0], parts[1].offset, extents)
    if fn in _FOLDED and not any(part.coefficients for part in parts):
        return Affine(int(_FOLDED[fn](*(part.offset for part in parts))))
    return None


_FOLDED: dict[Fn, Callable[..., int]] = {
    Fn.MIN: min,
    Fn.MAX: max,
    Fn.POW: lambda a, b: a**b,
    Fn.LT: lambda a, b: a < b,
    Fn.LE: lambda a, b: a <= b,
    Fn.EQ: lambda a, b: a == b,
    Fn.NE: lambda a, b: a != b,
    Fn.WHERE: lambda c, a, b: a if c else b,
    Fn.ABS: abs,
}


def _divide(fn: Fn, value: Affine, divisor: int, extents: Mapping[str, int]) -> Affine | None:
    """`value // divisor` or `value % divisor`: whole multiples split off, the remainder must stay within one period."""
    whole = {axis: c // divisor for axis, c in value.coefficients.items() if c % divisor == 0}
    rest = Affine(
        value.offset % divisor,
        {axis: c for axis, c in value.coefficients.items() if c % divisor},
    )
    low, high = rest.bounds(extents)
    if low < 0 or high >= divisor:
        return None
    return rest if fn is Fn.MOD else Affine(value.offset // divisor, whole)
