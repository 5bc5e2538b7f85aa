"""The meaning of every elementwise opcode, on whole tensors of one dtype each."""

from collections.abc import Callable

import torch

from spyre_backend.program.errors import SpyreUnsupported
from spyre_backend.program.opcodes import Elementwise

Tensor = torch.Tensor
_E = Elementwise
_special = torch.special


def apply(op: Elementwise, args: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    """Result of `op` in `dtype`. Raises SpyreUnsupported where there is no implementation for the operand dtypes."""
    try:
        result = _CONVERSIONS[op](args[0], dtype) if op in _CONVERSIONS else _FUNCTIONS[op](*args)
    except (NotImplementedError, RuntimeError) as error:
        if "not implemented for" not in str(error):
            raise
        operands = ", ".join(str(arg.dtype).removeprefix("torch.") for arg in args)
        raise SpyreUnsupported(f"{op.mnemonic}({operands}) is not implemented by the simulator") from error
    return result if result.dtype == dtype else result.to(dtype)


def _integer_division(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Division that never traps: x / 0 is 0 (a masked lane may divide by anything), and x / -1 wraps around."""

    def divide(a: Tensor, b: Tensor) -> Tensor:
        if a.dtype.is_floating_point:
            return function(a, b)
        zero = b == 0
        if not a.dtype.is_signed:
            return function(a, b.masked_fill(zero, 1)).masked_fill(zero, 0)
        minus_one = b == -1
        quotient = function(a, b.masked_fill(zero | minus_one, 1))
        return torch.where(minus_one, -a, quotient).masked_fill(zero, 0)

    return divide


def _integer_remainder(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Remainder that never traps: by 0 and by -1 it is 0."""

    def remainder(a: Tensor, b: Tensor) -> Tensor:
        if a.dtype.is_floating_point:
            return function(a, b)
        degenerate = b == 0 if not a.dtype.is_signed else (b == 0) | (b == -1)
        return function(a, b.masked_fill(degenerate, 1)).masked_fill(degenerate, 0)

    return remainder


def _add(a: Tensor, b: Tensor) -> Tensor:
    return a | b if a.dtype == torch.bool else a + b


def _sub(a: Tensor, b: Tensor) -> Tensor:
    return a ^ b if a.dtype == torch.bool else a - b


def _neg(a: Tensor) -> Tensor:
    return a if a.dtype == torch.bool else -a


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    # the product of two float32 is exact in float64, so that rounding happens once, up to a double rounding of the sum
    return (a.double() * b.double() + c.double()).to(a.dtype)


def _pow(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype.is_floating_point or a.dtype == torch.bool:
        return torch.pow(a, b)
    # whole numbers to a negative power: only 1 and -1 have a non-zero result
    negative = b < 0
    unit = torch.where(a == 1, 1, torch.where(a == -1, torch.where(b % 2 == 0, 1, -1), 0)).to(a.dtype)
    return torch.where(negative, unit, torch.pow(a, b.masked_fill(negative, 0)))


def _polygamma(order: Tensor, x: Tensor) -> Tensor:
    orders = torch.unique(order).tolist()
    if len(orders) == 1:
        return torch.polygamma(int(orders[0]), x)
    order, x = torch.broadcast_tensors(order, x)
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    for n in orders:
        result = torch.where(order == n, torch.polygamma(int(n), x), result)
    return result


def _rounded(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Rounding of a whole number is itself."""
    return lambda a: function(a) if a.dtype.is_floating_point else a


def _relu(a: Tensor) -> Tensor:
    return torch.relu(a) if a.dtype != torch.bool else a


def _cast(a: Tensor, dtype: torch.dtype) -> Tensor:
    return a.to(dtype)


def _bitcast(a: Tensor, dtype: torch.dtype) -> Tensor:
    return a.view(dtype)


_CONVERSIONS: dict[Elementwise, Callable[[Tensor, torch.dtype], Tensor]] = {
    _E.CAST: _cast,
    _E.BITCAST: _bitcast,
    _E.FREXP_EXPONENT: lambda a, dtype: torch.frexp(a).exponent.to(dtype),
}

_FUNCTIONS: dict[Elementwise, Callable[..., Tensor]] = {
    _E.ADD: _add,
    _E.SUB: _sub,
    _E.MUL: torch.mul,
    _E.FMA: _fma,
    _E.TRUEDIV: torch.true_divide,
    _E.FLOORDIV: _integer_division(lambda a, b: torch.div(a, b, rounding_mode="floor")),
    _E.TRUNCDIV: _integer_division(lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    _E.REMAINDER: _integer_remainder(torch.remainder),
    _E.FMOD: _integer_remainder(torch.fmod),
    _E.POW: _pow,
    _E.NEG: _neg,
    _E.ABS: lambda a: torch.abs(a) if a.dtype.is_signed else a,
    _E.SIGN: torch.sign,
    _E.SQUARE: lambda a: a * a,
    _E.RELU: _relu,
    _E.RECIPROCAL: torch.reciprocal,
    _E.MINIMUM: torch.minimum,
    _E.MAXIMUM: torch.maximum,
    _E.FMAX: torch.fmax,
    _E.COPYSIGN: torch.copysign,
    _E.HYPOT: torch.hypot,
    _E.NEXTAFTER: torch.nextafter,
    _E.LDEXP: torch.ldexp,
    _E.FLOOR: _rounded(torch.floor),
    _E.CEIL: _rounded(torch.ceil),
    _E.TRUNC: _rounded(torch.trunc),
    _E.ROUND: _rounded(torch.round),
    _E.FREXP_MANTISSA: lambda a: torch.frexp(a).mantissa,
    _E.EQ: torch.eq,
    _E.NE: torch.ne,
    _E.LT: torch.lt,
    _E.LE: torch.le,
    _E.GT: torch.gt,
    _E.GE: torch.ge,
    _E.ISNAN: torch.isnan,
    _E.ISINF: torch.isinf,
    _E.SIGNBIT: torch.signbit,
    _E.LOGICAL_AND: torch.logical_and,
    _E.LOGICAL_OR: torch.logical_or,
    _E.LOGICAL_XOR: torch.logical_xor,
    _E.LOGICAL_NOT: torch.logical_not,
    _E.WHERE: torch.where,
    _E.BITWISE_AND: torch.bitwise_and,
    _E.BITWISE_OR: torch.bitwise_or,
    _E.BITWISE_XOR: torch.bitwise_xor,
    _E.BITWISE_NOT: torch.bitwise_not,
    _E.LEFT_SHIFT: torch.bitwise_left_shift,
    _E.RIGHT_SHIFT: torch.bitwise_right_shift,
    _E.EXP: torch.exp,
    _E.EXP2: torch.exp2,
    _E.EXPM1: torch.expm1,
    _E.LOG: torch.log,
    _E.LOG2: torch.log2,
    _E.LOG10: torch.log10,
    _E.LOG1P: torch.log1p,
    _E.SQRT: torch.sqrt,
    _E.RSQRT: torch.rsqrt,
    _E.SIGMOID: torch.sigmoid,
    _E.SIN: torch.sin,
    _E.COS: torch.cos,
    _E.TAN: torch.tan,
    _E.ASIN: torch.asin,
    _E.ACOS: torch.acos,
    _E.ATAN: torch.atan,
    _E.ATAN2: torch.atan2,
    _E.SINH: torch.sinh,
    _E.COSH: torch.cosh,
    _E.TANH: torch.tanh,
    _E.ASINH: torch.asinh,
    _E.ACOSH: torch.acosh,
    _E.ATANH: torch.atanh,
    _E.ERF: torch.erf,
    _E.ERFC: torch.erfc,
    _E.ERFCX: _special.erfcx,
    _E.ERFINV: torch.erfinv,
    _E.LGAMMA: torch.lgamma,
    _E.DIGAMMA: torch.digamma,
    _E.POLYGAMMA: _polygamma,
    _E.IGAMMA: _special.gammainc,
    _E.IGAMMAC: _special.gammaincc,
    _E.ZETA: _special.zeta,
    _E.NDTR: _special.ndtr,
    _E.NDTRI: _special.ndtri,
    _E.LOG_NDTR: _special.log_ndtr,
    _E.I0: torch.i0,
    _E.I0E: _special.i0e,
    _E.I1: _special.i1,
    _E.I1E: _special.i1e,
    _E.AIRY_AI: _special.airy_ai,
    _E.BESSEL_J0: _special.bessel_j0,
    _E.BESSEL_J1: _special.bessel_j1,
    _E.BESSEL_Y0: _special.bessel_y0,
    _E.BESSEL_Y1: _special.bessel_y1,
    _E.MODIFIED_BESSEL_I0: _special.modified_bessel_i0,
    _E.MODIFIED_BESSEL_I1: _special.modified_bessel_i1,
    _E.MODIFIED_BESSEL_K0: _special.modified_bessel_k0,
    _E.MODIFIED_BESSEL_K1: _special.modified_bessel_k1,
    _E.SCALED_MODIFIED_BESSEL_K0: _special.scaled_modified_bessel_k0,
    _E.SCALED_MODIFIED_BESSEL_K1: _special.scaled_modified_bessel_k1,
    _E.SPHERICAL_BESSEL_J0: _special.spherical_bessel_j0,
    _E.CHEBYSHEV_T: _special.chebyshev_polynomial_t,
    _E.CHEBYSHEV_U: _special.chebyshev_polynomial_u,
    _E.CHEBYSHEV_V: _special.chebyshev_polynomial_v,
    _E.CHEBYSHEV_W: _special.chebyshev_polynomial_w,
    _E.SHIFTED_CHEBYSHEV_T: _special.shifted_chebyshev_polynomial_t,
    _E.SHIFTED_CHEBYSHEV_U: _special.shifted_chebyshev_polynomial_u,
    _E.SHIFTED_CHEBYSHEV_V: _special.shifted_chebyshev_polynomial_v,
    _E.SHIFTED_CHEBYSHEV_W: _special.shifted_chebyshev_polynomial_w,
    _E.HERMITE_H: _special.hermite_polynomial_h,
    _E.HERMITE_HE: _special.hermite_polynomial_he,
    _E.LAGUERRE_L: _special.laguerre_polynomial_l,
    _E.LEGENDRE_P: _special.legendre_polynomial_p,
}
