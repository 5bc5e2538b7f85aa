"""Signatures of real captures: what the graph calls after decomposition, with symbols and strides as they are."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from conformance import observe, signatures
from conformance.tracing import Trace


@pytest.fixture(autouse=True)
def clean() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def traced(fn: Any, *args: Any, dynamic: bool = False) -> list[str]:
    trace = Trace()
    compiled = torch.compile(fn, backend=observe.capturing(trace.add), dynamic=dynamic)
    result = compiled(*args)
    torch.testing.assert_close(result, fn(*args))
    assert trace.unread == {}
    return [signatures.shown(signatures.decode(text)) for text in trace.texts]


def test_ops_are_decomposed_and_their_calls_are_read():
    linear = torch.nn.Linear(4, 3).requires_grad_(False)
    assert traced(lambda x: torch.nn.functional.silu(linear(x)), torch.ones(2, 4)) == [
        "aten.permute.default(float32[3, 4], [1, 0])",
        "aten.addmm.default(float32[3], float32[2, 4], float32[4, 3](1, 4))",
        "aten.sigmoid.default(float32[2, 3])",
        "aten.mul.Tensor(float32[2, 3], float32[2, 3])",
    ]


def test_strides_and_offsets_are_those_of_the_graph():
    found = traced(lambda x: x[1:, ::2].exp(), torch.rand(3, 6))
    assert found[-1] == "aten.exp.default(float32[2, 3](6, 2)+6)"


def test_symbolic_sizes_are_named_in_the_order_of_the_call():
    def fn(x: Any) -> Any:
        return x.new_zeros(x.shape[0] * 2), x.unsqueeze(0) + 1

    found = traced(fn, torch.rand(5, 7), dynamic=True)
    assert "aten.unsqueeze.default(float32[s0, s1], 0) with s0=5, s1=7" in found
    assert any(text.startswith("aten.full.default([2*s0]") and text.endswith("with s0=5") for text in found)


def test_equal_calls_in_graphs_with_other_symbols_are_one():
    one = traced(lambda x: x.exp(), torch.rand(5, 7), dynamic=True)
    torch.compiler.reset()
    other = traced(lambda y, x: x.exp() + y.sum(), torch.rand(9), torch.rand(5, 7), dynamic=True)
    assert one[0] in other


def test_numbers_that_json_lacks_and_constants_are_kept():
    found = traced(lambda x: torch.clamp(x, float("-inf"), 0.5).to(torch.float16), torch.rand(3))
    assert "aten.clamp.default(float32[3], -inf, 0.5)" in found
    assert found[-1].startswith("aten._to_copy.default(float32[3], dtype=float16")


def test_graphs_of_a_backward_are_read_too():
    x = torch.rand(3, requires_grad=True)
    trace = Trace()
    compiled = torch.compile(lambda x: x.tanh().sum(), backend=observe.capturing(trace.add))
    compiled(x).backward()
    ops = {signatures.decode(text).op for text in trace.texts}
    assert {"aten.tanh.default", "aten.mul.Tensor", "aten.rsub.Scalar"} & ops
    assert x.grad is not None


def test_the_backend_puts_them_into_the_observation():
    from conformance.backends.registry import find

    backend = find("trace")
    backend.setup()
    with observe.observe(backend) as seen:
        backend.compile(torch.exp, dynamic=False)(torch.rand(3))
    assert [signatures.decode(text).op for text in seen.traced] == ["aten.exp.default"]
    assert seen.graphs == 1
    assert "traced" not in seen.record_fields()
