"""Positions in views of views, against PyTorch."""

from __future__ import annotations

import itertools
import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from spyre_backend.program import DType, Program, verify
from spyre_backend.program.expr import Const, Sym, evaluate, parse
from spyre_backend.program.ir import Axis, Buffer, Load, Store, Value
from spyre_backend.sendnn.axes import split_axes
from spyre_backend.sendnn.index import contiguous, linear, reshaped

FACTORS = st.lists(st.sampled_from([1, 2, 3, 4]), max_size=5)


def grouped(factors: list[int], cuts: list[int]) -> tuple[int, ...]:
    """Sizes that multiply neighbours of `factors` together."""
    edges = sorted({0, len(factors), *(cut % (len(factors) + 1) for cut in cuts)})
    return tuple(math.prod(factors[a:b]) for a, b in itertools.pairwise(edges))


@given(FACTORS, FACTORS, FACTORS)
def test_an_element_of_a_reshaped_view_is_found_in_its_base(
    factors: list[int], left: list[int], right: list[int]
) -> None:
    shape, base = grouped(factors, left), grouped(factors, right)
    whole = torch.arange(math.prod(base)).reshape(base)
    view = whole.reshape(shape)
    index = tuple(Sym(f"x{dim}") for dim in range(len(shape)))
    at = linear(reshaped(index, shape, base), contiguous(base))
    for place in itertools.product(*map(range, shape)):
        bound = {f"x{dim}": at_dim for dim, at_dim in enumerate(place)}
        assert evaluate(at, bound) == view[place].item()


def test_an_axis_that_is_divided_comes_in_parts() -> None:
    body = (
        Load(Value("v", DType.FLOAT32), "a", parse("3*(x0 // 4) + x1")),
        Store("b", parse("3*x0 + x1"), "v", ("x0", "x1")),
    )
    buffers = (Buffer("a", DType.FLOAT32), Buffer("b", DType.FLOAT32, written=True))
    found = split_axes(Program("p", (Axis("x0", Const(8)), Axis("x1", Const(3))), (), buffers, body))
    verify(found)
    assert [(axis.name, axis.size.value) for axis in found.axes] == [("x0o", 2), ("x0i", 4), ("x1", 3)]
    assert str(found.body[0].index) == "3*x0o + x1"
    assert found.body[1].axes == ("x0o", "x0i", "x1")
