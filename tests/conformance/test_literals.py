"""Inputs as source come back bit for bit, with their strides, shared memory and gradients."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conformance import literals, repro

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def rebuilt(source: literals.Source) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    scope: dict[str, Any] = {
        "torch": torch,
        "base64": base64,
        "zlib": zlib,
        "device": "cpu",
        "nan": math.nan,
        "inf": math.inf,
    }
    exec(repro.UNPACK, scope)
    for statement in source.statements:
        assert "\n" not in statement
        exec(statement, scope)
    return [eval(call, scope) for call in source.calls]


def bits(t: Tensor) -> bytes:
    flat = torch.empty(t.shape, dtype=t.dtype).copy_(t.detach()).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def assert_same(got: Any, want: Any) -> None:
    assert (got.dtype, got.shape, got.stride(), got.is_conj()) == (
        want.dtype,
        want.shape,
        want.stride(),
        want.is_conj(),
    )
    assert got.storage_offset() == want.storage_offset()
    assert bits(got) == bits(want)


def round_trip(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    (call,) = rebuilt(literals.Source([(args, kwargs)]))
    return call


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 6), max_size=3),
    view=st.sampled_from(["whole", "transposed", "strided", "offset", "expanded"]),
    seed=st.integers(0, 99),
)
def test_tensors_come_back_bit_for_bit(dtype: torch.dtype, shape: list[int], view: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = math.prod(shape)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    t = (raw % 2).bool()[:count] if dtype is torch.bool else raw.view(dtype)
    t = t.reshape(shape)
    if view == "transposed" and t.dim() > 1:
        t = t.transpose(0, 1)
    elif view == "strided" and t.dim():
        t = t[::2]
    elif view == "offset" and t.dim() and t.shape[0]:
        t = t[1:]
    elif view == "expanded" and count:
        t = t.unsqueeze(0).expand(3, *t.shape)
    args, _ = round_trip(t)
    if t.numel():
        assert_same(args[0], t)
    assert (args[0].shape, args[0].dtype) == (t.shape, t.dtype)


@pytest.mark.parametrize(
    "t",
    [
        torch.tensor([math.nan, math.inf, -math.inf, -0.0]),
        torch.tensor([complex(math.nan, -0.0), complex(1, math.inf)]),
        torch.tensor(1.5),
        torch.arange(1000, dtype=torch.float64),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.tensor([0x7FC00001, 0x7F800000], dtype=torch.int32).view(torch.float32),  # a NaN with a payload
    ],
)
def test_special_values(t: Tensor) -> None:
    args, _ = round_trip(t)
    assert_same(args[0], t)


def test_shared_memory_stays_shared() -> None:
    base = torch.arange(12.0)
    first, second, other = base[:6], base[3:9].view(2, 3), base.view(torch.int32)[2:4]
    args, kwargs = round_trip(first, [second, first], other=other)
    assert args[1][1] is args[0]
    for got, want in ((args[0], first), (args[1][0], second), (kwargs["other"], other)):
        assert_same(got, want)
    args[0][3] = 99.0
    assert args[1][0][0, 0] == 99.0


def test_gradients_are_asked_for_where_they_were() -> None:
    a, b = torch.ones(2), torch.ones(2)
    source = literals.Source([((a, b), {})], [[1]])
    ((args, _),) = rebuilt(source)
    assert [t.requires_grad for t in args] == [False, True]
    assert args[1].is_leaf
    (parameter,), _ = round_trip(torch.nn.Parameter(torch.ones(2)))
    assert isinstance(parameter, torch.nn.Parameter)
    assert parameter.requires_grad


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -0.0,
        math.inf,
        2 + 3j,
        "text",
        ...,
        slice(1, None, 2),
        range(3),
        torch.float16,
        torch.strided,
        torch.channels_last,
        torch.Size([2, 3]),
        (1, (2,), [3, {"a": None}]),
        (),
        torch.nn.functional.relu,
        max,
    ],
)
def test_plain_values(value: Any) -> None:
    args, kwargs = round_trip(value, key=value)
    assert args == (value,)
    assert kwargs == {"key": value}
    assert repr(args[0]) == repr(value)


def test_a_device_becomes_the_one_of_the_script() -> None:
    source = literals.Source([((torch.device("cpu"),), {"device": "cpu", "mode": "cpu"})])
    assert source.calls == ["((torch.device(device),), {'device': device, 'mode': 'cpu'})"]


def test_a_device_by_position_becomes_the_one_of_the_script() -> None:
    assert literals.Source([(("cpu", 3), {})]).calls == ["((device, 3,), {})"]


def test_what_stays_on_the_cpu_is_made_there() -> None:
    source = literals.Source([((torch.ones(2), torch.tensor(1)), {})], on_cpu=(1,))
    assert [statement.endswith(".cpu()") for statement in source.statements] == [False, True]


def test_a_generator_keeps_its_seed() -> None:
    args, _ = round_trip(torch.Generator().manual_seed(7))
    assert args[0].initial_seed() == 7


def test_sparse_and_nested() -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    args, _ = round_trip(dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc())
    assert [t.layout for t in args] == [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]
    assert all(torch.equal(t.to_dense(), dense) for t in args)
    (nested,), _ = round_trip(torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]))
    assert [len(part) for part in nested.unbind()] == [2, 3]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (object(), "an argument is a builtins.object, which has no source"),
        (lambda x: x, "which has no source"),
        (torch.zeros(5 * 2**20, dtype=torch.uint8), "an input has 5 MiB, at most 4 are written"),
    ],
)
def test_what_has_no_source_is_refused(value: Any, complaint: str) -> None:
    with pytest.raises(literals.NotWritable, match=complaint):
        literals.Source([((value,), {})])
