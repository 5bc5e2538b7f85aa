"""Loads and stores: every access pattern reads and writes the elements that its index expression names."""

import pytest
import torch

from spyre_backend.program import DType, Program, ProgramError, dumps
from spyre_backend.program.expr import Sym, parse
from spyre_backend.program.ir import Axis, Buffer, CheckBounds, Compute, Constant, Index, Load, Store, Value
from spyre_backend.program.opcodes import Elementwise, StoreMode
from spyre_backend.simulator import load
from tests.spyre_backend.simulator.build import axes, run

F32, I64, BOOL = DType.FLOAT32, DType.INT64, DType.BOOL


def _gathered(source: torch.Tensor, index: str, shape: tuple[int, ...], guard: str | None = None) -> torch.Tensor:
    """`source[index]` over x0, x1, …; where `guard` is false, -1 is loaded instead."""
    out = torch.empty(shape)
    over = axes(shape)
    body = [Load(Value("t", F32), "a", parse(index), "m" if guard else None, "-1.0")]
    if guard:
        body.insert(0, Index(Value("m", BOOL), parse(guard)))
    flat = "x0" if len(shape) == 1 else f"{shape[1]}*x0 + x1"
    body.append(Store("out", parse(flat), "t", tuple(axis.name for axis in over)))
    run(Program("g", over, (), (Buffer("a", F32), Buffer("out", F32, written=True)), tuple(body)), source, out)
    return out


SOURCE = torch.arange(24.0)


@pytest.mark.parametrize(
    ("index", "python"),
    [
        ("4*x0 + x1", lambda i, j: 4 * i + j),
        ("x0 + 6*x1", lambda i, j: i + 6 * j),
        ("23 + (-1)*x0 + (-6)*x1", lambda i, j: 23 - i - 6 * j),
        ("x1", lambda i, j: j),
        ("5", lambda i, j: 5),
        ("(4*x0 + x1) // 4", lambda i, j: i),
        ("(x0 + x1) % 5", lambda i, j: (i + j) % 5),
        ("where(x0 < 2, x1, 4*x0)", lambda i, j: j if i < 2 else 4 * i),
        ("x0*x1", lambda i, j: i * j),
        ("max(x0, x1) + min(x0, 2)", lambda i, j: max(i, j) + min(i, 2)),
    ],
)
def test_an_index_expression_names_the_element(index: str, python: object) -> None:
    expected = torch.tensor([[SOURCE[python(i, j)] for j in range(4)] for i in range(6)])
    assert torch.equal(_gathered(SOURCE, index, (6, 4)), expected)


def test_an_offset_view_starts_where_it_starts() -> None:
    assert _gathered(SOURCE[10:], "2*x0", (3,)).tolist() == [10, 12, 14]


@pytest.mark.parametrize("index", ["x0 + (-2)", "(x0 + (-2)) % 100"])
def test_a_masked_load_reads_nothing_outside_its_mask(index: str) -> None:
    guard = "all(2 <= x0, x0 < 26)"
    expected = torch.cat([torch.full((2,), -1.0), SOURCE, torch.full((2,), -1.0)])
    assert torch.equal(_gathered(SOURCE.clone(), index, (28,), guard), expected)


@pytest.mark.parametrize("index", ["x0 + 20", "(x0*x0) + 20"])
def test_an_access_outside_the_storage_fails(index: str) -> None:
    with pytest.raises(IndexError, match=r"out of bounds|leaves its storage"):
        _gathered(SOURCE.clone(), index, (8,))


def test_an_empty_iteration_space_touches_nothing() -> None:
    assert _gathered(torch.empty(0), "x0 + 100", (0,)).numel() == 0


def test_symbols_are_bound_at_launch() -> None:
    program = Program(
        "doubled",
        (Axis("x0", Sym("s0")),),
        ("s0", "s1"),
        (Buffer("a", F32), Buffer("out", F32, written=True)),
        (Load(Value("t", F32), "a", parse("s1*x0")), Store("out", Sym("x0"), "t", ("x0",))),
    )
    for count, step in ((3, 2), (5, 4), (3, 2)):
        out = torch.empty(count)
        run(program, SOURCE, out, count, step)
        assert out.tolist() == [float(step * i) for i in range(count)]


def _swap(size: int) -> Program:
    return Program(
        "swap",
        axes([size]),
        (),
        (Buffer("a", F32, written=True), Buffer("b", F32, written=True)),
        (
            Load(Value("t0", F32), "a", Sym("x0")),
            Load(Value("t1", F32), "b", Sym("x0")),
            Store("a", Sym("x0"), "t1", ("x0",)),
            Store("b", Sym("x0"), "t0", ("x0",)),
        ),
    )


def test_a_load_keeps_its_value_when_the_program_overwrites_the_memory() -> None:
    a, b = torch.arange(4.0), torch.arange(4.0) + 10
    run(_swap(4), a, b)
    assert (a.tolist(), b.tolist()) == ([10, 11, 12, 13], [0, 1, 2, 3])


def _scatter(mode: StoreMode, memory: torch.Tensor, where: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    dtype = DType(str(memory.dtype).removeprefix("torch."))
    program = Program(
        "scatter",
        axes([where.numel()]),
        (),
        (Buffer("i", I64), Buffer("v", dtype), Buffer("m", dtype, written=True)),
        (
            Load(Value("at", I64), "i", Sym("x0")),
            Load(Value("t", dtype), "v", Sym("x0")),
            Store("m", Sym("at"), "t", ("x0",), mode),
        ),
    )
    run(program, where, values, memory)
    return memory


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (StoreMode.OVERWRITE, [10.0, 3.0, 10.0, 4.0]),
        (StoreMode.ADD, [10.0, 16.0, 10.0, 14.0]),
        (StoreMode.MIN, [10.0, 1.0, 10.0, 4.0]),
        (StoreMode.MAX, [10.0, 10.0, 10.0, 10.0]),
        (StoreMode.PROD, [10.0, 60.0, 10.0, 40.0]),
    ],
)
def test_colliding_stores(mode: StoreMode, expected: list[float]) -> None:
    where, values = torch.tensor([1, 1, 1, 3]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert _scatter(mode, torch.full((4,), 10.0), where, values).tolist() == expected


def test_half_precision_accumulates_in_memory_precision() -> None:
    where, values = torch.zeros(3, dtype=torch.int64), torch.full((3,), 0.5, dtype=torch.float16)
    memory = torch.tensor([2048.0], dtype=torch.float16)
    assert _scatter(StoreMode.ADD, memory, where, values).item() == 2048.0


def test_a_store_adds_once_per_point_even_where_the_value_does_not_vary() -> None:
    program = Program(
        "count",
        axes([5]),
        (),
        (Buffer("m", F32, written=True),),
        (Constant(Value("one", F32), "1.0"), Store("m", parse("0"), "one", ("x0",), StoreMode.ADD)),
    )
    memory = torch.zeros(1)
    run(program, memory)
    assert memory.item() == 5.0


def test_an_overwriting_store_to_one_place_keeps_the_last_point() -> None:
    program = Program(
        "last",
        axes([5]),
        (),
        (Buffer("m", F32, written=True),),
        (Index(Value("t", F32), Sym("x0")), Store("m", parse("0"), "t", ("x0",))),
    )
    memory = torch.zeros(1)
    run(program, memory)
    assert memory.item() == 4.0


def _checked(mask: str | None, limit: int) -> Program:
    body = [
        Load(Value("i", I64), "a", Sym("x0")),
        Constant(Value("c", I64), "3"),
        Compute(Value("m", BOOL), Elementwise.LT, ("i", "c")),
        CheckBounds(Sym("i"), parse(str(limit)), lower=True, upper=True, mask=mask),
    ]
    return Program("checked", axes([3]), (), (Buffer("a", I64),), tuple(body))


def test_bounds_are_checked_where_the_mask_holds() -> None:
    index = torch.tensor([0, 2, 7])
    with pytest.raises(IndexError, match="index out of bounds"):
        run(_checked(None, 3), index)
    run(_checked("m", 3), index)
    with pytest.raises(IndexError, match="index out of bounds"):
        run(_checked("m", 2), index)


def test_a_launch_with_wrong_arguments_is_refused() -> None:
    kernel = load(dumps(_swap(4)))
    with pytest.raises(ProgramError, match="2 tensors and 0 numbers, not 1"):
        kernel(torch.ones(4))
    with pytest.raises(ProgramError, match=r"a is float32, not torch\.float64"):
        kernel(torch.ones(4, dtype=torch.float64), torch.ones(4))
