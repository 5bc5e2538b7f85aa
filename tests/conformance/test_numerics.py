"""Number formats against PyTorch's own casts."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.numerics import (
    FORMATS,
    Overflow,
    dtype_name,
    format_named,
    format_of,
    ordinal,
    representable,
    round_to,
    ulp,
    ulp_distance,
    ulp_error,
)

CASTS = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def same(a, b):
    return bool(((a == b) & (a.signbit() == b.signbit()) | (a.isnan() & b.isnan())).all())


def all_values(dtype):
    """Every finite value of a format of at most 16 bits, ascending, as float64."""
    bits = torch.arange(2 ** (8 * dtype.itemsize), dtype=torch.int64)
    values = bits.to(torch.uint8 if dtype.itemsize == 1 else torch.uint16).view(dtype).double()
    return values[values.isfinite()].sort().values


@pytest.mark.parametrize("name", CASTS)
def test_constants_are_those_of_the_dtype(name):
    fmt, info = FORMATS[name], torch.finfo(CASTS[name])
    assert fmt.max == info.max
    assert fmt.eps == info.eps
    assert fmt.smallest_normal == info.tiny
    assert torch.tensor(fmt.smallest_subnormal, dtype=torch.float64).to(CASTS[name]).double().item() == fmt.tiny
    assert format_of(CASTS[name]) is fmt


@pytest.mark.parametrize("name", CASTS)
@settings(max_examples=200, deadline=None)
@given(x=st.floats(width=32, allow_nan=True))
def test_round_to_is_the_cast(name, x):
    fmt, value = FORMATS[name], f64(x)
    if fmt.overflow is not Overflow.INF and abs(x) >= 464.0:
        return  # torch saturates here or gives NaN, depending on its version
    # through fp32 first: torch casts doubles to 8-bit formats in two steps
    assert same(round_to(value, fmt), value.float().to(CASTS[name]).double())


@settings(max_examples=300, deadline=None)
@given(x=st.floats(allow_nan=False))
def test_round_to_fp32_from_any_double(x):
    assert same(round_to(f64(x), FORMATS["fp32"]), f64(x).float().double())


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2"])
def test_every_value_its_neighbour_and_every_midpoint(name):
    fmt, dtype = FORMATS[name], CASTS[name]
    values = all_values(dtype)
    assert same(round_to(values, fmt), values)
    distinct = values.unique()
    middle = (distinct[:-1] + distinct[1:]) / 2
    if dtype.itemsize == 2:  # fp32 holds these midpoints exactly, so that one cast is one rounding
        assert same(round_to(middle, fmt), middle.float().to(dtype).double())
    assert (ordinal(distinct, fmt).diff() == 1).all()
    gaps = distinct.diff()
    outward = torch.where(distinct[:-1] >= 0, distinct[:-1], distinct[1:])
    assert (ulp(outward, fmt) == gaps).all()


def test_dl16():
    fmt = FORMATS["dl16"]
    assert fmt.max == pytest.approx(8.57e9, rel=1e-3)
    assert round_to(f64(65504.0), fmt).item() == 65536.0
    assert round_to(f64(1.0 + 2**-10), fmt).item() == 1.0 + 2**-9  # ties away from zero
    assert round_to(f64(-1.0 - 2**-10), fmt).item() == -1.0 - 2**-9
    assert round_to(f64(1.0 + 2**-10 - 2**-50), fmt).item() == 1.0
    assert round_to(f64(2.0 - 2**-52), fmt).item() == 2.0
    assert round_to(f64(1.0 + 3 * 2**-10), fmt).item() == 1.0 + 2 * 2**-9
    assert round_to(f64(9e9), fmt).isnan().item()
    assert round_to(f64(2.0**-31), fmt).item() == 2.0**-31 * (1 + 2**-9)  # the pattern of 2**-31 means zero
    assert round_to(f64(-(2.0**-33)), fmt).item() == 0.0
    assert round_to(f64(-(2.0**-33)), fmt).signbit().item()
    assert ordinal(f64(fmt.tiny), fmt).item() == 1
    assert (round_to(f64(65504.0, 6e-8, 0.1), fmt) != f64(65504.0, 6e-8, 0.1)).all()


def test_what_a_device_makes_of_a_dtype_stays_in_the_dtype():
    x = f64(65504.0, -65504.0, 65440.0, 1.0, math.inf, -0.0)
    made = representable(x, FORMATS["dl16"], FORMATS["fp16"])
    assert same(made, f64(65472.0, -65472.0, 65472.0, 1.0, math.nan, -0.0))
    assert same(representable(x, FORMATS["fp16"], FORMATS["fp16"]), x)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_spacing_is_positive_everywhere(name):
    x = f64(0.0, -0.0, 5e-324, 1e-310, 1e-30, 0.1, 1.0, 3.0, 1e4, 1e300, math.inf)
    assert (ulp(x, FORMATS[name]) > 0).all()
    assert ulp(f64(math.nan), FORMATS[name]).isnan().all()


@settings(max_examples=200, deadline=None)
@given(x=st.floats(allow_nan=False, allow_infinity=False))
def test_spacing_of_fp64_is_that_of_the_machine(x):
    expected = math.ulp(x) if abs(x) < FORMATS["fp64"].max else math.ulp(FORMATS["fp64"].max)
    assert ulp(f64(x), FORMATS["fp64"]).item() == expected


@settings(max_examples=200, deadline=None)
@given(x=st.floats(width=32, allow_nan=False, allow_infinity=False), steps=st.integers(0, 1000))
def test_distance_counts_the_steps_in_fp32(x, steps):
    start = torch.tensor(x, dtype=torch.float32)
    end = start
    up = torch.tensor(math.inf)
    for _ in range(steps % 7):
        end = torch.nextafter(end, up)
    if end.isfinite():
        assert ulp_distance(start.double().reshape(1), end.double().reshape(1), FORMATS["fp32"]).item() == steps % 7


@settings(max_examples=200, deadline=None)
@given(x=st.floats(min_value=-1e30, max_value=1e30), name=st.sampled_from(["fp32", "bf16", "tf32"]))
def test_rounding_errs_by_at_most_half_a_unit_and_is_idempotent(x, name):
    fmt = FORMATS[name]
    y = round_to(f64(x), fmt)
    assert ulp_error(y, f64(x), fmt).item() <= 0.5
    assert same(round_to(y, fmt), y)


def test_integers_are_formats_with_spacing_one():
    fmt = format_of(torch.int8)
    assert fmt.integer
    assert round_to(f64(126.5, 127.5, 1e9, -1e9, 2.5), fmt).tolist() == [126.0, 127.0, 127.0, -128.0, 2.0]
    assert (ulp(f64(0.0, 100.0), fmt) == 1).all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])
def test_finite_formats(dtype):
    fmt, values = format_of(dtype), all_values(dtype).unique()
    assert same(round_to(values, fmt), values)
    assert (ordinal(values, fmt).diff() == 1).all()
    assert (values.max().item(), values[values > 0].min().item()) == (fmt.max, fmt.tiny)
    assert not fmt.has_inf


def test_flushing():
    assert round_to(f64(1e-40, -1e-40), FORMATS["fp32"], flush_subnormals=True).tolist() == [0.0, 0.0]
    assert round_to(f64(1e-40), FORMATS["fp32"]).item() > 0


def test_unknown_names_say_what_is_known():
    with pytest.raises(ValueError, match=r"unknown number format 'fp12'; known: .*dl16"):
        format_named("fp12")
    with pytest.raises(ValueError, match="no number format is known for dtype 'quint8'"):
        format_of("quint8")
    assert dtype_name(torch.bfloat16) == "bfloat16"
