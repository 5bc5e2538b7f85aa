"""Formats of a backend, and the bounds of each numerical class."""

import math

import pytest
import torch

from conformance.backends.protocol import Capabilities
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.judgement import bounds
from conformance.judgement.bounds import Subject, contraction_factor, formats_for
from conformance.numerics import FORMATS
from conformance.reference import make_reference


def capabilities(**fields):
    return Capabilities(device="cpu", **fields)


def subject_of(numerics, dtype, fn, *args, declared=None):
    """(subject of the first output, spacing at it, reference)."""
    case = Case("test", "f", dtype, ShapeMode.STATIC, Direction.FORWARD)
    reference = make_reference(case, Sample(0, fn, args, {}, numerics, "", ""))
    formats = formats_for(getattr(torch, dtype), declared or capabilities())
    target, same = reference.exact.outputs[0].value, reference.same.outputs[0].value.double()
    subject = Subject(0, numerics, target, same, formats, formats, True)
    return subject, formats.unit(target), reference


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex32"])
def test_short_formats_accumulate_in_fp32_unless_declared_otherwise(dtype):
    assert formats_for(getattr(torch, dtype), capabilities()).accumulation is FORMATS["fp32"]
    declared = capabilities(accumulation={dtype: "dl16"})
    assert formats_for(getattr(torch, dtype), declared).accumulation is FORMATS["dl16"]


def test_a_declared_format_holds_for_complex_numbers_of_it_too():
    declared = capabilities(number_formats={"float32": "tf32"})
    assert formats_for(torch.complex64, declared).device is FORMATS["tf32"]
    assert formats_for(torch.complex64, declared).accumulation is FORMATS["tf32"]


def test_which_formats_are_coarser():
    assert formats_for(torch.float16, capabilities(number_formats={"float16": "dl16"})).coarser
    assert not formats_for(torch.float16, capabilities(number_formats={"float16": "fp32"})).coarser
    assert not formats_for(torch.float16, capabilities()).coarser


def test_the_unit_is_that_of_the_coarser_format():
    one = torch.ones(1, dtype=torch.float64)
    assert formats_for(torch.float16, capabilities(number_formats={"float16": "dl16"})).unit(one).item() == 2.0**-9
    assert formats_for(torch.float16, capabilities(number_formats={"float16": "fp32"})).unit(one).item() == 2.0**-10


def test_what_may_become_zero():
    assert formats_for(torch.float32, capabilities()).smallest_kept == 0.0
    assert formats_for(torch.float32, capabilities(flushes_subnormals=True)).smallest_kept == 2.0**-126


def test_the_contraction_factor_grows_like_n_then_like_its_root():
    assert contraction_factor(1) == 2.0
    assert contraction_factor(64) == 65.0
    assert contraction_factor(10_000) == 801.0


def test_the_contraction_bound_is_that_of_the_accumulation_format():
    a, b = torch.randn(5, 40).half(), torch.randn(40, 5).half()
    subject, unit, reference = subject_of(NumericalClass.CONTRACTION, "float16", torch.mm, a, b)
    _, sums, _ = bounds.stages(subject, unit, reference)
    size = a.double().abs() @ b.double().abs()
    torch.testing.assert_close(sums, 41 * 2.0**-24 * size + 1.5 * unit)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("numerics", [NumericalClass.ELEMENTWISE, NumericalClass.CONTRACTION, NumericalClass.COMPOSITE])
def test_later_bounds_are_wider_where_it_matters(numerics, dtype):
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    fn = torch.mm if numerics is NumericalClass.CONTRACTION else torch.mul
    case = Case("test", "f", dtype, ShapeMode.STATIC, Direction.FORWARD)
    reference = make_reference(case, Sample(0, fn, (x, x), {}, numerics, "", ""))
    formats = formats_for(x.dtype, capabilities())
    same = reference.same.outputs[0].value.double()
    subject = Subject(0, numerics, same, same, formats, formats, False)
    unit = formats.unit(same)
    widths = [float((bound / unit).mean()) for bound in bounds.stages(subject, unit, reference)]
    assert widths == sorted(widths) or numerics is NumericalClass.CONTRACTION
    assert all(math.isfinite(w) and w > 0 for w in widths)


def test_losses_are_shared_among_results_of_one_size_only():
    target = torch.tensor([1.0, 1.1, 1e-6, 1.2e-6], dtype=torch.float64)
    loss = torch.tensor([0.0, 1e-3, 0.0, 1e-12], dtype=torch.float64)
    shared = bounds._among_neighbours(loss, target)
    assert shared[0] == pytest.approx(1e-3 / 1.1)
    assert shared[2] < 2e-9  # in proportion to its own size
    assert shared[1] == 1e-3
    assert bounds._among_neighbours(torch.zeros(1), torch.ones(1)).tolist() == [0.0]


def test_no_bound_is_wider_than_a_tenth_nor_finer_than_the_format():
    target = torch.tensor([1.0, 0.0], dtype=torch.float64)
    formats = formats_for(torch.float8_e4m3fn, capabilities())
    assert bounds.cap(formats.unit(target), target, 1.0).tolist() == [0.25, 0.1]
    wide = formats_for(torch.float32, capabilities())
    assert bounds.cap(wide.unit(target), target, 0.5).tolist() == [0.1, 0.05]


@pytest.mark.parametrize(
    ("elements", "beyond", "excess", "expected"),
    [
        (1_000_000, 10, 1.9, True),
        (1_000_000, 11, 1.9, False),
        (1_000_000, 1, 2.1, False),
        (1_000_000, 1, math.inf, False),
        (99_999, 1, 1.1, False),
    ],
)
def test_of_very_many_numbers_a_few_may_be_just_beyond_an_estimated_bound(elements, beyond, excess, expected):
    allowed = torch.full((elements,), 1e-6)
    error = allowed / 2
    error[:beyond] = excess * allowed[:beyond]
    assert bounds.unlucky(error, allowed, error > allowed) is expected


def test_nothing_is_unlucky_where_no_error_is_allowed():
    error = torch.zeros(1_000_000)
    error[7] = 1e-9
    allowed = torch.zeros(1_000_000)
    assert not bounds.unlucky(error, allowed, error > allowed)
