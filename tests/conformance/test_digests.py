"""A digest is a function of what a call does, and of nothing else."""

import pytest
import torch

from conformance import digests

X = torch.arange(6.0).reshape(2, 3)
BASE = ((X,), {"dim": 0})


@pytest.mark.parametrize(
    ("args", "kwargs", "same"),
    [
        ((X.clone(),), {"dim": 0}, True),
        ((X,), {"dim": 1}, False),
        ((X,), {"dim": True}, False),
        ((X.clone().t().contiguous().t(),), {"dim": 0}, False),  # other strides
        ((X.double(),), {"dim": 0}, False),
        ((X + 1e-6,), {"dim": 0}, False),
        ((X.reshape(3, 2),), {"dim": 0}, False),
        (([X],), {"dim": 0}, False),
        ((X.to_sparse(),), {"dim": 0}, False),
        ((X, None), {"dim": 0}, False),
        ((), {"dim": 0}, False),
    ],
)
def test_digests_tell_calls_apart(args, kwargs, same):
    assert (digests.of_calls("f", [(args, kwargs)]) == digests.of_calls("f", [BASE])) is same


def test_digests_tell_callables_and_numbers_of_calls_apart():
    assert digests.of_calls("f", [BASE]) != digests.of_calls("g", [BASE])
    assert digests.of_calls("f", [BASE]) != digests.of_calls("f", [BASE, BASE])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3).to(torch.float8_e4m3fn),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(0, 3),
        torch.tensor(True),
        torch.randn(3, 4).to_sparse_csr(),
        torch.randn(3, 4).to_sparse(),
        torch.randn(4, 4).to_sparse_bsc((2, 2)),
        torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]),
        torch.randn(3).expand(2, 3),
        torch.arange(2.0)[::2],  # one element, stride 2
    ],
    ids=lambda t: f"{t.dtype}-{t.layout}",
)
def test_every_kind_of_tensor_has_a_digest(tensor):
    one, other = (digests.of_calls("f", [((t,), {})]) for t in (tensor, tensor.detach()))
    assert one == other
    assert one != digests.of_calls("f", [((), {})])


def test_representations_have_no_addresses():
    for value in (torch.sin, lambda x: x, torch.Generator(), {3, 1, 2}, torch.float16, float, slice(1, None)):
        assert "0x" not in digests.stable_repr(value)
