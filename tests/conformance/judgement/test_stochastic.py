"""Random rounding: what rounds is off by as much as on a device, and what does not round is not off at all."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.judgement.stochastic import StochasticArithmetic, stochastic_arithmetic
from conformance.numerics import FORMATS, round_randomly, round_to, ulp
from conformance.reference import make_reference, rms, tensors_of

FP32, BF16 = FORMATS["fp32"], FORMATS["bf16"]
F = torch.nn.functional


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@settings(max_examples=200, deadline=None)
@given(x=st.floats(allow_subnormal=False), precision=st.integers(2, 53), seed=st.integers(0, 99))
def test_random_rounding_gives_a_neighbour(x, precision, seed):
    got = round_randomly(torch.tensor([x], dtype=torch.float64), precision, generator(seed)).item()
    if not math.isfinite(x):
        assert got == x or (got != got and x != x)
        return
    if abs(x) > 1e307:
        return  # the neighbour above may be infinite
    mantissa, exponent = math.frexp(x)
    low, high = (math.ldexp(f(mantissa * 2**precision), exponent - precision) for f in (math.floor, math.ceil))
    assert got in (low, high)


def test_random_rounding_is_right_in_the_mean_and_keeps_what_can_be_represented():
    x = torch.full((100_000,), 1.0 + 0.25 * FP32.eps, dtype=torch.float64)
    off = (round_randomly(x, FP32.precision, generator()) - x).mean().item()
    assert abs(off) < 0.01 * FP32.eps
    y = noise(1000).double()
    assert torch.equal(round_randomly(y, FP32.precision, generator()), y)


def rounded(fn, *args, fmt=FP32, seed=0, in_steps=True):
    mode = StochasticArithmetic(fmt.precision, fmt.precision, seed, torch.float64, in_steps=in_steps)
    with stochastic_arithmetic(mode):
        return fn(*args)


X = noise(4, 6).double()
DOES_NOT_ROUND = {
    "views and copies": lambda x: torch.cat([x.t().contiguous().flatten(), x[0].expand(2, 6).flatten()]),
    "selections": lambda x: x.max(1).values + 0 * x.sort(1).values[:, 0],
    "the place of the largest": lambda x: (x == x.amax(1, keepdim=True)).double(),
    "clipping": lambda x: x.relu().clamp(max=0.5).abs().neg(),
    "whole numbers": lambda x: (x * 0 + 7).floor() * 3 - 20,
    "a power of two": lambda x: x * 0.5,
    "written in place": lambda x: x.clone().mul_(2).masked_fill_(x > 0, 1.0),
    "ordering": lambda x: x.topk(3, 1).indices,
}


@pytest.mark.parametrize("name", DOES_NOT_ROUND)
def test_what_does_not_round_is_exact(name):
    fn = DOES_NOT_ROUND[name]
    assert torch.equal(rounded(fn, X), fn(X))


ROUNDS = {
    "a product": lambda x: x * 0.1,
    "in place": lambda x: x.clone().mul_(0.1),
    "into a given tensor": lambda x: torch.mul(x, 0.1, out=torch.empty_like(x)),
    "several results": lambda x: torch.stack(torch.var_mean(x, 1)),
    "a matrix product": lambda x: x @ x.t(),
    "complex numbers": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "a kernel of several steps": lambda x: x.softmax(1),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_what_rounds_is_off_by_a_few_units(name):
    fn = ROUNDS[name]
    exact, got = fn(X), rounded(fn, X)
    assert torch.equal(round_to(got, FP32), got)
    assert not torch.equal(round_to(exact, FP32), got) or torch.equal(ulp(exact, FP32), ulp(got, FP32))
    assert 0 < (rms(got - exact) or 0.0) < 8 * FP32.eps * (rms(exact) or 0.0)


def test_seeds_decide():
    assert torch.equal(rounded(torch.sin, X, seed=3), rounded(torch.sin, X, seed=3))
    assert not torch.equal(rounded(torch.sin, X, seed=3), rounded(torch.sin, X, seed=4))


# --- the bound that comes of it ---------------------------------------------------------------------------------------


def roundings(fn, *args, direction="bwd", fmt=FP32, exact_fn=None):
    """(what the first gradient, or output, may be off; the same for moved inputs; reference)."""
    case = Case("test", "f", "float32", ShapeMode.STATIC, Direction(direction))
    reference = make_reference(case, Sample(0, fn, args, {}, NumericalClass.COMPOSITE, "", "", exact_fn=exact_fn))
    at = [leaf.path for leaf in tensors_of(reference.same)].index("args[0].grad" if direction == "bwd" else "output")
    return reference.roundings(fmt, fmt, in_steps=True)[at], reference.sensitivity(fmt)[at], reference


ZERO_WHATEVER_THE_INPUT = {
    # functions that do not depend on the size of what they normalise: their gradients are exactly 0
    "normalised over one element": lambda x: F.normalize(x[None], p=0.5, dim=0),
    "a quotient of one thing": lambda x: (x * x.abs()) / (x.abs() * x.abs()),
    "a softmax summed": lambda x: x.softmax(1).sum(1),
    "a difference": lambda x: (x.exp() * 3).log() - x,
}


@pytest.mark.parametrize("name", ZERO_WHATEVER_THE_INPUT)
def test_what_cancels_is_lost_on_the_way_whatever_the_inputs(name):
    lost, moved, reference = roundings(ZERO_WHATEVER_THE_INPUT[name], noise(5, 7) / 100)
    exact = reference.exact.gradients[0].value
    assert exact.abs().max() < 1e-9  # float64 sees nothing but its own rounding
    assert (rms(moved) or 0.0) < 1e-3 * (rms(lost) or 0.0)
    got = reference.same.gradients[0].value.double()
    assert ((got - exact).abs() <= lost.clamp(min=rms(lost) or 0.0)).all()


def test_what_jumps_is_no_rounding_error():
    lost, _, _ = roundings(lambda x: (x * 0.1 * 10 * 1e6).floor(), torch.ones(200), direction="fwd")
    assert (lost > 0).double().mean() < 0.1


def test_steps_that_are_another_function_are_no_evidence(monkeypatch):
    from conformance.judgement import stochastic

    table = {torch.ops.aten.sin.default: lambda x: torch.cos(x)}
    monkeypatch.setattr(stochastic, "_in_steps", lambda: table)
    lost, _, _ = roundings(torch.sin, noise(20), direction="fwd")
    assert lost is None


def test_a_run_that_fails_is_no_evidence():
    def picky(x):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("not in this mode")
        return x.sin()

    lost, _, _ = roundings(picky, noise(20), direction="fwd")
    assert lost is None


@pytest.mark.parametrize("name", ["gelu", "softplus", "log_softmax", "layer_norm"])
def test_the_bound_is_that_of_the_format(name):
    fn = {
        "gelu": F.gelu,
        "softplus": F.softplus,
        "log_softmax": lambda x: F.log_softmax(x, 1),
        "layer_norm": lambda x: F.layer_norm(x, (16,)),
    }[name]
    lost, _, reference = roundings(fn, noise(8, 16), direction="fwd")
    coarse, _, _ = roundings(fn, noise(8, 16).bfloat16().float(), direction="fwd", fmt=BF16)
    ratio = (rms(coarse) or 0.0) / (rms(lost) or 1.0)
    assert 2.0**13 < ratio < 2.0**19  # 16 bits fewer
    size = rms(reference.exact.outputs[0].value) or 0.0
    assert (rms(lost) or 0.0) < 100 * FP32.eps * size  # still catches a lost digit
