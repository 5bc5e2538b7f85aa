"""Other sizes for a call: consistent, valid, and none where sizes are fixed by the arguments."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.cases import Case, Direction, Options, ShapeMode, Tier
from conformance.reference import make_reference, rms
from op_coverage import upstream
from op_coverage.growth import FIXED, grown
from op_coverage.suite import OpSuite

SIZES = st.integers(2, 6)


@settings(max_examples=30, deadline=None)
@given(m=SIZES, k=SIZES, n=SIZES)
def test_equal_sizes_stay_equal(m, k, n):
    calls = grown(torch.matmul, (torch.randn(m, k), torch.randn(k, n)), {})
    assert len(calls) == 2
    for (a, b), _ in calls:
        assert a.shape[1] == b.shape[0]
        assert a.numel() > m * k
        assert (a.shape[0] == a.shape[1]) == (m == k)


@settings(max_examples=30, deadline=None)
@given(shape=st.lists(st.integers(0, 4), max_size=4))
def test_sizes_zero_and_one_stay(shape):
    x = torch.rand(shape)
    for (y,), _ in grown(torch.exp, (x,), {}):
        assert y.dim() == x.dim()
        for old, new in zip(x.shape, y.shape, strict=True):
            assert (new == old) if old < 2 else (new > old)


def test_indices_still_point_into_what_they_index():
    table, index = torch.randn(10, 3), torch.tensor([[9, 0], [3, 3]])
    calls = grown(torch.nn.functional.embedding, (index, table), {})
    assert len(calls) == 2
    assert all(int(i.max()) < t.shape[0] for (i, t), _ in calls)


def test_memory_order_is_kept():
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    ((y,), _), _ = grown(torch.relu, (x,), {})
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert not y.is_contiguous()


def test_what_must_divide_still_does():
    x, weight = torch.randn(2, 4, 5), torch.randn(6, 2, 3)
    calls = grown(torch.nn.functional.conv1d, (x, weight), {"groups": 2})
    assert calls
    for args, kwargs in calls:
        torch.nn.functional.conv1d(*args, **kwargs)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (torch.exp, (torch.tensor(1.0),)),
        (lambda x, shape: x.view(shape), (torch.randn(1, 6), (2, 3))),
        (torch.exp, (torch.randn(3, 1).expand(3, 4),)),
        (torch.ones, ((2, 3),)),
        (torch.linalg.cholesky, (torch.randn(3, 3),)),  # refused on the CPU already
        (torch.exp, (torch.ones(1500, 1500, 2),)),
    ],
    ids=["no sizes", "sizes in the arguments", "expanded", "no tensors", "refused", "large"],
)
def test_no_other_sizes(fn, args):
    assert grown(fn, args, {}) == []


def test_a_call_that_overflows_with_more_elements_is_not_used():
    x = torch.tensor([1e4] * 4, dtype=torch.float16)  # the sum of 6 is infinite in half precision, of 4 it is not
    assert grown(lambda t: t.sum(dtype=torch.float16).square(), (torch.tensor([100.0, 100.0]).half(),), {}) == []
    assert bool(x.sum().isfinite())


TENSORS = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@settings(max_examples=30, deadline=None)
@given(shape=TENSORS, dtype=st.sampled_from([torch.float32, torch.float64, torch.complex64]), seed=st.integers(0, 99))
def test_repeated_elements_are_no_ties_and_leave_no_interval(shape, dtype, seed):
    x = torch.rand(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)) + 0.5
    for (y,), _ in grown(torch.clone, (x,), {}):
        assert len(set(y.flatten().tolist())) >= y.numel() - 2  # in float32 two may meet by chance
        assert y[tuple(slice(n) for n in x.shape)].equal(x)
        assert y.abs().min() >= 0.75 * x.abs().min() * (1 - 1e-6)
        assert y.abs().max() <= x.abs().max()


INVERT = ["pinverse", "logdet", "lu_solve", "linalg.cond", "linalg.det", "linalg.inv", "linalg.lstsq", "linalg.pinv"]
INVERT += ["linalg.slogdet", "linalg.solve"]


@pytest.mark.parametrize("subject", INVERT)
def test_grown_matrices_can_be_judged(subject):
    """Their gradients in float32 are near those in float64, as far as those of the sample itself are."""
    case = Case("op", subject, "float32", ShapeMode.DYNAMIC, Direction.BACKWARD)
    grew = 0
    for sample in OpSuite().samples(case, Options(tier=Tier.NIGHTLY, max_samples=6)):
        for reference in make_reference(case, sample).replays:
            grew += 1
            if reference.exact is None:  # two answers of the CPU
                continue
            for narrow, wide in zip(reference.same.gradients, reference.exact.gradients, strict=True):
                size = rms(wide.value) or 0.0
                assert (rms(narrow.value.double() - wide.value) or 0.0) <= 3e-3 * size, (sample.index, narrow.path)
    assert grew


def test_ops_with_fixed_sizes_exist():
    assert set(upstream.op_infos()) >= FIXED


def test_a_large_result_is_not_worth_it():
    """A few hundred elements through a dilated convolution make millions; the batch alone may still grow."""
    x, weight, bias = torch.randn(2, 2, 4, 4, 4), torch.randn(2, 2, 4, 5, 6), torch.randn(4)
    kwargs = {"stride": (3, 2, 1), "padding": (1, 2, 3), "output_padding": (2, 3, 1), "groups": 2, "dilation": 4}
    calls = grown(torch.nn.functional.conv_transpose3d, (x, weight, bias), kwargs)
    assert [args[0].shape[0] for args, _ in calls] == [4, 7]
    for args, _ in calls:
        assert torch.nn.functional.conv_transpose3d(*args, **kwargs).numel() < 2**19
