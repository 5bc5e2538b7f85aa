"""Values are what the op takes, in the memory layout that the signature says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.signatures import Signature
from op_coverage.traced import calls, like, values
from op_coverage.traced.calls import Shape
from op_coverage.traced.values import Domain

F = "float32"


def made(op: str, *args, symbols=None, **kwargs):
    signature = Signature(op, F, list(args), kwargs, symbols or {})
    call = calls.of(signature)
    built = values.make(call, signature.symbols)
    result = eval(call.source, {"torch": torch})(*built)
    return built, result


def tensor(dtype: str, *sizes, strides=None, offset=0):
    return {"tensor": [dtype, list(sizes)] if strides is None else [dtype, list(sizes), strides, offset]}


def test_indices_lie_within_what_they_index():
    (_, indices), result = made("aten.embedding.default", tensor(F, 7, 3), tensor("int64", 40))
    assert 0 <= int(indices.min()) <= int(indices.max()) < 7
    assert result.shape == (40, 3)


def test_few_indices_are_distinct():
    (_, indices), _ = made("aten.index_select.default", tensor(F, 4, 9), 1, tensor("int64", 9))
    assert sorted(indices.tolist()) == list(range(9))


def test_places_of_a_scatter_are_distinct_along_its_dimension():
    (_, index, _), _ = made("aten.scatter.src", tensor(F, 6, 5), 1, tensor("int64", 6, 5), tensor(F, 6, 5))
    assert all(sorted(row) == list(range(5)) for row in index.tolist())


def test_each_entry_of_an_index_has_the_size_of_its_dimension():
    built, result = made("aten.index.Tensor", tensor(F, 3, 4, 50), [tensor("bool", 3, 4), tensor("int64", 1)])
    assert result.dim() == 1
    assert built[1].dtype is torch.bool


@pytest.mark.parametrize("op", ["rsqrt", "log", "sqrt", "acos", "log1p", "reciprocal", "atanh"])
def test_results_are_finite(op):
    _, result = made(f"aten.{op}.default", tensor(F, 1000))
    assert bool(result.isfinite().all())


@pytest.mark.parametrize(("op", "dtype"), [("div.Tensor", F), ("remainder.Tensor", "int64"), ("fmod.Tensor", F)])
def test_divisors_are_not_zero(op, dtype):
    (_, divisor), _ = made(f"aten.{op}", tensor(dtype, 1000), tensor(dtype, 1000))
    assert bool((divisor != 0).all())


def test_fractional_powers_have_results():
    _, result = made("aten.pow.Tensor_Scalar", tensor(F, 1000), 0.3)
    assert bool(result.isfinite().all())


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=3),
    st.integers(0, 5),
    st.sampled_from([F, "bool", "int64", "complex64", "float16"]),
)
def test_layouts_are_kept(dims, offset, dtype):
    sizes, strides = tuple(n for n, _ in dims), tuple(step for _, step in dims)
    t = values.tensor(Shape(dtype, sizes, strides, offset), Domain())
    assert (tuple(t.shape), t.stride(), t.storage_offset(), str(t.dtype)) == (
        sizes,
        strides,
        offset,
        f"torch.{dtype}",
    )


def test_boundaries_ascend():
    (_, boundaries), _ = made("aten.bucketize.Tensor", tensor(F, 10), tensor(F, 20))
    assert boundaries.tolist() == sorted(boundaries.tolist())


@pytest.mark.parametrize(
    ("op", "numerics"),
    [
        ("aten.addmm.default", "contraction"),
        ("aten.convolution.default", "contraction"),
        ("aten._softmax.default", "composite"),
        ("aten._to_copy.default", "exact"),
        ("aten.index.Tensor", "exact"),
        ("aten.view.default", "exact"),
        ("aten.rsqrt.default", "elementwise"),
        ("aten.div.Tensor", "elementwise"),
        ("aten.sort.default", "property"),
        ("aten.brand_new.default", "composite"),
        ("prims.convert_element_type.default", "exact"),
    ],
)
def test_overloads_are_judged_like_their_op(op, numerics):
    assert like.op_class(op).numerics == numerics
