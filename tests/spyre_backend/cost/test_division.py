"""Divisions: shares are disjoint and complete, sticks and reductions stay whole, a core reaches all of its share."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spyre_backend.cost.division import divisions
from spyre_backend.hardware import MIB, SPYRE
from spyre_backend.program import DType, Program
from spyre_backend.program.expr import parse
from spyre_backend.program.ir import Buffer, Load, Store, Value
from spyre_backend.program.opcodes import StoreMode
from tests.spyre_backend.cost.test_cost import copy, product, softmax
from tests.spyre_backend.simulator.build import axes


@given(st.integers(0, 40), st.integers(0, 150), st.sampled_from([1, 3, 32]))
def test_shares_are_disjoint_and_complete(rows: int, columns: int, cores: int) -> None:
    extents = {"x0": rows, "x1": columns}
    for division in divisions(copy(rows, columns), {}, extents, dataclasses.replace(SPYRE, cores=cores)):
        shares = division.shares()
        points = [point for share in shares for point in itertools.product(*share.values())]
        assert len(points) == len(set(points)) == rows * columns
        assert len(shares) == division.cores <= cores


def test_a_stick_and_a_reduction_belong_to_one_core() -> None:
    for division in divisions(product(10, 200, 64), {}, {"x0": 10, "x1": 200, "r0": 64}):
        assert division.sizes["r0"] == 64
        assert division.sizes["x1"] in (64, 128, 192, 200)
    assert {d.sizes["r0"] for d in divisions(softmax(8, 999), {}, {"x0": 8, "r0": 999})} == {999}


@pytest.mark.parametrize(
    ("load", "store", "mode", "divisible"),
    [
        ("a", "x0", StoreMode.OVERWRITE, True),
        ("out", "x0", StoreMode.OVERWRITE, True),  # in place: each point reads what it writes
        ("a", "x0", StoreMode.ADD, False),
        ("a", "x0 // 2", StoreMode.OVERWRITE, False),  # two points write one element
    ],
)
def test_only_independent_points_are_divided(load: str, store: str, mode: StoreMode, divisible: bool) -> None:
    buffers = (Buffer("a", DType.FLOAT32), Buffer("out", DType.FLOAT32, written=True))
    body = (
        Load(Value("t", DType.FLOAT32), load, parse("x0")),
        Store("out", parse(store), "t", ("x0",), mode),
    )
    found = list(divisions(Program("p", axes([4096]), (), buffers, body), {}, {"x0": 4096}))
    assert (len(found) > 1) is divisible


def test_what_one_core_cannot_reach_is_divided() -> None:
    extents = {"x0": 1024, "x1": 1 << 20}  # 2 GB in fp16
    found = list(divisions(copy(*extents.values()), {}, extents))
    assert found
    assert all(max(each.sizes["x0"] - 1, 0) * (2 << 20) + each.sizes["x1"] * 2 <= 256 * MIB for each in found)
