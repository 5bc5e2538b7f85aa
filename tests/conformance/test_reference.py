"""References: the CPU's answer, the float64 one, and the evidence that is computed on demand."""

import gc
import math

import pytest
import torch

from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.numerics import FORMATS
from conformance.reference import (
    DEVIATIONS,
    Reference,
    ReferenceUnavailable,
    bits_equal,
    deviations,
    make_reference,
    rms,
    tensors_of,
)

FP32, DL16 = FORMATS["fp32"], FORMATS["dl16"]


def case(dtype="float32", direction="fwd"):
    return Case("test", "f", dtype, ShapeMode.STATIC, Direction(direction))


def sample(fn, *args, numerics=NumericalClass.COMPOSITE, **fields):
    kwargs = fields.pop("kwargs", {})
    return Sample(0, fn, args, kwargs, numerics, "", "", **fields)


def exact_value(dtype, fn, *args, direction="fwd", **fields):
    return make_reference(case(dtype, direction), sample(fn, *args, **fields)).exact.outputs[0].value


def test_both_runs_and_the_inputs_stay_as_they_are():
    x = torch.full((3,), 0.1)
    reference = make_reference(case(), sample(lambda x: x.mul_(3), x))
    assert x.tolist() == torch.full((3,), 0.1).tolist()
    assert reference.same.outputs[0].value.dtype is torch.float32
    exact = reference.exact.outputs[0].value
    assert exact.dtype is torch.float64
    assert exact[0].item() == float(x[0]) * 3
    assert reference.exact.inputs[0].value[0].item() == float(x[0]) * 3


def test_evidence_that_lacks_memory_is_not_taken_for_none():
    """A bound without it would be too narrow, and call a right result wrong."""

    def hungry(x):
        if x.dtype is torch.float64:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 270000000 bytes")
        return x * 2

    reference = make_reference(case(), sample(hungry, torch.ones(3)))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        assert reference.exact
    reference = make_reference(case(), sample(lambda x: hungry(x) if x[0] != 1 else x * 2, torch.ones(3)))
    assert reference.exact is not None
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        reference.sensitivity(FP32)


def test_integers_promote_to_float64_in_the_exact_run():
    assert exact_value("int64", torch.sqrt, torch.tensor([2])).item() == math.sqrt(2)
    assert torch.get_default_dtype() is torch.float32


def test_dtype_arguments_of_at_least_the_case_s_precision_are_widened():
    x = torch.rand(4).half()
    wide = exact_value("float16", torch.sum, x, kwargs={"dtype": torch.float32})
    assert wide.dtype is torch.float64
    narrow = exact_value("float32", lambda x, d: x.to(d), x.float(), torch.float16)
    assert narrow.dtype is torch.float16


def test_exact_fn_replaces_the_callable_of_the_float64_run():
    x = torch.tensor([math.inf])
    plain = exact_value("float32", torch.nan_to_num, x).item()
    limit = torch.finfo(torch.float32).max
    resolved = exact_value(
        "float32", torch.nan_to_num, x, exact_fn=lambda x: torch.nan_to_num(x, 0.0, limit, -limit)
    ).item()
    assert plain > 1e300
    assert resolved == limit


def test_the_same_cotangents_in_both_runs():
    reference = make_reference(case("bfloat16", "bwd"), sample(lambda x: x.sin(), torch.rand(5).bfloat16()))
    narrow, wide = reference.same.cotangents[0], reference.exact.cotangents[0]
    assert narrow.dtype is torch.bfloat16
    assert torch.equal(narrow.double(), wide)
    assert reference.cotangents == [reference.same.cotangents]


def test_an_op_that_fails_has_no_reference():
    with pytest.raises(ReferenceUnavailable, match=r"eager CPU raised RuntimeError: .*size of tensor") as caught:
        make_reference(case(), sample(torch.add, torch.ones(2), torch.ones(3)))
    assert isinstance(caught.value.cause, RuntimeError)
    with pytest.raises(ReferenceUnavailable, match="nothing to differentiate"):
        make_reference(case(direction="bwd"), sample(lambda x: x > 0, torch.ones(2)))


def test_without_float64_the_cpu_s_own_dtype_must_do():
    def picky(x):
        if x.dtype is torch.float64:
            raise TypeError("no doubles")
        return x + 1

    reference = make_reference(case(), sample(picky, torch.ones(2)))
    assert reference.exact is None
    assert "no doubles" in reference.notes[0]
    short = make_reference(case("float16"), sample(picky, torch.ones(2).half()))
    assert short.exact.outputs[0].value.dtype is torch.float32
    assert "computed in float32" in short.notes[0]


def test_an_answer_that_changes_is_noticed():
    answers = iter(range(10))
    reference = make_reference(case(), sample(lambda x: x + next(answers), torch.ones(2)))
    assert reference.nondeterministic
    assert "two different answers" in reference.notes[0]


def test_what_depends_on_random_numbers_has_no_reference():
    """The numbers that a device draws for a seed are its own: a right answer would differ from the CPU's."""
    with pytest.raises(ReferenceUnavailable, match="random numbers") as caught:
        make_reference(case(), sample(lambda x: x + torch.rand_like(x), torch.ones(2)))
    assert caught.value.cause is None
    turns = iter(range(9))
    taking_turns = make_reference(case(), sample(lambda x: x + next(turns) % 2, torch.ones(2)))
    assert taking_turns.nondeterministic
    ignored = make_reference(case(), sample(lambda x: x + 0 * torch.rand_like(x), torch.ones(2)))
    assert not ignored.nondeterministic


def test_sensitivity_is_the_derivative_times_a_unit():
    x = torch.tensor([1.0, 100.0, 3.0], dtype=torch.float32)
    reference = make_reference(case(), sample(lambda x: 5 * x, x))
    moved = reference.sensitivity(FP32)[0]
    unit = torch.tensor([1.0, 64.0, 2.0], dtype=torch.float64) * FP32.eps
    assert ((moved >= 2.5 * unit) & (moved <= 10 * unit)).all()
    coarse = reference.sensitivity(DL16)[0]
    assert (coarse > 1000 * moved).all()


def test_sensitivity_sees_cancellation():
    a, b = torch.tensor([1000.0]), torch.tensor([999.999])
    reference = make_reference(case(), sample(torch.sub, a, b))
    assert reference.sensitivity(FP32)[0].item() > 1e-5


def test_magnitude_is_the_sum_of_absolute_products():
    a, b = torch.randn(4, 7), torch.randn(7, 3)
    reference = make_reference(case(), sample(torch.mm, a, b))
    torch.testing.assert_close(reference.magnitude()[0], a.double().abs() @ b.double().abs())
    assert reference.terms() == 7


def test_magnitude_of_scaled_sums_takes_the_factors_absolutely():
    c, a, b = torch.randn(4, 3), torch.randn(4, 7), torch.randn(7, 3)
    reference = make_reference(case(), sample(torch.addmm, c, a, b, kwargs={"beta": -2.0, "alpha": -0.5}))
    expected = 2 * c.double().abs() + 0.5 * (a.double().abs() @ b.double().abs())
    torch.testing.assert_close(reference.magnitude()[0], expected)


def test_what_is_no_sum_has_no_magnitude():
    x = torch.tensor([-3.0, 1.0])
    assert make_reference(case(), sample(lambda x: 10 - x, x)).magnitude() is None


@pytest.mark.parametrize(
    ("fn", "args", "terms"),
    [
        (torch.sum, (torch.randn(50),), 50),
        (torch.mean, (torch.randn(60),), 60),
        (torch.cumsum, (torch.randn(3, 20), 1), 20),
        (torch.nn.functional.conv1d, (torch.randn(1, 4, 10), torch.randn(2, 4, 3)), 12),
    ],
)
def test_terms(fn, args, terms):
    assert make_reference(case(), sample(fn, *args)).terms() == terms
    given = sample(fn, *args, contraction_length=lambda args, kwargs: 77)
    assert make_reference(case(), given).terms() == 77


def test_magnitude_of_a_gradient():
    a, b = torch.randn(4, 7), torch.randn(7, 3)
    reference = make_reference(case(direction="bwd"), sample(torch.mm, a, b))
    (cotangent,) = reference.same.cotangents
    position = [leaf.path for leaf in tensors_of(reference.same)].index("args[0].grad")
    torch.testing.assert_close(reference.magnitude()[position], cotangent.double().abs() @ b.double().abs().t())


class Large(torch.nn.Module):
    """As many weights as results."""

    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(size))

    def forward(self, x):
        return self.weight / x - self.weight


def test_memory_does_not_grow_with_the_number_of_runs(monkeypatch):
    size = 100_003
    reference = make_reference(case(), sample(Large(size), torch.tensor(0.7)))
    held = []

    def in_memory():
        seen = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.numel() == size]
        return len({t.untyped_storage().data_ptr() for t in seen})

    run = Reference._run

    def counted(self, *args):
        held.append(in_memory())
        return run(self, *args)

    monkeypatch.setattr(Reference, "_run", counted)
    assert reference.exact is not None
    before = in_memory()
    reference.sensitivity(FP32)
    reference.roundings(FP32, FP32, in_steps=True)
    reference.typical()
    assert len(held) > 16
    assert max(held) <= before + 3  # the sensitivity, the deviations, and those with finer roundings


def test_what_is_measured_is_no_finer_than_the_result():
    for dtype, expected in (("bfloat16", torch.float32), ("float32", torch.float32), ("float64", torch.float64)):
        x = torch.rand(5, dtype=getattr(torch, dtype))
        reference = make_reference(case(dtype), sample(torch.sin, x))
        assert reference.sensitivity(FORMATS["bf16"])[0].dtype is expected
    huge = make_reference(case(), sample(lambda x: x * 3e38 if x.dtype is torch.float32 else x * 3e60, torch.ones(1)))
    assert huge.sensitivity(FP32)[0].isfinite().all()


def test_want_of_memory_is_no_want_of_evidence():
    reference = make_reference(case(), sample(lambda x: x * 2, torch.ones(2)))

    def exhausted():
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: can't allocate memory")

    def refused():
        raise RuntimeError("no such choice")

    assert reference.within("refused", lambda: refused) is None
    with pytest.raises(RuntimeError, match="can't allocate"):
        reference.within("exhausted", lambda: exhausted)


def test_rounded_inputs():
    x = torch.tensor([1 + 2.0**-10, 65504.0, -65504.0]).half()
    reference = make_reference(case("float16"), sample(lambda x: x * 1, x))
    assert reference.on_inputs(DL16, False)[0].tolist() == [1 + 2.0**-9, 65472.0, -65472.0]


def test_replays_have_references_of_their_own():
    reference = make_reference(case(), sample(torch.neg, torch.ones(2), replays=(((torch.ones(5),), {}),)))
    assert reference.replays[0].same.outputs[0].value.shape == (5,)
    assert len(reference.cotangents) == 2


def test_bits():
    nan = torch.tensor([math.nan, 0.0])
    assert bits_equal(nan, nan.clone())
    assert not bits_equal(torch.tensor(0.0), torch.tensor(-0.0))
    assert not bits_equal(torch.tensor(1), torch.tensor(1.0))
    assert bits_equal(math.nan, math.nan)
    assert not bits_equal(1, True)


def test_rms_survives_extremes():
    assert rms(torch.tensor([1e300, 1e300], dtype=torch.float64)) == pytest.approx(1e300)
    assert rms(torch.tensor([1e-300], dtype=torch.float64)) == pytest.approx(1e-300)
    assert rms(torch.tensor([math.nan, 3.0])) == 3.0
    assert rms(torch.tensor([])) is None


@pytest.mark.parametrize("draws", [8, 16])
@pytest.mark.parametrize(("elements", "samples"), [(1000, 1000), (100_000, 100)])
def test_one_right_result_in_a_hundred_exceeds_its_deviations_however_large_it_is(draws, elements, samples):
    generator = torch.Generator().manual_seed(0)
    beyond = 0
    for _ in range(samples):
        known = torch.zeros(elements)
        for _ in range(draws):
            known += torch.randn(elements, generator=generator).square_()
        error = torch.randn(elements, generator=generator).abs_()
        beyond += bool((error > deviations(draws, elements) * (known / draws).sqrt_()).any())
    assert beyond <= samples / 100 + 3 * (samples / 100) ** 0.5
    assert deviations(draws, elements) < 2 * DEVIATIONS[draws]  # and a wrong one still does


@pytest.mark.parametrize("slow", [True, False])
def test_a_slow_reference_is_moved_once_and_further_only_where_that_does_not_do(slow, monkeypatch):
    monkeypatch.setattr("conformance.reference.SLOW", 0.0 if slow else math.inf)
    x = torch.linspace(-1, 1, 64)
    reference = make_reference(case(), sample(lambda x: (x * x.roll(1)).cumsum(0), x))
    assert reference.slow is slow
    once, thorough = (reference.sensitivity(FP32, thorough=t)[0] for t in (False, True))
    assert bool((thorough >= once).all())
    assert bool((thorough > once).any()) is slow
