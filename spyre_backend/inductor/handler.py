"""Inductor's op handler: every `ops.*` call becomes an instruction of the kernel that is being recorded."""

from collections.abc import Callable
from typing import Any

import sympy
import torch

from spyre_backend import numerics, upstream
from spyre_backend.inductor.types import compute_dtype
from spyre_backend.program import SpyreUnsupported
from spyre_backend.program.opcodes import Distribution, Elementwise

Var = Any  # upstream's CSEVariable; numbers also come where Inductor passes them bare

_E = Elementwise

# same dtype in and out, after promotion
_SAME = {
    "add": _E.ADD, "sub": _E.SUB, "mul": _E.MUL, "mul_rn": _E.MUL, "neg": _E.NEG, "abs": _E.ABS, "sign": _E.SIGN,
    "square": _E.SQUARE, "relu": _E.RELU, "minimum": _E.MINIMUM, "maximum": _E.MAXIMUM, "pow": _E.POW,
    "fmaximum": _E.FMAX,
    "floordiv": _E.FLOORDIV, "truncdiv": _E.TRUNCDIV, "mod": _E.FMOD, "fmod": _E.FMOD, "remainder": _E.REMAINDER,
    "floor": _E.FLOOR, "ceil": _E.CEIL, "trunc": _E.TRUNC, "round": _E.ROUND,
    "and_": _E.BITWISE_AND, "or_": _E.BITWISE_OR, "xor": _E.BITWISE_XOR,
    "bitwise_and": _E.BITWISE_AND, "bitwise_or": _E.BITWISE_OR, "bitwise_xor": _E.BITWISE_XOR,
    "bitwise_not": _E.BITWISE_NOT,
    "lshift": _E.LEFT_SHIFT, "rshift": _E.RIGHT_SHIFT,
    "bitwise_left_shift": _E.LEFT_SHIFT, "bitwise_right_shift": _E.RIGHT_SHIFT,
}  # fmt: skip

# a floating dtype in and out; integers and bools become float32 first
_FLOAT = {
    "truediv": _E.TRUEDIV, "div_rn": _E.TRUEDIV, "reciprocal": _E.RECIPROCAL, "copysign": _E.COPYSIGN,
    "hypot": _E.HYPOT, "nextafter": _E.NEXTAFTER, "ldexp": _E.LDEXP,
    "exp": _E.EXP, "exp2": _E.EXP2, "expm1": _E.EXPM1, "log": _E.LOG, "log2": _E.LOG2, "log10": _E.LOG10,
    "log1p": _E.LOG1P, "sqrt": _E.SQRT, "rsqrt": _E.RSQRT, "sigmoid": _E.SIGMOID,
    "sin": _E.SIN, "cos": _E.COS, "tan": _E.TAN, "asin": _E.ASIN, "acos": _E.ACOS, "atan": _E.ATAN,
    "atan2": _E.ATAN2, "sinh": _E.SINH, "cosh": _E.COSH, "tanh": _E.TANH, "asinh": _E.ASINH, "acosh": _E.ACOSH,
    "atanh": _E.ATANH,
    "erf": _E.ERF, "erfc": _E.ERFC, "erfcx": _E.ERFCX, "erfinv": _E.ERFINV, "lgamma": _E.LGAMMA,
    "digamma": _E.DIGAMMA, "igamma": _E.IGAMMA, "igammac": _E.IGAMMAC, "gammainc": _E.IGAMMA,
    "gammaincc": _E.IGAMMAC, "zeta": _E.ZETA, "ndtr": _E.NDTR, "ndtri": _E.NDTRI, "log_ndtr": _E.LOG_NDTR,
    "i0": _E.I0, "i0e": _E.I0E, "i1": _E.I1, "i1e": _E.I1E, "airy_ai": _E.AIRY_AI,
    "bessel_j0": _E.BESSEL_J0, "bessel_j1": _E.BESSEL_J1, "bessel_y0": _E.BESSEL_Y0, "bessel_y1": _E.BESSEL_Y1,
    "modified_bessel_i0": _E.MODIFIED_BESSEL_I0, "modified_bessel_i1": _E.MODIFIED_BESSEL_I1,
    "modified_bessel_k0": _E.MODIFIED_BESSEL_K0, "modified_bessel_k1": _E.MODIFIED_BESSEL_K1,
    "scaled_modified_bessel_k0": _E.SCALED_MODIFIED_BESSEL_K0,
    "scaled_modified_bessel_k1": _E.SCALED_MODIFIED_BESSEL_K1,
    "spherical_bessel_j0": _E.SPHERICAL_BESSEL_J0,
    "chebyshev_polynomial_t": _E.CHEBYSHEV_T, "chebyshev_polynomial_u": _E.CHEBYSHEV_U,
    "chebyshev_polynomial_v": _E.CHEBYSHEV_V, "chebyshev_polynomial_w": _E.CHEBYSHEV_W,
    "shifted_chebyshev_polynomial_t": _E.SHIFTED_CHEBYSHEV_T,
    "shifted_chebyshev_polynomial_u": _E.SHIFTED_CHEBYSHEV_U,
    "shifted_chebyshev_polynomial_v": _E.SHIFTED_CHEBYSHEV_V,
    "shifted_chebyshev_polynomial_w": _E.SHIFTED_CHEBYSHEV_W,
    "hermite_polynomial_h": _E.HERMITE_H, "hermite_polynomial_he": _E.HERMITE_HE,
    "laguerre_polynomial_l": _E.LAGUERRE_L, "legendre_polynomial_p": _E.LEGENDRE_P,
}  # fmt: skip

# operands promoted, result bool
_COMPARE = {
    "eq": _E.EQ, "ne": _E.NE, "lt": _E.LT, "le": _E.LE, "gt": _E.GT, "ge": _E.GE,
    "isnan": _E.ISNAN, "isinf": _E.ISINF, "signbit": _E.SIGNBIT,
}  # fmt: skip

_LOGICAL = {
    "logical_and": _E.LOGICAL_AND, "logical_or": _E.LOGICAL_OR, "logical_xor": _E.LOGICAL_XOR,
    "logical_not": _E.LOGICAL_NOT,
}  # fmt: skip

# rounding that Inductor wants as an integer
_TO_INT = {
    "floor_to_int": _E.FLOOR, "ceil_to_int": _E.CEIL, "trunc_to_int": _E.TRUNC, "round_to_int": _E.ROUND,
}  # fmt: skip

_ROUNDING = {_E.FLOOR, _E.CEIL, _E.TRUNC, _E.ROUND}


class OpsHandler:
    """The `ops` namespace of a kernel. A method that has no instruction is refused by name, never approximated."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getattr__(self, name: str) -> Callable[..., Var]:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*args: Any, **kwargs: Any) -> Var:
            raise SpyreUnsupported(f"ops.{name} has no instruction in the tile program")

        return refuse

    # ---- values without operands -------------------------------------------------------------------------------------

    def constant(self, value: Any, dtype: torch.dtype) -> Var:
        return self.kernel.constant(value, compute_dtype(dtype))

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Var:
        return self.kernel.index_value(expr, compute_dtype(dtype))

    value_expr = index_expr

    def load_seed(self, name: str, offset: Any) -> Var:
        return self.kernel.load(name, sympy.sympify(offset))

    # ---- dtype changes -----------------------------------------------------------------------------------------------

    def to_dtype(
        self, x: Var, dtype: torch.dtype, src_dtype: torch.dtype | None = None, use_compute_types: bool = True
    ) -> Var:
        narrowed = self.kernel.cast(x, dtype)
        return self.kernel.cast(narrowed, compute_dtype(dtype)) if use_compute_types else narrowed

    def to_dtype_bitcast(self, x: Var, dtype: torch.dtype, src_dtype: torch.dtype) -> Var:
        if torch.float16 in (dtype, src_dtype) and numerics.is_dl16():
            raise SpyreUnsupported("the bits of a float16 are not those of a DL16 number")
        bits = self.kernel.compute_op(_E.BITCAST, (self.kernel.cast(x, src_dtype),), dtype)
        return self.kernel.cast(bits, compute_dtype(dtype))

    def identity(self, x: Var) -> Var:
        return x

    # ---- operations whose typing is their own ------------------------------------------------------------------------

    def where(self, condition: Var, input: Var, other: Var) -> Var:
        dtype = self.kernel.promoted(input, other)
        operands = (self.kernel.cast(condition, torch.bool), *(self.kernel.cast(v, dtype) for v in (input, other)))
        return self.kernel.compute_op(_E.WHERE, operands, dtype)

    def int_truediv(self, x0: Var, x1: Var) -> Var:
        # float64 holds every int32 exactly, and loses least of int64
        operands = tuple(self.kernel.cast(x, torch.float64) for x in (x0, x1))
        return self.kernel.cast(self.kernel.compute_op(_E.TRUEDIV, operands, torch.float64), torch.float32)

    def fma(self, x: Var, y: Var, z: Var) -> Var:
        dtype = self.kernel.promoted(x, y, z)
        if not dtype.is_floating_point:
            return self._promoted(_E.ADD, self._promoted(_E.MUL, x, y), z)
        return self.kernel.compute_op(_E.FMA, tuple(self.kernel.cast(v, dtype) for v in (x, y, z)), dtype)

    def frexp(self, x: Var) -> tuple[Var, Var]:
        x = self.kernel.as_float(x)
        mantissa = self.kernel.compute_op(_E.FREXP_MANTISSA, (x,), x.dtype)
        return mantissa, self.kernel.compute_op(_E.FREXP_EXPONENT, (x,), torch.int32)

    def polygamma(self, x: Var, y: Var) -> Var:
        y = self.kernel.as_float(y)
        return self.kernel.compute_op(_E.POLYGAMMA, (self.kernel.cast(x, torch.int64), y), y.dtype)

    def dot(self, x: Var, y: Var) -> Var:
        return self.kernel.dot(x, y)

    # ---- random numbers ----------------------------------------------------------------------------------------------

    def rand(self, seed: Var, offset: Var) -> Var:
        return self.kernel.random(Distribution.UNIFORM, (seed, offset), torch.float32)

    def randn(self, seed: Var, offset: Var) -> Var:
        return self.kernel.random(Distribution.NORMAL, (seed, offset), torch.float32)

    def randint64(self, seed: Var, offset: Var, low: Var, high: Var) -> Var:
        return self.kernel.random(Distribution.INTEGER, (seed, offset, low, high), torch.int64)

    # ---- structure ---------------------------------------------------------------------------------------------------

    def masked(self, mask: Var, body: Callable[[], Var], other: Any) -> Var:
        with self.kernel.mask_loads(mask, other) as combined:
            result = body()
        return self.where(combined, result, self.kernel.cast(other, result.dtype))

    def indirect_indexing(self, x: Var, size: Any, check: bool = True, wrap_neg: bool = True) -> sympy.Symbol:
        return upstream.index_symbol(str(x))

    def _promoted(self, op: Elementwise, *args: Var) -> Var:
        dtype = self.kernel.promoted(*args)
        if op in _ROUNDING and not dtype.is_floating_point:
            return args[0]
        return self.kernel.compute_op(op, tuple(self.kernel.cast(arg, dtype) for arg in args), dtype)


def _same(op: Elementwise) -> Callable[..., Var]:
    return lambda self, *args: self._promoted(op, *args)


def _float(op: Elementwise) -> Callable[..., Var]:
    def method(self: OpsHandler, *args: Var) -> Var:
        dtype = self.kernel.promoted(*args)
        dtype = dtype if dtype.is_floating_point else torch.float32
        return self.kernel.compute_op(op, tuple(self.kernel.cast(arg, dtype) for arg in args), dtype)

    return method


def _compare(op: Elementwise) -> Callable[..., Var]:
    def method(self: OpsHandler, *args: Var) -> Var:
        dtype = self.kernel.promoted(*args)
        return self.kernel.compute_op(op, tuple(self.kernel.cast(arg, dtype) for arg in args), torch.bool)

    return method


def _logical(op: Elementwise) -> Callable[..., Var]:
    return lambda self, *args: self.kernel.compute_op(
        op, tuple(self.kernel.cast(arg, torch.bool) for arg in args), torch.bool
    )


def _to_int(op: Elementwise) -> Callable[..., Var]:
    return lambda self, x, dtype: self.kernel.cast(self._promoted(op, x), dtype)


_METHODS = ((_SAME, _same), (_FLOAT, _float), (_COMPARE, _compare), (_LOGICAL, _logical), (_TO_INT, _to_int))

for _table, _method in _METHODS:
    for _name, _op in _table.items():
        setattr(OpsHandler, _name, _method(_op))
