"""The closed list of what a tile program can do, with the types each opcode takes and gives.

Three enums cover it: `Elementwise` (one result element from one element of each operand), `Reduction` (over the
reduction axes) and the few access and structure opcodes, which are the instruction classes of `program.ir`. No
opcode names an operator of a framework, and none carries code.
"""

import enum
from dataclasses import dataclass

from spyre_backend.program.dtypes import DType
from spyre_backend.program.errors import ProgramError


class Typing(enum.Enum):
    """How the dtypes of an elementwise opcode's operands and result hang together."""

    SAME = "all operands and the result share one dtype"
    FLOAT = "all operands and the result share one floating dtype"
    COMPARE = "operands share one dtype, the result is bool"
    LOGICAL = "operands and result are bool"
    SELECT = "a bool, then two operands of the result's dtype"
    SHIFT = "operands share one integer dtype, which is the result's"
    CONVERT = "any operand, any result"
    FIRST_INT = "an integer operand, then floats of the result's dtype"


_T = Typing


class Elementwise(enum.Enum):
    """Opcodes that compute one result element from one element of each operand: mnemonic, arity, typing."""

    # arithmetic
    ADD = ("add", 2, _T.SAME)
    SUB = ("sub", 2, _T.SAME)
    MUL = ("mul", 2, _T.SAME)
    FMA = ("fma", 3, _T.FLOAT)
    TRUEDIV = ("truediv", 2, _T.FLOAT)
    FLOORDIV = ("floordiv", 2, _T.SAME)
    TRUNCDIV = ("truncdiv", 2, _T.SAME)
    REMAINDER = ("remainder", 2, _T.SAME)
    FMOD = ("fmod", 2, _T.SAME)
    POW = ("pow", 2, _T.SAME)
    NEG = ("neg", 1, _T.SAME)
    ABS = ("abs", 1, _T.SAME)
    SIGN = ("sign", 1, _T.SAME)
    SQUARE = ("square", 1, _T.SAME)
    RELU = ("relu", 1, _T.SAME)
    RECIPROCAL = ("reciprocal", 1, _T.FLOAT)
    MINIMUM = ("minimum", 2, _T.SAME)
    MAXIMUM = ("maximum", 2, _T.SAME)
    FMAX = ("fmax", 2, _T.SAME)
    COPYSIGN = ("copysign", 2, _T.FLOAT)
    HYPOT = ("hypot", 2, _T.FLOAT)
    NEXTAFTER = ("nextafter", 2, _T.FLOAT)
    LDEXP = ("ldexp", 2, _T.FLOAT)
    # rounding
    FLOOR = ("floor", 1, _T.SAME)
    CEIL = ("ceil", 1, _T.SAME)
    TRUNC = ("trunc", 1, _T.SAME)
    ROUND = ("round", 1, _T.SAME)
    # conversions
    CAST = ("cast", 1, _T.CONVERT)
    BITCAST = ("bitcast", 1, _T.CONVERT)
    FREXP_MANTISSA = ("frexp_mantissa", 1, _T.FLOAT)
    FREXP_EXPONENT = ("frexp_exponent", 1, _T.CONVERT)
    # comparison and logic
    EQ = ("eq", 2, _T.COMPARE)
    NE = ("ne", 2, _T.COMPARE)
    LT = ("lt", 2, _T.COMPARE)
    LE = ("le", 2, _T.COMPARE)
    GT = ("gt", 2, _T.COMPARE)
    GE = ("ge", 2, _T.COMPARE)
    ISNAN = ("isnan", 1, _T.COMPARE)
    ISINF = ("isinf", 1, _T.COMPARE)
    SIGNBIT = ("signbit", 1, _T.COMPARE)
    LOGICAL_AND = ("logical_and", 2, _T.LOGICAL)
    LOGICAL_OR = ("logical_or", 2, _T.LOGICAL)
    LOGICAL_XOR = ("logical_xor", 2, _T.LOGICAL)
    LOGICAL_NOT = ("logical_not", 1, _T.LOGICAL)
    WHERE = ("where", 3, _T.SELECT)
    # bits
    BITWISE_AND = ("bitwise_and", 2, _T.SAME)
    BITWISE_OR = ("bitwise_or", 2, _T.SAME)
    BITWISE_XOR = ("bitwise_xor", 2, _T.SAME)
    BITWISE_NOT = ("bitwise_not", 1, _T.SAME)
    LEFT_SHIFT = ("left_shift", 2, _T.SHIFT)
    RIGHT_SHIFT = ("right_shift", 2, _T.SHIFT)
    # exponentials and logarithms
    EXP = ("exp", 1, _T.FLOAT)
    EXP2 = ("exp2", 1, _T.FLOAT)
    EXPM1 = ("expm1", 1, _T.FLOAT)
    LOG = ("log", 1, _T.FLOAT)
    LOG2 = ("log2", 1, _T.FLOAT)
    LOG10 = ("log10", 1, _T.FLOAT)
    LOG1P = ("log1p", 1, _T.FLOAT)
    SQRT = ("sqrt", 1, _T.FLOAT)
    RSQRT = ("rsqrt", 1, _T.FLOAT)
    SIGMOID = ("sigmoid", 1, _T.FLOAT)
    # trigonometry
    SIN = ("sin", 1, _T.FLOAT)
    COS = ("cos", 1, _T.FLOAT)
    TAN = ("tan", 1, _T.FLOAT)
    ASIN = ("asin", 1, _T.FLOAT)
    ACOS = ("acos", 1, _T.FLOAT)
    ATAN = ("atan", 1, _T.FLOAT)
    ATAN2 = ("atan2", 2, _T.FLOAT)
    SINH = ("sinh", 1, _T.FLOAT)
    COSH = ("cosh", 1, _T.FLOAT)
    TANH = ("tanh", 1, _T.FLOAT)
    ASINH = ("asinh", 1, _T.FLOAT)
    ACOSH = ("acosh", 1, _T.FLOAT)
    ATANH = ("atanh", 1, _T.FLOAT)
    # special functions
    ERF = ("erf", 1, _T.FLOAT)
    ERFC = ("erfc", 1, _T.FLOAT)
    ERFCX = ("erfcx", 1, _T.FLOAT)
    ERFINV = ("erfinv", 1, _T.FLOAT)
    LGAMMA = ("lgamma", 1, _T.FLOAT)
    DIGAMMA = ("digamma", 1, _T.FLOAT)
    POLYGAMMA = ("polygamma", 2, _T.FIRST_INT)
    IGAMMA = ("igamma", 2, _T.FLOAT)
    IGAMMAC = ("igammac", 2, _T.FLOAT)
    ZETA = ("zeta", 2, _T.FLOAT)
    NDTR = ("ndtr", 1, _T.FLOAT)
    NDTRI = ("ndtri", 1, _T.FLOAT)
    LOG_NDTR = ("log_ndtr", 1, _T.FLOAT)
    I0 = ("i0", 1, _T.FLOAT)
    I0E = ("i0e", 1, _T.FLOAT)
    I1 = ("i1", 1, _T.FLOAT)
    I1E = ("i1e", 1, _T.FLOAT)
    AIRY_AI = ("airy_ai", 1, _T.FLOAT)
    BESSEL_J0 = ("bessel_j0", 1, _T.FLOAT)
    BESSEL_J1 = ("bessel_j1", 1, _T.FLOAT)
    BESSEL_Y0 = ("bessel_y0", 1, _T.FLOAT)
    BESSEL_Y1 = ("bessel_y1", 1, _T.FLOAT)
    MODIFIED_BESSEL_I0 = ("modified_bessel_i0", 1, _T.FLOAT)
    MODIFIED_BESSEL_I1 = ("modified_bessel_i1", 1, _T.FLOAT)
    MODIFIED_BESSEL_K0 = ("modified_bessel_k0", 1, _T.FLOAT)
    MODIFIED_BESSEL_K1 = ("modified_bessel_k1", 1, _T.FLOAT)
    SCALED_MODIFIED_BESSEL_K0 = ("scaled_modified_bessel_k0", 1, _T.FLOAT)
    SCALED_MODIFIED_BESSEL_K1 = ("scaled_modified_bessel_k1", 1, _T.FLOAT)
    SPHERICAL_BESSEL_J0 = ("spherical_bessel_j0", 1, _T.FLOAT)
    CHEBYSHEV_T = ("chebyshev_polynomial_t", 2, _T.FLOAT)
    CHEBYSHEV_U = ("chebyshev_polynomial_u", 2, _T.FLOAT)
    CHEBYSHEV_V = ("chebyshev_polynomial_v", 2, _T.FLOAT)
    CHEBYSHEV_W = ("chebyshev_polynomial_w", 2, _T.FLOAT)
    SHIFTED_CHEBYSHEV_T = ("shifted_chebyshev_polynomial_t", 2, _T.FLOAT)
    SHIFTED_CHEBYSHEV_U = ("shifted_chebyshev_polynomial_u", 2, _T.FLOAT)
    SHIFTED_CHEBYSHEV_V = ("shifted_chebyshev_polynomial_v", 2, _T.FLOAT)
    SHIFTED_CHEBYSHEV_W = ("shifted_chebyshev_polynomial_w", 2, _T.FLOAT)
    HERMITE_H = ("hermite_polynomial_h", 2, _T.FLOAT)
    HERMITE_HE = ("hermite_polynomial_he", 2, _T.FLOAT)
    LAGUERRE_L = ("laguerre_polynomial_l", 2, _T.FLOAT)
    LEGENDRE_P = ("legendre_polynomial_p", 2, _T.FLOAT)

    arity: int
    typing: Typing

    def __new__(cls, mnemonic: str, arity: int, typing: Typing) -> "Elementwise":
        member = object.__new__(cls)
        member._value_ = mnemonic
        member.arity = arity
        member.typing = typing
        return member

    @property
    def mnemonic(self) -> str:
        return self.value


class Reduction(enum.Enum):
    """What a reduction computes; see `REDUCTIONS` for its operands and results."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    # like max, but a NaN only counts where there is nothing else
    FMAX = "fmax"
    ANY = "any"
    XOR_SUM = "xor_sum"
    ARGMIN = "argmin"
    ARGMAX = "argmax"
    WELFORD = "welford"
    WELFORD_COMBINE = "welford_combine"
    SOFTMAX_STATISTICS = "softmax_statistics"


@dataclass(frozen=True)
class ReductionShape:
    """How many operands a reduction takes (at least, at most) and how many results it gives."""

    operands: tuple[int, int]
    results: int


REDUCTIONS: dict[Reduction, ReductionShape] = {
    **{kind: ReductionShape((1, 1), 1) for kind in Reduction},
    # an optional second operand gives the index to report for each element; without it, the position in the axes
    Reduction.ARGMIN: ReductionShape((1, 2), 1),
    Reduction.ARGMAX: ReductionShape((1, 2), 1),
    # mean, sum of squared deviations, weight
    Reduction.WELFORD: ReductionShape((1, 1), 3),
    Reduction.WELFORD_COMBINE: ReductionShape((3, 3), 3),
    # maximum, sum of exponentials relative to it
    Reduction.SOFTMAX_STATISTICS: ReductionShape((1, 1), 2),
}


class StoreMode(enum.Enum):
    """What a store does where it hits memory; the accumulating modes combine with what is there, for every hit."""

    OVERWRITE = "overwrite"
    ADD = "add"
    MIN = "min"
    MAX = "max"
    PROD = "prod"


class Distribution(enum.Enum):
    """What a random instruction draws from the counter-based generator (Philox 4x32-10)."""

    UNIFORM = "uniform"
    NORMAL = "normal"
    INTEGER = "integer"


def check_types(op: Elementwise, operands: tuple[DType, ...], result: DType) -> None:
    """Raise ProgramError unless the dtypes fit the opcode's typing."""
    if len(operands) != op.arity:
        raise ProgramError(f"{op.mnemonic} takes {op.arity} operands, not {len(operands)}")
    if not _FITS[op.typing](operands, result):
        spelled = ", ".join(dtype.value for dtype in operands)
        raise ProgramError(f"{op.mnemonic}({spelled}) -> {result.value}: {op.typing.value}")


_FITS = {
    Typing.SAME: lambda operands, result: set(operands) == {result},
    Typing.FLOAT: lambda operands, result: set(operands) == {result} and result.is_float,
    Typing.COMPARE: lambda operands, result: len(set(operands)) == 1 and result is DType.BOOL,
    Typing.LOGICAL: lambda operands, result: set(operands) == {result} and result is DType.BOOL,
    Typing.SELECT: lambda operands, result: operands[0] is DType.BOOL and set(operands[1:]) == {result},
    Typing.SHIFT: lambda operands, result: set(operands) == {result} and result.is_integer,
    Typing.CONVERT: lambda operands, result: True,
    Typing.FIRST_INT: lambda operands, result: operands[0].is_integer and set(operands[1:]) == {result},
}
