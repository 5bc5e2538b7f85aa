"""Reductions, scans, sorts, matrix products, searches and random draws against PyTorch."""

import itertools

import pytest
import torch

from spyre_backend.program import DType, Program, ProgramError
from spyre_backend.program.expr import Const, parse
from spyre_backend.program.ir import (
    Axis,
    Bucketize,
    Buffer,
    Compute,
    Constant,
    Index,
    Load,
    Matmul,
    Reduce,
    Region,
    Scan,
    Sort,
    Store,
    Value,
)
from spyre_backend.program.opcodes import Elementwise, Reduction
from spyre_backend.simulator import observe, philox
from tests.spyre_backend.simulator.build import attention, dtype_of, over_rows, run

F32, I64 = DType.FLOAT32, DType.INT64
NAN = float("nan")
ROWS = torch.tensor([[3.0, -1.0, 3.0, 0.5], [NAN, 2.0, -2.0, NAN], [-0.0, 0.0, -7.0, 1.0]])


def _reduced(source: torch.Tensor, kind: Reduction, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = torch.empty(source.shape[0], dtype=dtype)
    over_rows(source, Reduce((Value("s", dtype_of(out)),), kind, ("t",)), [("s", out, False)])
    return out


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        (Reduction.SUM, lambda x: x.sum(1)),
        (Reduction.PROD, lambda x: x.prod(1)),
        (Reduction.MIN, lambda x: x.amin(1)),
        (Reduction.MAX, lambda x: x.amax(1)),
    ],
)
def test_a_reduction_of_floats(kind: Reduction, reference: object) -> None:
    torch.testing.assert_close(_reduced(ROWS, kind), reference(ROWS), rtol=0, atol=0, equal_nan=True)


def test_fmax_lets_nan_count_only_where_there_is_nothing_else() -> None:
    source = torch.tensor([[NAN, 2.0, -2.0], [NAN, NAN, NAN], [1.0, -1.0, 0.0]])
    torch.testing.assert_close(_reduced(source, Reduction.FMAX), torch.tensor([2.0, NAN, 1.0]), equal_nan=True)


def test_argmin_and_argmax_take_the_first_of_equals_and_prefer_nan() -> None:
    assert _reduced(ROWS, Reduction.ARGMAX, torch.int64).tolist() == [0, 0, 3]
    assert _reduced(ROWS, Reduction.ARGMIN, torch.int64).tolist() == [1, 0, 2]


def test_any_and_xor() -> None:
    assert _reduced(torch.tensor([[False, True], [False, False]]), Reduction.ANY, torch.bool).tolist() == [True, False]
    numbers = torch.tensor([[1, 2, 4, 1, 8], [3, 3, 0, 0, 0]])
    assert _reduced(numbers, Reduction.XOR_SUM, torch.int64).tolist() == [14, 0]


def test_welford_gives_mean_deviation_and_weight() -> None:
    source = torch.randn(5, 33, generator=torch.Generator().manual_seed(0)) + 1000
    mean, deviation, weight = (torch.empty(5) for _ in range(3))
    values = (Value("mean", F32), Value("m2", F32), Value("n", F32))
    stores = [("mean", mean, False), ("m2", deviation, False), ("n", weight, False)]
    over_rows(source, Reduce(values, Reduction.WELFORD, ("t",)), stores)
    torch.testing.assert_close(mean, source.mean(1))
    torch.testing.assert_close(deviation / 32, source.double().var(1).float(), rtol=1e-4, atol=0)
    assert weight.tolist() == [33.0] * 5


def test_a_value_that_does_not_vary_counts_once_per_element() -> None:
    out = torch.empty(2)
    program = Program(
        "constant_sum",
        (Axis("x0", Const(2)), Axis("r0", Const(7), reduction=True)),
        (),
        (Buffer("out", F32, written=True),),
        (
            Constant(Value("c", F32), "0.5"),
            Reduce((Value("s", F32),), Reduction.SUM, ("c",)),
            Store("out", parse("x0"), "s", ("x0",)),
        ),
    )
    run(program, out)
    assert out.tolist() == [3.5, 3.5]


def test_an_empty_reduction_is_the_identity() -> None:
    empty = torch.empty(2, 0)
    assert _reduced(empty, Reduction.SUM).tolist() == [0.0, 0.0]
    assert _reduced(empty, Reduction.PROD).tolist() == [1.0, 1.0]
    assert _reduced(empty, Reduction.MAX).tolist() == [-float("inf")] * 2


def _scanned(source: torch.Tensor, op: Elementwise) -> torch.Tensor:
    kind = dtype_of(source)
    region = Region((Value("l", kind), Value("r", kind)), (Compute(Value("c", kind), op, ("l", "r")),), ("c",))
    out = torch.empty_like(source)
    over_rows(source, Scan((Value("s", kind),), ("t",), region), [("s", out, True)])
    return out


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_scans(length: int) -> None:
    source = torch.randn(3, length, generator=torch.Generator().manual_seed(length))
    torch.testing.assert_close(_scanned(source, Elementwise.ADD), source.cumsum(1))
    torch.testing.assert_close(_scanned(source, Elementwise.MUL), source.cumprod(1))
    torch.testing.assert_close(_scanned(source, Elementwise.MAXIMUM), source.cummax(1).values)


def test_a_scan_combines_left_to_right() -> None:
    # keeping the left operand is associative but not commutative
    source = torch.tensor([[5.0, 6.0, 7.0, 8.0, 9.0]])
    region = Region((Value("l", F32), Value("r", F32)), (), ("l",))
    out = torch.empty_like(source)
    over_rows(source, Scan((Value("s", F32),), ("t",), region), [("s", out, True)])
    assert out.tolist() == [[5.0] * 5]


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_and_puts_nan_where_torch_does(descending: bool) -> None:
    n, m = ROWS.shape
    values, order = torch.empty_like(ROWS), torch.empty(n, m, dtype=torch.int64)
    program = Program(
        "sort",
        (Axis("x0", Const(n)), Axis("r0", Const(m), reduction=True)),
        (),
        (Buffer("a", F32), Buffer("v", F32, written=True), Buffer("i", I64, written=True)),
        (
            Load(Value("t", F32), "a", parse(f"{m}*x0 + r0")),
            Index(Value("k", I64), parse("r0")),
            Sort((Value("sv", F32), Value("sk", I64)), ("t", "k"), descending, stable=True),
            Store("v", parse(f"{m}*x0 + r0"), "sv", ("x0", "r0")),
            Store("i", parse(f"{m}*x0 + r0"), "sk", ("x0", "r0")),
        ),
    )
    run(program, ROWS, values, order)
    expected = torch.sort(ROWS, dim=1, descending=descending, stable=True)
    torch.testing.assert_close(values, expected.values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(order, expected.indices)


def _read(memory: torch.Tensor, index: str, order: str, extents: dict[str, int]) -> torch.Tensor:
    """The elements that an index expression names, with one dimension per axis in `order`."""
    points = itertools.product(*(range(extents[axis]) for axis in order))
    zero = dict.fromkeys(extents, 0)
    elements = [memory[eval(index, {**zero, **dict(zip(order, point, strict=True))})] for point in points]
    return torch.stack(elements).reshape([extents[axis] for axis in order])


@pytest.mark.parametrize(
    ("a_index", "b_index", "equation"),
    [
        ("4*m + k", "5*k + n", "bmk,bkn->bmn"),
        ("12*b + 4*m + k", "20*b + 5*k + n", "bmk,bkn->bmn"),
        ("12*b + 4*m + k", "n + 5*k", "bmk,bkn->bmn"),
        ("k", "k", "bmk,bkn->bmn"),
    ],
)
def test_matmul_over_every_kind_of_axis(a_index: str, b_index: str, equation: str) -> None:
    extents = {"b": 2, "m": 3, "n": 5, "k": 4}
    generator = torch.Generator().manual_seed(0)
    a, b, out = torch.randn(24, generator=generator), torch.randn(40, generator=generator), torch.empty(2, 3, 5)
    program = Program(
        "matmul",
        tuple(Axis(name, Const(extents[name]), reduction=name == "k") for name in "bmnk"),
        (),
        (Buffer("a", F32), Buffer("b2", F32), Buffer("out", F32, written=True)),
        (
            Load(Value("p", F32), "a", parse(a_index)),
            Load(Value("q", F32), "b2", parse(b_index)),
            Matmul(Value("c", F32), ("p", "q")),
            Store("out", parse("15*b + 5*m + n"), "c", ("b", "m", "n")),
        ),
    )
    with observe() as seen:
        run(program, a, b, out)
    left = _read(a, a_index, "bmk", extents)
    right = _read(b, b_index, "bkn", extents)
    torch.testing.assert_close(out, torch.einsum(equation, left, right))
    assert (seen.launches, seen.matmuls) == (1, 1)


@pytest.mark.parametrize("sizes", [(2, 3, 5, 4), (1, 1, 7, 1), (3, 2, 1, 2)])
def test_attention_reduces_one_axis_inside_another(sizes: tuple[int, int, int, int]) -> None:
    batch, queries, keys, size = sizes
    q, k, v = (torch.randn(batch, count, size) for count in (queries, keys, keys))
    out = torch.empty_like(q)
    run(attention(*sizes), q, k, v, out)
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0))


def test_only_reduction_axes_are_reduced() -> None:
    instruction, out = Reduce((Value("s", F32),), Reduction.SUM, ("t",), ("x0",)), torch.empty(3)
    with pytest.raises(ProgramError, match="sum uses undeclared x0"):
        over_rows(ROWS, instruction, [("s", out, False)])


@pytest.mark.parametrize("right", [False, True])
def test_bucketize_agrees_with_searchsorted(right: bool) -> None:
    boundaries = torch.tensor([-1.0, 0.0, 0.0, 2.0, 5.0])
    values = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0, 5.0, 6.0, NAN])
    out = torch.empty(8, dtype=torch.int64)
    program = Program(
        "bucketize",
        (Axis("x0", Const(8)),),
        (),
        (Buffer("v", F32), Buffer("b", F32), Buffer("out", I64, written=True)),
        (
            Load(Value("t", F32), "v", parse("x0")),
            Constant(Value("start", I64), "0"),
            Bucketize(Value("p", I64), "t", "b", "start", Const(5), Const(1), right),
            Store("out", parse("x0"), "p", ("x0",)),
        ),
    )
    run(program, values, boundaries, out)
    assert torch.equal(out, torch.searchsorted(boundaries, values, right=right))


def test_philox_matches_the_published_vectors() -> None:
    zero, ones = torch.tensor([0]), torch.tensor([-1])
    words = [int(word) for word in philox.philox(zero, zero)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    # counter words 2 and 3 stay 0 here, so only the low two are all ones
    assert all(0 <= int(word) < 2**32 for word in philox.philox(ones, ones))


def test_draws_depend_on_seed_and_offset_alone_and_have_their_distribution() -> None:
    seed, offset = torch.tensor([42]), torch.arange(20_000)
    uniform, normal = philox.uniform(seed, offset), philox.normal(seed, offset)
    assert torch.equal(uniform[100:], philox.uniform(seed, offset[100:]))
    assert not torch.equal(uniform, philox.uniform(seed + 1, offset))
    assert 0 <= uniform.min() <= uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03
    whole = philox.integer(seed, offset, torch.tensor([-3]), torch.tensor([4]))
    assert set(whole.tolist()) == set(range(-3, 4))
