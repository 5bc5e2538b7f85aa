"""Verdicts: what is right passes, and every kind of damage is named."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.backends.protocol import Capabilities
from conformance.calls import run_sample
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode, Tolerance
from conformance.judgement.findings import Check
from conformance.judgement.judge import judge
from conformance.numerics import FORMATS, representable
from conformance.reference import make_reference

CPU = Capabilities(device="cpu")
EXACT, ELEMENTWISE, CONTRACTION, COMPOSITE, PROPERTY = NumericalClass


def verdict(fn, got_fn, *args, numerics=COMPOSITE, dtype="float32", direction="fwd", capabilities=CPU, **fields):
    """The judgement of `got_fn` where `fn` is the right callable."""
    sample = Sample(0, fn, args, fields.pop("kwargs", {}), numerics, "", "", **fields)
    case = Case("test", "f", dtype, ShapeMode.STATIC, Direction(direction))
    reference = make_reference(case, sample)
    result = run_sample(got_fn, sample, direction=direction, cotangents=reference.cotangents)
    return judge(case, sample, reference, result, capabilities)


def checks(judgement):
    return {str(f.check) for f in judgement.findings}


def only(judgement):
    assert not judgement.ok
    (finding,) = judgement.findings
    return finding


def noise(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X = noise(4, 5)
M, N = noise(6, 30, seed=1), noise(30, 7, seed=2)
RIGHT = {
    "exact": (torch.t, (X,), EXACT),
    "elementwise": (torch.exp, (X,), ELEMENTWISE),
    "contraction": (torch.mm, (M, N), CONTRACTION),
    "composite": (torch.nn.functional.softmax, (X, 1), COMPOSITE),
}
DTYPES = ["float32", "float16", "bfloat16", "float64"]


def cast(args, dtype):
    return tuple(a.to(getattr(torch, dtype)) if isinstance(a, torch.Tensor) else a for a in args)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("name", RIGHT)
def test_the_right_answer_passes(name, direction, dtype):
    fn, args, numerics = RIGHT[name]
    judged = verdict(fn, fn, *cast(args, dtype), numerics=numerics, dtype=dtype, direction=direction)
    assert judged.findings == ()
    assert judged.ok
    assert judged.compared == (1 if direction == "fwd" else 1 + sum(isinstance(a, torch.Tensor) for a in args))
    assert judged.slack <= 1
    assert judged.loosest <= 0.1


def one_element(by):
    def damage(y):
        y = y.clone()
        y.view(-1)[y.abs().argmax()] *= 1 + by
        return y

    return damage


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RIGHT)
def test_one_element_beyond_the_tolerance(name, dtype):
    fn, args, numerics = RIGHT[name]
    by = {"float32": 1e-4, "float64": 1e-12, "float16": 0.02, "bfloat16": 0.1}[dtype]
    damaged = verdict(
        fn, lambda *a: one_element(by)(fn(*a).contiguous()), *cast(args, dtype), numerics=numerics, dtype=dtype
    )
    assert "values" in checks(damaged)
    assert damaged.slack > 1
    finding = next(f for f in damaged.findings if f.check == Check.VALUES)
    assert finding.where == "output"
    assert "expected" in finding.message
    assert "got" in finding.message


DAMAGE = {
    "dtype": (lambda y: y.double(), "dtype"),
    "transposed strides": (lambda y: y.t().contiguous().t(), "strides"),
    "transposed": (lambda y: y.t(), "shape"),
    "last element lost": (lambda y: y[:, :-1].contiguous(), "shape"),
    "all zeros": (lambda y: torch.zeros_like(y), "values"),
    "two rows swapped": (lambda y: y[[1, 0, 2, 3]], "values"),
    "flipped": (lambda y: y.flip(1), "values"),
    "a NaN": (lambda y: y.masked_fill(y == y.max(), math.nan), "special values"),
    "an infinity": (lambda y: y.masked_fill(y == y.max(), math.inf), "special values"),
    "requires grad": (lambda y: y.clone().requires_grad_(), "requires_grad"),
    "a list": (lambda y: [y], "structure"),
    "a number": (lambda y: 3, "type"),
    "a parameter": (lambda y: torch.nn.Parameter(y, requires_grad=False), "type"),
    "sparse": (lambda y: y.to_sparse(), "layout"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(name):
    damage, check = DAMAGE[name]
    judged = verdict(torch.sigmoid, lambda x: damage(torch.sigmoid(x)), X, numerics=ELEMENTWISE)
    assert check in checks(judged)


def test_special_values_by_position():
    x = torch.tensor([0.0, math.nan, math.inf, -math.inf, 1.0])
    assert verdict(torch.sqrt, torch.sqrt, x, numerics=ELEMENTWISE).ok
    dropped = verdict(torch.sqrt, lambda x: x.sqrt().nan_to_num(1.0, math.inf, -math.inf), x, numerics=ELEMENTWISE)
    finding = only(dropped)
    assert (finding.check, finding.error_class) == (Check.SPECIAL, "finite for NaN")
    assert "expected nan and got 1 at [1]" in finding.message


@pytest.mark.parametrize("numerics", [EXACT, ELEMENTWISE])
def test_the_sign_of_zero(numerics):
    x = torch.tensor([0.0, -0.0, 1.0])
    assert verdict(torch.neg, torch.neg, x, numerics=numerics).ok
    finding = only(verdict(torch.neg, lambda x: 0.0 - x, x, numerics=numerics))
    assert (finding.check, finding.error_class) == (Check.SPECIAL, "sign of zero")


def test_overflow_on_the_way_may_go_either_way():
    x = torch.full((3,), 300.0).half()
    fn = lambda x: x * x / 1000  # noqa: E731
    assert verdict(fn, fn, x, dtype="float16").ok  # inf, as the CPU has it
    assert verdict(fn, lambda x: fn(x.float()).half(), x, dtype="float16").ok  # 90, as it would be without rounding
    assert not verdict(fn, lambda x: torch.full_like(x, math.nan), x, dtype="float16").ok
    assert not verdict(fn, lambda x: torch.full_like(x, 95.0), x, dtype="float16").ok


def test_subnormals_are_kept_unless_the_device_flushes_them():
    x = torch.tensor([1e-39, 1.0])
    flush = lambda x: torch.where(x.abs() < 1.2e-38, 0.0, x) * 1  # noqa: E731
    assert not verdict(torch.clone, flush, x, numerics=ELEMENTWISE).ok
    assert not verdict(torch.clone, flush, x, numerics=EXACT).ok
    flushes = Capabilities(device="cpu", flushes_subnormals=True)
    assert verdict(torch.clone, flush, x, numerics=ELEMENTWISE, capabilities=flushes).ok
    assert verdict(torch.clone, flush, x, numerics=EXACT, capabilities=flushes).ok


def test_a_coarser_device_format_is_judged_by_its_own_units():
    from conformance.numerics import FORMATS, round_to

    def dl16(t):
        return round_to(t.double(), FORMATS["dl16"]).half()

    x = noise(200).half()
    coarse = Capabilities(device="cpu", number_formats={"float16": "dl16"})
    for numerics, fn in ((ELEMENTWISE, torch.exp), (EXACT, torch.neg), (EXACT, torch.floor)):
        on_device = lambda x, fn=fn: dl16(fn(dl16(x).float()))  # noqa: E731
        assert verdict(fn, on_device, x, numerics=numerics, dtype="float16", capabilities=coarse).ok
    rounded = verdict(torch.neg, lambda x: -dl16(x), x, numerics=EXACT, dtype="float16")
    assert not rounded.ok  # a device that says it has fp16 must not lose a bit
    wrong = lambda x: dl16(x.float().exp() * 1.01)  # noqa: E731
    assert not verdict(torch.exp, wrong, x, numerics=ELEMENTWISE, dtype="float16", capabilities=coarse).ok
    top = torch.tensor([65504.0, 1.0]).half()
    assert verdict(torch.clone, dl16, top, numerics=EXACT, dtype="float16", capabilities=coarse).ok


COARSE = Capabilities(device="cpu", number_formats={"float16": "dl16"})


def held(t):
    """As a device with DL16 holds it."""
    return representable(t.double(), FORMATS["dl16"], FORMATS["fp16"]).half()


def test_an_input_that_the_device_rounds_was_not_changed():
    x = noise(50).half()
    assert not torch.equal(held(x), x)

    def rounding(x):
        x.copy_(held(x))
        return x * 1

    def changing(x):
        x.copy_(held(x))
        x[7] += 2.0**-3
        return x * 1

    judged = partial(verdict, lambda x: x * 1, numerics=ELEMENTWISE, dtype="float16")
    assert judged(rounding, x, capabilities=COARSE).ok
    assert checks(judged(changing, x, capabilities=COARSE)) >= {"mutation"}
    assert checks(judged(rounding, x)) >= {"mutation"}


def test_memory_around_an_input_may_be_rounded_and_not_overwritten():
    base = noise(60).half()
    x = base[10:50:2]

    def beside(change):
        def call(x):
            whole = x.as_strided((60,), (1,), 0)
            whole.copy_(held(whole))
            change(whole)
            return x * 1

        return call

    judged = partial(verdict, lambda x: x * 1, numerics=ELEMENTWISE, dtype="float16", capabilities=COARSE)
    assert judged(beside(lambda whole: None), x).ok
    assert checks(judged(beside(lambda whole: whole[3].add_(1)), x)) == {"mutation"}


def test_a_property_is_one_of_the_inputs_that_the_device_has():
    def check(inputs, got, expected):
        (x,) = inputs[0]
        return "" if torch.equal(got, x.sort().values) else "not sorted"

    x = noise(40).half()
    judged = partial(verdict, lambda x: x.sort().values, numerics=PROPERTY, dtype="float16", check=check)
    assert judged(lambda x: held(x).sort().values, x, capabilities=COARSE).ok
    assert not judged(lambda x: held(x), x, capabilities=COARSE).ok
    assert not judged(lambda x: held(x).sort().values, x).ok


def test_next_to_a_pole_exact_for_the_inputs_of_the_device_is_right():
    x = torch.tensor([1.5703125 + 2.0**-10, 0.5]).half()
    judged = partial(verdict, torch.tan, numerics=ELEMENTWISE, dtype="float16", capabilities=COARSE)
    assert float(torch.tan(held(x).double())[0] / torch.tan(x.double())[0]) < 0.5
    assert judged(lambda x: held(torch.tan(held(x).double())), x).ok
    assert not judged(lambda x: held(torch.tan(held(x).double()) * 1.01), x).ok


def test_a_coarser_format_rounds_at_each_step():
    x = torch.tensor([0.0, -4.05]).half()

    def by_steps(x):
        return held(held(held(held(x).double().exp()).double().sum()).double().log())

    judged = partial(verdict, lambda x: x.logsumexp(0), dtype="float16", capabilities=COARSE)
    assert judged(by_steps, x).ok
    assert not judged(lambda x: by_steps(x) * 1.2, x).ok


def test_accumulation_in_a_coarser_format_is_caught_unless_declared():
    a, b = noise(4, 400, seed=3).half(), noise(400, 4, seed=4).half()

    def in_half(a, b):
        out = torch.zeros(4, 4).half()
        for k in range(a.shape[1]):
            out = out + a[:, k : k + 1] * b[k : k + 1]
        return out

    strict = verdict(torch.mm, in_half, a, b, numerics=CONTRACTION, dtype="float16")
    assert Check.VALUES in checks(strict)
    declared = Capabilities(device="cpu", accumulation={"float16": "fp16"})
    loose = verdict(torch.mm, in_half, a, b, numerics=CONTRACTION, dtype="float16", capabilities=declared)
    assert Check.VALUES not in checks(loose)


def test_a_product_left_out_of_a_long_sum():
    judged = verdict(torch.mm, lambda a, b: a[:, :-1] @ b[:-1], M, N, numerics=CONTRACTION)
    assert checks(judged) == {"values"}


def test_a_result_that_is_zero_by_cancellation():
    x = noise(3, 8)
    fn = lambda x: torch.nn.functional.softmax(x, 1).sum(1)  # its gradient is zero in theory  # noqa: E731
    other = lambda x: (x - x.amax(1, keepdim=True)).exp().div((x - x.amax(1, keepdim=True)).exp().sum(1, True)).sum(1)  # noqa: E731
    assert verdict(fn, fn, x, direction="bwd").ok
    assert verdict(fn, other, x, direction="bwd").ok
    assert not verdict(fn, lambda x: fn(x) + (x - x.detach()).sum(1) * 1e-3, x, direction="bwd").ok


def test_a_bound_that_could_not_catch_a_wrong_answer_is_no_pass():
    hilbert = 1 / (torch.arange(8.0).view(-1, 1) + torch.arange(8.0) + 1)
    by_solve = lambda a: torch.linalg.solve(a, torch.eye(8))  # noqa: E731
    judged = verdict(torch.linalg.inv, lambda a: by_solve(a.double().float() * (1 + 1e-6)).contiguous(), hilbert)
    assert not judged.ok
    assert Check.LOOSE in checks(judged) or Check.VALUES in checks(judged)


def test_integers_and_bools_are_exact():
    x = torch.arange(10)
    assert verdict(torch.cumsum, torch.cumsum, x, 0, numerics=CONTRACTION, dtype="int64").ok
    off = lambda x, d: x.cumsum(d) + (x == 9)  # noqa: E731
    finding = only(verdict(torch.cumsum, off, x, 0, numerics=CONTRACTION, dtype="int64"))
    assert "expected 45 and got 46 at [9]" in finding.message
    large = torch.tensor([2**53 + 1])
    assert not verdict(lambda x: x + 0, lambda x: x + 1, large, dtype="int64").ok
    assert not verdict(lambda x: x > 0, lambda x: x >= 0, x, dtype="int64").ok


def test_complex_results_by_component():
    z = torch.complex(noise(5), noise(5, seed=1) * 1e-6)
    assert verdict(torch.square, torch.square, z, dtype="complex64").ok
    imaginary = lambda z: torch.complex((z * z).real, (z * z).imag + 1e-3)  # noqa: E731
    finding = only(verdict(torch.square, imaginary, z, dtype="complex64", numerics=ELEMENTWISE))
    assert ".imag" in finding.message


@pytest.mark.parametrize(
    ("fn", "damaged", "check", "error_class"),
    [
        (lambda x: x[1:], lambda x: x[1:].clone(), Check.ALIAS, "lost"),
        (lambda x: x + 0, lambda x: x, Check.ALIAS, "new"),
        (lambda x: x, lambda x: x.view_as(x), Check.ALIAS, "identity"),
        (lambda x: (x + 1,) * 2, lambda x: (x + 1, x + 1), Check.ALIAS, "lost"),
        (lambda x: x[:2], lambda x: x[2:4], Check.ALIAS, "offset"),
        (lambda x: x.add_(1), lambda x: x + 1, Check.MUTATION, "kept"),
        (lambda x: x + 1, lambda x: x.clone().add_(x.add_(0).mul_(2) * 0 + 1), Check.MUTATION, "changed"),
        (lambda x: x.mul_(2), lambda x: x.mul_(2.1), Check.VALUES, "wrong"),
        (lambda x: x.transpose_(0, 1), lambda x: x.t(), Check.MUTATION, "shape"),
    ],
)
def test_aliasing_and_mutation(fn, damaged, check, error_class):
    x = noise(4, 3)
    assert verdict(fn, fn, x).ok
    judged = verdict(fn, damaged, x)
    assert (check, error_class) in {(f.check, f.error_class) for f in judged.findings}


def test_memory_between_the_elements_of_an_input():
    whole = noise(4, 6)
    right = lambda x: x.add_(1)  # noqa: E731

    def beside(x):
        torch.as_strided(x, (4, 6), (6, 1), 0)[:, 1].zero_()
        return x.add_(1)

    assert verdict(right, right, whole[:, ::2]).ok
    finding = only(verdict(right, beside, whole[:, ::2]))
    assert (finding.check, finding.error_class) == (Check.MUTATION, "out of bounds")


def test_strides_matter_only_where_they_can_be_seen():
    x = noise(3, 1, 4)
    assert verdict(lambda x: x + 1, lambda x: (x + 1).as_strided((3, 1, 4), (4, 99, 1)), x).ok
    assert verdict(lambda x: x[:0] + 1, lambda x: (x[:0] + 1).as_strided((0, 1, 4), (7, 7, 7)), x).ok
    y = noise(2, 3, 4, 5)
    last = lambda y: (y + 1).to(memory_format=torch.channels_last)  # noqa: E731
    finding = only(verdict(lambda y: y + 1, last, y))
    assert (finding.check, finding.error_class) == (Check.STRIDES, "contiguous -> channels last")


def test_wrong_and_missing_gradients():
    class Damaged(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g * 0.9

    x = noise(5)
    wrong = only(verdict(torch.sin, Damaged.apply, x, direction="bwd", numerics=ELEMENTWISE))
    assert (wrong.where, wrong.check) == ("args[0].grad", Check.VALUES)
    missing = verdict(lambda a, b: a * b, lambda a, b: a * b.detach(), x, noise(5, seed=1), direction="bwd")
    assert ("args[1].grad", "missing") in {(f.where, f.error_class) for f in missing.findings}
    none_at_all = verdict(torch.sin, lambda x: x.detach().sin(), x, direction="bwd")
    assert {"requires_grad", "gradient"} <= checks(none_at_all)


def test_replays():
    replays = (((noise(7, seed=5),), {}), ((noise(2, seed=6),), {}))
    assert verdict(torch.exp, torch.exp, noise(4), replays=replays).ok
    memory = {}

    def stale(x):
        if memory.setdefault("calls", 0) == 2:
            return memory["last"]
        memory["calls"] += 1
        memory["last"] = x.exp()
        return memory["last"]

    same_size = (((noise(4, seed=5),), {}), ((noise(4, seed=6),), {}))
    judged = verdict(torch.exp, stale, noise(4), replays=same_size)
    assert {f.where for f in judged.findings} >= {"replay[1] output"}
    shared = torch.empty(4)
    overwriting = verdict(torch.exp, lambda x: torch.exp(x, out=shared), noise(4), replays=same_size)
    assert "output" in {f.where for f in overwriting.findings}


def test_nothing_compared_is_no_pass():
    finding = only(verdict(lambda x: None, lambda x: None, X))
    assert finding.check == Check.NOTHING


def test_plain_values():
    assert verdict(lambda x: (x.shape, 3, "a"), lambda x: (x.shape, 3, "a"), X).ok
    assert checks(verdict(lambda x: x.dim(), lambda x: x.dim() + 1, X)) == {"values"}
    assert checks(verdict(lambda x: 1, lambda x: True, X)) == {"type"}
    assert verdict(lambda x: x.sum().item(), lambda x: x.flip(0, 1).sum().item(), X).ok
    assert checks(verdict(lambda x: x.sum().item(), lambda x: x.sum().item() * 1.001, X)) == {"values"}


def test_swapped_results():
    judged = verdict(lambda x: (x.sin(), x.cos()), lambda x: (x.cos(), x.sin()), X)
    assert [(f.check, f.where) for f in judged.findings] == [(Check.VALUES, "output[0]"), (Check.VALUES, "output[1]")]


# --- property -------------------------------------------------------------------------------------------------------


def test_random_numbers_need_the_distribution_only():
    x = torch.zeros(400)
    fn = torch.rand_like
    other = lambda x: torch.rand(800)[400:]  # noqa: E731
    assert verdict(fn, other, x, numerics=PROPERTY).ok
    assert checks(verdict(fn, lambda x: torch.rand_like(x) * 0.7, x, numerics=PROPERTY)) == {"property"}
    assert checks(verdict(fn, torch.zeros_like, x, numerics=PROPERTY)) == {"property"}
    assert checks(verdict(fn, lambda x: torch.rand_like(x).fill_(math.nan), x, numerics=PROPERTY)) == {"property"}
    assert "dtype" in checks(verdict(fn, lambda x: torch.rand(400).double(), x, numerics=PROPERTY))


def test_uninitialised_memory_needs_metadata_only():
    x = torch.zeros(50)
    garbage = lambda x: torch.full((50,), math.nan)  # noqa: E731
    assert verdict(torch.empty_like, garbage, x, numerics=PROPERTY).ok
    assert checks(verdict(torch.empty_like, lambda x: torch.empty(49), x, numerics=PROPERTY)) == {"shape"}


def test_a_check_of_the_sample_decides():
    def even(inputs, output, reference):
        (x,), kwargs = inputs
        assert x is X
        assert kwargs == {}
        return None if bool((output % 2 == 0).all()) else f"odd numbers, the CPU has {reference.sum():g}"

    even_fn = lambda x: torch.zeros(3)  # noqa: E731
    assert verdict(even_fn, lambda x: torch.full((3,), 4.0), X, numerics=PROPERTY, check=even).ok
    finding = only(verdict(even_fn, lambda x: torch.ones(3), X, numerics=PROPERTY, check=even))
    assert (finding.check, finding.message) == (Check.PROPERTY, "odd numbers, the CPU has 0")


def test_postprocessing_comes_before_the_comparison():
    fn = lambda x: x.clone()  # noqa: E731
    assert verdict(fn, lambda x: -x, X, postprocess=torch.abs).ok
    assert checks(verdict(fn, lambda x: -x * 1.001, X, postprocess=torch.abs)) == {"values"}


# --- laws -----------------------------------------------------------------------------------------------------------

floats = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(floats, min_size=1, max_size=8),
    at=st.integers(0, 7),
    factor=st.sampled_from([0.5, 0.99, 1.01, -1.0]),
)
def test_any_relative_change_of_a_percent_is_caught(values, at, factor):
    x = torch.tensor(values)
    at %= len(values)
    changed = x * 3
    if changed[at] == 0:
        return
    changed[at] *= factor
    fn = lambda x: x * 3  # noqa: E731
    assert not verdict(fn, lambda x: changed.clone(), x, numerics=ELEMENTWISE).ok


@settings(max_examples=25, deadline=None)
@given(values=st.lists(floats, min_size=1, max_size=8), numerics=st.sampled_from([ELEMENTWISE, COMPOSITE, CONTRACTION]))
def test_one_unit_is_always_allowed(values, numerics):
    x = torch.tensor(values)
    fn = lambda x: x * 3  # noqa: E731
    nudged = lambda x: torch.nextafter(x * 3, torch.full_like(x, math.inf))  # noqa: E731
    judged = verdict(fn, lambda x: torch.where(x == 0, x * 3, nudged(x)), x, numerics=numerics)
    assert judged.ok, judged.findings


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(1, 200), dtype=st.sampled_from(DTYPES))
def test_any_order_of_summation_passes(seed, n, dtype):
    x = noise(3, n, seed=seed, dtype=getattr(torch, dtype))
    reorder = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    other = lambda x: x[:, reorder].sum(1)  # noqa: E731
    judged = verdict(lambda x: x.sum(1), other, x, numerics=CONTRACTION, dtype=dtype)
    assert judged.ok, judged.findings


def test_messages_and_error_classes_do_not_hold_addresses():
    judged = verdict(torch.sin, lambda x: x.sin() * 2, X)
    finding = replace(judged.findings[0]) if hasattr(judged.findings[0], "__dataclass_fields__") else judged.findings[0]
    assert "0x" not in str(finding)
    assert finding.error_class == "wrong"


def test_an_unknown_number_format_is_named():
    with pytest.raises(ValueError, match="unknown number format 'fp12'"):
        verdict(torch.sin, torch.sin, X, capabilities=Capabilities(device="cpu", number_formats={"float32": "fp12"}))


def test_terms_that_cancel_do_not_make_a_good_answer_too_loose():
    x, w = noise(6, 2), noise(2, seed=1)
    fn = lambda x, w: torch.nn.functional.layer_norm(x, (2,), w)  # noqa: E731

    def by_hand(x, w):
        centred = x - x.mean(1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(1, keepdim=True) + 1e-5) * w

    assert verdict(fn, by_hand, x, w, direction="bwd").ok  # of two elements, which leaves nothing but the eps
    wrong = lambda x, w: by_hand(x, w) + (x - x.detach()).sum() * 1e-3  # noqa: E731
    assert not verdict(fn, wrong, x, w, direction="bwd").ok


def _by_hand_normalize(x, p, dim):
    return x * x.abs().pow(p).sum(dim, True).pow(1 / p).clamp(min=1e-12).reciprocal()


def _by_hand_softmin(x, dim):
    e = (x.amin(dim, True) - x).exp()
    return e * e.sum(dim, True).reciprocal()


def _by_hand_attention(q, k, v):
    scores = (q @ k.mT) / math.sqrt(q.shape[-1])
    return _by_hand_softmin(-scores, -1) @ v


OTHER_STEPS = {
    # name: (what PyTorch has, the same in other steps)
    "normalised over one element": (
        lambda x: torch.nn.functional.normalize(x[None], p=0.5, dim=0),
        lambda x: _by_hand_normalize(x[None], 0.5, 0),
    ),
    "normalised in the norm of sums": (
        lambda x: torch.nn.functional.normalize(x, p=1.0, dim=1),
        lambda x: _by_hand_normalize(x, 1.0, 1),
    ),
    "softmin": (lambda x: torch.nn.functional.softmin(x, 1), lambda x: _by_hand_softmin(x, 1)),
    "softmax of one element": (lambda x: x[..., None].softmax(-1) * x[..., None], lambda x: x[..., None] * 1),
    "attention": (
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None].sin(), x[None].cos()),
        lambda x: _by_hand_attention(x[None], x[None].sin(), x[None].cos()),
    ),
}


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-3, 0.1, 1.0, 9.0]), name=st.sampled_from([*OTHER_STEPS]))
def test_gradients_in_other_steps_pass_and_changed_ones_do_not(seed, scale, name):
    fn, other = OTHER_STEPS[name]
    x = noise(6, 9, seed=seed) * scale
    judged = verdict(fn, other, x, direction="bwd")
    assert judged.ok, judged.findings
    # A thousandth of the gradient of its largest term, at one element.
    off = lambda x: other(x) + 1e-3 / scale * (x - x.detach())[0, 0] * (torch.arange(9.0) == 0)  # noqa: E731
    assert not verdict(fn, off, x, direction="bwd").ok


def test_a_crossed_threshold_excuses_nothing_else():
    x, y = torch.tensor([7.0, 9.0, -4.0]).half(), torch.tensor([2.0, 3.0, 1.5]).half()
    fn = lambda x, y: torch.div(x, y, rounding_mode="trunc")  # noqa: E731
    assert verdict(fn, fn, x, y, dtype="float16").ok
    assert not verdict(fn, lambda x, y: fn(x, y) + 1, x, y, dtype="float16").ok


def test_the_largest_value_is_no_overflow():
    x = torch.tensor([torch.finfo(torch.float32).max, 1.0])
    judged = verdict(lambda x: x + 0, lambda x: x * 1.01, x, numerics=ELEMENTWISE)
    assert "inf for finite" in {f.error_class for f in judged.findings}


@pytest.mark.parametrize(
    ("tolerance", "ok"),
    [
        (None, False),
        (Tolerance(atol=2e-3), True),
        (Tolerance(ulps=2.0**20), True),  # 1e-3 is half of that at the smallest result, 0.02
        (Tolerance(atol=1e-6), False),
        (Tolerance(atol=1e6), True),
    ],
)
def test_a_declared_tolerance_stands_in_place_of_the_derived_one_and_is_said(tolerance, ok):
    found = verdict(torch.nn.functional.softmax, lambda x, dim: x.softmax(dim) + 1e-3, X, 1, tolerance=tolerance)
    assert found.ok is ok
    assert (tolerance is None) or (str(tolerance) in found.notes)


def test_a_declared_tolerance_that_could_catch_nothing_is_no_pass():
    found = verdict(torch.sin, lambda x: torch.sin(x) + 1, X, tolerance=Tolerance(atol=1e6))
    assert not found.ok
