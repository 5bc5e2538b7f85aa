"""Code that names float32 computes in float64 where it is to be exact."""

from __future__ import annotations

import pytest
import torch

from conformance.callables import on_device
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.reference import make_reference
from conformance.widening import widening

X = torch.linspace(-2, 2, 8, dtype=torch.float64)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.float() * 1,
        lambda x: x.to(torch.float32) * 1,
        lambda x: x.to(dtype=torch.float32) * 1,
        lambda x: x.type(torch.float32) * 1,
        lambda x: torch.softmax(x, -1, dtype=torch.float32),
        lambda x: torch.zeros(2, dtype=torch.float32),
        lambda x: torch.tensor([1.0], dtype=torch.float32),
    ],
)
def test_float32_by_name_is_float64(call):
    with widening(torch.float64, torch.float32):
        assert call(X).dtype is torch.float64
    assert call(X).dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool])
def test_coarser_dtypes_and_integers_stay(dtype):
    with widening(torch.float64, torch.float32):
        assert X.to(dtype).dtype is dtype


class Norm(torch.nn.Module):
    """Computes in float32 whatever it is given, as models do."""

    def forward(self, x):
        wide = x.to(torch.float32)
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def test_the_exact_run_of_a_module_does_not_round_where_it_names_float32():
    x = torch.linspace(0.1, 3, 64)
    sample = Sample(0, Norm(), (x,), {}, NumericalClass.COMPOSITE, "digest", "probe")
    case = Case("model", "norm", "float32", ShapeMode.STATIC, Direction.FORWARD)
    exact = make_reference(case, sample).exact
    by_hand = x.double() / (x.double().square().mean() + 1e-6).sqrt()
    assert float((exact.outputs[0].value - by_hand).abs().max()) < 1e-15
    assert float((on_device(sample.fn)(x).double() - by_hand).abs().max()) > 1e-9
