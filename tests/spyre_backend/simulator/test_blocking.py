"""Large iteration spaces in blocks: the same results, within a bound on memory, and not where order shows."""

import itertools

import pytest
import torch

from spyre_backend.program import DType, Program
from spyre_backend.program.expr import parse
from spyre_backend.program.ir import Buffer, Compute, Index, Load, Matmul, Store, Value
from spyre_backend.program.opcodes import Elementwise, StoreMode
from spyre_backend.simulator import blocking, kernel
from tests.spyre_backend.simulator.build import axes, run

F32 = DType.FLOAT32


@pytest.fixture
def few_points(monkeypatch):
    monkeypatch.setattr(blocking, "POINTS", 16)
    kernel.load.cache_clear()  # programs that other tests have bound


def gather_rows(rows: int, columns: int, depth: int) -> Program:
    """`out[x0, x1] = sum over r0 of a[(x0 + r0) % rows] * b[r0, x1]`: operands that are packed for a product."""
    body = (
        Load(Value("t", F32), "a", parse(f"(x0 + r0) % {max(rows, 1)}")),
        Load(Value("u", F32), "b", parse(f"{columns}*r0 + x1")),
        Matmul(Value("v", F32), ("t", "u")),
        Store("out", parse(f"{columns}*x0 + x1"), "v", ("x0", "x1")),
    )
    buffers = (Buffer("a", F32), Buffer("b", F32), Buffer("out", F32, written=True))
    return Program("gather_rows", axes([rows, columns], [depth]), (), buffers, body)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(7, 5, 4), (1, 3, 40), (9, 1, 16), (33, 2, 3), (0, 3, 20)])
def test_blocks_compute_what_the_whole_does(few_points, rows, columns, depth):
    a, b = torch.randn(rows), torch.randn(depth, columns)
    out = torch.full((rows, columns), torch.nan)
    run(gather_rows(rows, columns, depth), a, b, out)
    position = (torch.arange(rows)[:, None] + torch.arange(depth)) % max(rows, 1)
    torch.testing.assert_close(out, a[position] @ b)


def test_blocks_cover_the_space_once_and_stay_small(few_points):
    extents = {"x0": 7, "x1": 5, "r0": 4}
    found = blocking.windows(gather_rows(7, 5, 4), extents, {})
    points = [point for window in found for point in itertools.product(*window.values())]
    assert sorted(points) == sorted(itertools.product(*map(range, extents.values())))
    assert len(found) > 1
    assert all(len(w["x0"]) * len(w["r0"]) <= 16 and len(w["x1"]) * len(w["r0"]) <= 16 for w in found)


def test_an_affine_access_starts_at_its_block(few_points):
    a, out = torch.arange(60.0).reshape(12, 5), torch.full((12, 5), torch.nan)
    body = (
        Load(Value("t", F32), "a", parse("59 + (-5)*x0 + (-1)*x1")),
        Index(Value("i", DType.INT64), parse("5*x0 + x1")),
        Compute(Value("f", F32), Elementwise.CAST, ("i",)),
        Compute(Value("s", F32), Elementwise.ADD, ("t", "f")),
        Store("out", parse("5*x0 + x1"), "s", ("x0", "x1")),
    )
    run(Program("mirror", axes([12, 5]), (), (Buffer("a", F32), Buffer("out", F32, written=True)), body), a, out)
    assert (out == 59).all()


ORDERED = {
    "in place": Store("a", parse("x0"), "t", ("x0",)),
    "accumulated": Store("out", parse("x0 // 2"), "t", ("x0",), StoreMode.ADD),
    "written twice": Store("out", parse("0"), "t", ("x0",)),
}


@pytest.mark.parametrize("store", ORDERED.values(), ids=ORDERED)
def test_one_block_where_the_order_could_be_seen(few_points, store):
    body = (Load(Value("t", F32), "a", parse("(x0 + 1) % 20")), store)
    buffers = (Buffer("a", F32, written=store.buffer == "a"), Buffer("out", F32, written=store.buffer == "out"))
    assert len(blocking.windows(Program("p", axes([20]), (), buffers, body), {"x0": 20}, {})) == 1
