"""A signature becomes an expression in which only what varies is a parameter."""

from __future__ import annotations

import pytest

from conformance.signatures import Signature
from op_coverage.traced import calls
from op_coverage.traced.calls import Shape

CAT = Signature(
    "aten.cat.default",
    "float32",
    [[{"tensor": ["float32", [2, "s0"]]}, {"tensor": ["float32", [2, 3], [1, 2], 1]}], -1],
    {},
    {"s0": 5},
)
FULL = Signature(
    "aten.full.default",
    "float32",
    [["s0", 4], {"float": "-inf"}],
    {"dtype": {"dtype": "float32"}, "device": {"device": "cpu"}, "layout": {"layout": "strided"}, "pin_memory": False},
    {"s0": 5},
)


def test_tensors_are_parameters_and_numbers_are_not():
    call = calls.of(CAT)
    assert call.source == "lambda t0, t1: torch.ops.aten.cat.default([t0, t1], -1)"
    assert [(p.argument, p.place) for p in call.parameters] == [(0, 0), (0, 1)]
    assert call.rebuilt(["a", "b"]) == ([["a", "b"], -1], {})


def test_symbolic_integers_dtypes_and_devices_are_parameters():
    signature = Signature(FULL.op, FULL.dtype, [[{"size": "s0"}, 4], FULL.args[1]], FULL.kwargs, FULL.symbols)
    call = calls.of(signature)
    assert call.source == (
        "lambda n0, dtype0, device0: torch.ops.aten.full.default("
        "[n0, 4], float('-inf'), dtype=dtype0, device=device0, layout=torch.strided, pin_memory=False)"
    )


def test_without_parameters_it_is_still_a_lambda():
    call = calls.of(Signature("aten.eye.default", "float32", [3], {}, {}))
    assert call.source == "lambda: torch.ops.aten.eye.default(3)"


@pytest.mark.parametrize(
    ("content", "expected", "memory"),
    [
        (["float32", [2, "s0"]], Shape("float32", (2, 5), None, 0), 10),
        (["int64", [2, "s0"], ["2*s0", 2], "s0"], Shape("int64", (2, 5), (10, 2), 5), 5 + 1 + 10 + 8),
        (["bool", []], Shape("bool", (), None, 0), 1),
        (["bool", [3, 0]], Shape("bool", (3, 0), None, 0), 0),
    ],
)
def test_shapes_have_the_values_of_their_symbols(content, expected, memory):
    made = calls.shape(content, {"s0": 5})
    assert (made, made.memory) == (expected, memory)
