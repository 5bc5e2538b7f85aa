"""Other sizes for a call: consistent, valid, and none where sizes are fixed by the arguments."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from op_coverage import upstream
from op_coverage.growth import FIXED, grown

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
    ],
    ids=["no sizes", "sizes in the arguments", "expanded", "no tensors", "refused"],
)
def test_no_other_sizes(fn, args):
    assert grown(fn, args, {}) == []


def test_a_call_that_overflows_with_more_elements_is_not_used():
    x = torch.tensor([1e4] * 4, dtype=torch.float16)  # the sum of 6 is infinite in half precision, of 4 it is not
    assert grown(lambda t: t.sum(dtype=torch.float16).square(), (torch.tensor([100.0, 100.0]).half(),), {}) == []
    assert bool(x.sum().isfinite())


def test_ops_with_fixed_sizes_exist():
    assert set(upstream.op_infos()) >= FIXED
