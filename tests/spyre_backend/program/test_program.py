"""Programs: text and JSON forms, rules, and the traffic that they say of themselves."""

from __future__ import annotations

import msgspec
import pytest

from spyre_backend.cost import cost
from spyre_backend.program import (
    DType,
    Program,
    ProgramError,
    dumps,
    iteration_space,
    loads,
    to_text_form,
    traffic,
    verify,
)
from spyre_backend.program.expr import Const, Sym, parse
from spyre_backend.program.ir import (
    Axis,
    Buffer,
    Compute,
    Constant,
    Load,
    Matmul,
    Reduce,
    Region,
    Scan,
    Store,
    Value,
)
from spyre_backend.program.opcodes import Elementwise, Reduction, StoreMode
from spyre_backend.program.traffic import accesses

F32, F16, BOOL = DType.FLOAT32, DType.FLOAT16, DType.BOOL

ROW_SUM = Program(
    "row_sum",
    (Axis("x0", Sym("s0")), Axis("r0", Const(8), reduction=True)),
    ("s0",),
    (Buffer("a", F16), Buffer("b", F32, written=True)),
    (
        Load(Value("t0", F16), "a", parse("8*x0 + r0")),
        Compute(Value("t1", F32), Elementwise.CAST, ("t0",)),
        Reduce((Value("t2", F32),), Reduction.SUM, ("t1",)),
        Store("b", Sym("x0"), "t2", ("x0",)),
    ),
)

TEXT = """\
program row_sum {digest}
  axis x0 < s0
  reduction axis r0 < 8
  symbols s0
  buffer a: float16
  buffer b: float32 (written)
  %t0: float16 = load a[8*x0 + r0]
  %t1: float32 = cast %t0
  %t2: float32 = reduce.sum %t1
  store b[x0] = %t2 over (x0)
"""


def _changed(**fields: object) -> Program:
    return msgspec.structs.replace(ROW_SUM, **fields)


def test_the_text_form() -> None:
    assert to_text_form(ROW_SUM) == TEXT.format(digest=ROW_SUM.digest)


def test_a_program_survives_serialisation() -> None:
    verify(ROW_SUM)
    assert loads(dumps(ROW_SUM)) == ROW_SUM


def test_a_scan_with_its_region_survives_serialisation() -> None:
    combine = Region(
        (Value("l", F32), Value("r", F32)),
        (Constant(Value("c", F32), "0.5"), Compute(Value("m", F32), Elementwise.MAXIMUM, ("l", "r"))),
        ("m",),
    )
    body = (ROW_SUM.body[0], ROW_SUM.body[1], Scan((Value("t2", F32),), ("t1",), combine))
    store = Store("b", parse("8*x0 + r0"), "t2", ("x0", "r0"))
    program = _changed(body=(*body, store))
    verify(program)
    assert loads(dumps(program)) == program
    assert "combine (%l: float32, %r: float32)" in to_text_form(program)


def test_the_digest_ignores_the_name_only() -> None:
    assert _changed(name="other").digest == ROW_SUM.digest
    assert _changed(axes=(Axis("x0", Sym("s0")), Axis("r0", Const(9), reduction=True))).digest != ROW_SUM.digest


@pytest.mark.parametrize("text", ["", "{}", '{"name": 3}', dumps(ROW_SUM).replace('"cast"', '"launder"')])
def test_a_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(ProgramError, match="not a tile program"):
        loads(text)


def test_another_format_is_refused() -> None:
    with pytest.raises(ProgramError, match="format 99"):
        loads(dumps(_changed(format=99)))


BROKEN = {
    "uses undeclared s1": {"axes": (Axis("x0", Sym("s1")), Axis("r0", Const(8), reduction=True))},
    "pointwise axis follows": {"axes": ROW_SUM.axes[::-1]},
    "declared twice": {"symbols": ("s0", "s0")},
    "uses undeclared t1": {"body": (ROW_SUM.body[0], ROW_SUM.body[2])},
    "defined twice": {"body": (ROW_SUM.body[0], ROW_SUM.body[0])},
    "load of float32 on a": {"body": (Load(Value("t0", F32), "a", Sym("x0")),)},
    "uses undeclared nowhere": {"body": (Load(Value("t0", F16), "nowhere", Sym("x0")),)},
    "not a written buffer": {"body": (ROW_SUM.body[0], Store("a", Sym("x0"), "t0", ("x0",)))},
    "operands share one dtype": {"body": (*ROW_SUM.body[:2], Compute(Value("t9", BOOL), Elementwise.LT, ("t0", "t1")))},
    "takes 2 operands": {"body": (*ROW_SUM.body[:2], Compute(Value("t9", F32), Elementwise.ADD, ("t1",)))},
    "one floating dtype": {
        "body": (Constant(Value("c", DType.INT32), "1"), Compute(Value("t9", DType.INT32), Elementwise.EXP, ("c",)))
    },
    "sum of 1 into 2": {
        "body": (*ROW_SUM.body[:2], Reduce((Value("p", F32), Value("q", F32)), Reduction.SUM, ("t1",)))
    },
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_rule_is_named(message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        verify(_changed(**BROKEN[message]))


def test_iteration_space_and_traffic_follow_the_bindings() -> None:
    assert iteration_space(ROW_SUM, {"s0": 5}) == {"x0": 5, "r0": 8}
    moved = traffic(ROW_SUM, {"s0": 5})
    assert (moved.loaded, moved.stored) == (5 * 8 * 2, 5 * 4)


def test_a_broadcast_is_loaded_once_and_an_accumulating_store_reads_too() -> None:
    program = _changed(
        body=(
            Load(Value("t0", F16), "a", Sym("r0")),
            Compute(Value("t1", F32), Elementwise.CAST, ("t0",)),
            Store("b", Sym("r0"), "t1", ("x0", "r0"), StoreMode.ADD),
        )
    )
    load, store = accesses(program, {"s0": 5})
    assert (load.elements, load.nbytes) == (8, 16)
    assert (store.opcode, store.elements, store.nbytes) == ("store.add", 2 * 5 * 8, 2 * 5 * 8 * 4)


def test_a_matmul_counts_its_multiply_accumulates() -> None:
    program = Program(
        "mm",
        (Axis("m", Const(3)), Axis("n", Const(5)), Axis("k", Sym("s0"), reduction=True)),
        ("s0",),
        (Buffer("a", F32), Buffer("b", F32), Buffer("c", F32, written=True)),
        (
            Load(Value("t0", F32), "a", parse("s0*m + k")),
            Load(Value("t1", F32), "b", parse("5*k + n")),
            Matmul(Value("t2", F32), ("t0", "t1")),
            Store("c", parse("5*m + n"), "t2", ("m", "n")),
        ),
    )
    verify(program)
    assert cost(program, {"s0": 7}).multiply_accumulates == 3 * 5 * 7
