"""Number formats as data, and arithmetic about them on float64 tensors: spacing, rounding, distance.

Every function takes float64 tensors, which hold each value of every format up to fp64 exactly (integers beyond 2**53
are compared as integers and never come here).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor


class Overflow(StrEnum):
    """What a value beyond the largest finite one rounds to."""

    INF = "inf"
    NAN = "nan"
    SATURATE = "saturate"


@dataclass(frozen=True)
class NumberFormat:
    """A binary number format: values are m * 2**(e - precision + 1) with |m| < 2**precision and emin <= e <= emax.

    An integer format is the same thing with emin = precision - 1, which makes the spacing 1 everywhere.
    """

    name: str
    precision: int  # bits of the significand, with the implicit one
    emin: int  # exponent of the smallest normal binade
    emax: int  # exponent of the largest binade
    max: float  # largest finite value
    smallest_normal: float
    smallest_subnormal: float | None  # None: has no subnormals, small values become zero
    overflow: Overflow = Overflow.INF
    integer: bool = False
    min: float | None = None  # smallest finite value where it is not -max
    ties_away: bool = False  # a value in the middle between two rounds away from zero, not to the even one

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger value: 2**(1 - precision); twice the unit roundoff."""
        return math.ldexp(1.0, 1 - self.precision)

    @property
    def has_inf(self) -> bool:
        return self.overflow is Overflow.INF

    @property
    def has_subnormals(self) -> bool:
        return self.smallest_subnormal is not None

    @property
    def tiny(self) -> float:
        """Smallest positive value."""
        return self.smallest_normal if self.smallest_subnormal is None else self.smallest_subnormal


def _ieee(name: str, precision: int, emin: int, emax: int) -> NumberFormat:
    largest = math.ldexp(2.0 - math.ldexp(1.0, 1 - precision), emax)
    subnormal = math.ldexp(1.0, emin - precision + 1)
    return NumberFormat(name, precision, emin, emax, largest, math.ldexp(1.0, emin), subnormal)


def _int(name: str, bits: int, signed: bool) -> NumberFormat:
    precision = bits - signed
    largest = math.ldexp(1.0, precision) - 1  # rounds to 2**precision in float64 for 64-bit integers
    lowest = -math.ldexp(1.0, precision) if signed else 0.0
    return NumberFormat(
        name, precision, precision - 1, precision - 1, largest, 1.0, 1.0, Overflow.SATURATE, integer=True, min=lowest
    )


FORMATS: dict[str, NumberFormat] = {
    f.name: f
    for f in (
        _ieee("fp64", 53, -1022, 1023),
        _ieee("fp32", 24, -126, 127),
        _ieee("tf32", 11, -126, 127),  # NVIDIA A100 white paper: 8 exponent, 10 mantissa bits
        _ieee("fp16", 11, -14, 15),
        _ieee("bf16", 8, -126, 127),
        # DLFloat16 (Agrawal et al., ARITH 2019): 1-6-9, bias 31, no subnormals: exponent field 0 is a normal binade in
        # which only the pattern zero means zero; the topmost pattern means both NaN and infinity. Its only rounding is
        # "nearest up" (US patent 10656913, of the format's authors).
        NumberFormat(
            "dl16",
            10,
            -31,
            32,
            2.0**32 * (2 - 2.0**-8),
            2.0**-31 * (1 + 2.0**-9),
            None,
            Overflow.NAN,
            ties_away=True,
        ),
        # OCP 8-bit floating point specification 1.0, section 5: E4M3 has no infinity, its topmost pattern is NaN.
        NumberFormat("fp8_e4m3", 4, -6, 8, 448.0, 2.0**-6, 2.0**-9, Overflow.NAN),
        _ieee("fp8_e5m2", 3, -14, 15),
        # "fnuz": finite, NaN in place of the negative zero, one more in the bias (Noune et al., arXiv 2206.02915).
        NumberFormat("fp8_e4m3fnuz", 4, -7, 7, 240.0, 2.0**-7, 2.0**-10, Overflow.NAN),
        NumberFormat("fp8_e5m2fnuz", 3, -15, 15, 57344.0, 2.0**-15, 2.0**-17, Overflow.NAN),
        *(_int(f"int{bits}", bits, True) for bits in (8, 16, 32, 64)),
        *(_int(f"uint{bits}", bits, False) for bits in (8, 16, 32, 64)),
        NumberFormat("bool", 1, 0, 0, 1.0, 1.0, 1.0, Overflow.SATURATE, integer=True, min=0.0),
    )
}

FORMAT_OF_DTYPE: dict[str, str] = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8_e4m3fnuz": "fp8_e4m3fnuz",
    "float8_e5m2fnuz": "fp8_e5m2fnuz",
    "complex128": "fp64",
    "complex64": "fp32",
    "complex32": "fp16",
    **{name: name for name in FORMATS if FORMATS[name].integer},
}
"""Torch dtype name -> the format of its (real) elements."""

ACCUMULATION_OF_DTYPE: dict[str, str] = {"float16": "fp32", "bfloat16": "fp32", "complex32": "fp32"}
"""Format of sums where a backend declares none: what PyTorch's CPU and CUDA kernels use; other dtypes use their own."""


def format_named(name: str) -> NumberFormat:
    """The format called `name`; `ValueError` names the known ones."""
    try:
        return FORMATS[name]
    except KeyError:
        raise ValueError(f"unknown number format {name!r}; known: {', '.join(sorted(FORMATS))}") from None


def dtype_name(dtype: torch.dtype) -> str:
    """`float16` for `torch.float16`."""
    return str(dtype).removeprefix("torch.")


def format_of(dtype: torch.dtype | str) -> NumberFormat:
    """The format in which PyTorch itself holds elements of `dtype`; `ValueError` for a dtype without one."""
    name = dtype if isinstance(dtype, str) else dtype_name(dtype)
    if name not in FORMAT_OF_DTYPE:
        raise ValueError(f"no number format is known for dtype {name!r}; known: {', '.join(sorted(FORMAT_OF_DTYPE))}")
    return FORMATS[FORMAT_OF_DTYPE[name]]


def _exponent(x: Tensor) -> Tensor:
    """floor(log2 |x|) as int64 for finite nonzero float64 `x`; -1023 for zeros and fp64 subnormals."""
    return ((x.contiguous().view(torch.int64) >> 52) & 0x7FF) - 1023


def _power_of_two(e: Tensor) -> Tensor:
    """2**e in float64 for int64 `e` in [-1022, 1023]."""
    return ((e + 1023) << 52).view(torch.float64)


def ulp(x: Tensor, fmt: NumberFormat) -> Tensor:
    """Distance between neighbouring values of `fmt` in the binade of |x| (float64, any shape); never zero.

    Below the smallest normal value it is the smallest positive value of the format. Infinities and values beyond the
    largest one have the spacing of the topmost binade, NaN has NaN.
    """
    if fmt.name == "fp64":
        # The spacing may itself be subnormal, which no power-of-two bit pattern of a normal number can say.
        a = x.abs().clamp(max=fmt.max)
        below = torch.nextafter(a, torch.zeros_like(a))
        return torch.where(a == fmt.max, a - below, torch.nextafter(a, torch.full_like(a, math.inf)) - a)
    e = _exponent(x).clamp(fmt.emin, fmt.emax)
    spacing = _power_of_two(e - (fmt.precision - 1))
    if not fmt.has_subnormals:
        spacing = torch.where(x.abs() < fmt.smallest_normal, fmt.smallest_normal, spacing)
    return torch.where(x.isnan(), math.nan, spacing)


def _round_away(x: Tensor) -> Tensor:
    """To the nearest whole number, ties away from zero. (The sum of x and 1/2 may itself round.)"""
    whole = x.trunc()
    return torch.where((x - whole).abs() >= 0.5, whole + x.sign(), whole).copysign(x)


def round_to(x: Tensor, fmt: NumberFormat, *, flush_subnormals: bool = False) -> Tensor:
    """`x` (float64) rounded to `fmt`, to nearest with its rule for ties, as float64. Signed zeros and NaN are kept.

    Overflow follows the format: an IEEE format gives an infinity from the midpoint above its largest value on; one
    without infinities gives NaN (integers saturate). With `flush_subnormals`, results below the smallest normal are 0.
    """
    lowest = -fmt.max if fmt.min is None else fmt.min
    if fmt.name == "fp64":
        y = x.clone()
    else:
        e = _exponent(x).clamp(fmt.emin, fmt.emax)
        quantum = _power_of_two(e - (fmt.precision - 1))
        nearest_of = _round_away if fmt.ties_away else torch.round
        y = torch.where(x.isfinite(), nearest_of(x / quantum) * quantum, x)
        if not fmt.has_subnormals:  # between zero and the smallest value: nearest of the two, the tie to zero
            small = x.abs() < fmt.smallest_normal
            nearest = (x.abs() > fmt.smallest_normal / 2).double() * fmt.smallest_normal
            y = torch.where(small, torch.copysign(nearest, x), y)
    if flush_subnormals and not fmt.integer:
        y = torch.where(y.abs() < fmt.smallest_normal, torch.copysign(torch.zeros_like(y), y), y)
    if fmt.overflow is Overflow.SATURATE:
        return y.clamp(lowest, fmt.max)
    over = y.abs() > fmt.max
    beyond = torch.copysign(torch.full_like(y, math.inf), y) if fmt.has_inf else torch.full_like(y, math.nan)
    return torch.where(over, beyond, y)


def representable(x: Tensor, fmt: NumberFormat, own: NumberFormat, *, flush_subnormals: bool = False) -> Tensor:
    """What a device that holds numbers in `fmt` makes of `x`, float64 values of the dtype's `own` format.

    The nearest that both formats have: what is rounded up beyond the dtype's largest value could not be copied back,
    and a device takes the last one before it (65472 for fp16's 65504 in DL16, torch-spyre's pull request 2518).
    """
    y = round_to(x, fmt, flush_subnormals=flush_subnormals)
    over = y.isfinite() & (y.abs() > own.max)
    unit = float(ulp(torch.tensor(own.max, dtype=torch.float64), fmt))
    return torch.where(over & (x.abs() <= own.max), torch.copysign(x.new_tensor(own.max // unit * unit), x), y)


def round_randomly(x: Tensor, precision: int, generator: torch.Generator) -> Tensor:
    """`x` (float64) with `precision` significant bits: one of the two neighbours, each with a probability of one minus
    its distance in units (stochastic rounding), so that the mean is `x`. Exponents are those of float64; subnormals of
    float64 keep its spacing. What has no more bits, NaN and infinities stay."""
    dropped = FORMATS["fp64"].precision - precision
    if dropped <= 0:
        return x.clone()
    # A float64's pattern grows with its size: adding up to a unit less one and cutting is the rounding, carry included.
    bits = x.contiguous().view(torch.int64)
    noise = torch.randint(0, 1 << dropped, bits.shape, dtype=torch.int64, generator=generator)
    rounded = ((bits + noise) & -(1 << dropped)).view(torch.float64)
    return torch.where(x.isfinite(), rounded, x)


def ordinal(x: Tensor, fmt: NumberFormat) -> Tensor:
    """Position of `x`, a float64 tensor of finite values of `fmt`, among the values of the format, as int64; 0 is 0.

    Neighbouring values have neighbouring positions.
    """
    if fmt.name == "fp64":
        bits = x.contiguous().view(torch.int64)
        return torch.where(bits < 0, -(bits & 0x7FFF_FFFF_FFFF_FFFF), bits)
    a = x.abs()
    e = _exponent(a).clamp(fmt.emin, fmt.emax)
    p = fmt.precision - 1
    steps = (a / _power_of_two(e - p)).to(torch.int64) + ((e - fmt.emin) << p)
    if not fmt.has_subnormals:  # the smallest value comes right after zero
        first = int(math.ldexp(fmt.smallest_normal, p - fmt.emin))
        steps = torch.where(a == 0, 0, steps - first + 1)
    return torch.where(x < 0, -steps, steps)


def ulp_distance(a: Tensor, b: Tensor, fmt: NumberFormat) -> Tensor:
    """How many values of `fmt` lie between `a` and `b` (both finite values of it, float64), counting one end; int64.

    +0 and -0 are the same value. Not meant for fp64 values of opposite sign and extreme size (the count overflows).
    """
    return (ordinal(a, fmt) - ordinal(b, fmt)).abs()


def ulp_error(got: Tensor, exact: Tensor, fmt: NumberFormat) -> Tensor:
    """|got - exact| in units of the last place of `fmt` at |exact|; float64. `exact` need not be a value of `fmt`."""
    return (got - exact).abs() / ulp(exact, fmt)
