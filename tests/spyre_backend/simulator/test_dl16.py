"""DL16: the format against the suite's own description of it, programs that compute in it, and the whole device."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.numerics import FORMATS, representable, round_to
from spyre_backend import numerics
from spyre_backend.device import _C
from spyre_backend.numerics import NarrowedIntegerWarning, Numerics
from spyre_backend.program import DType, Program
from spyre_backend.program.expr import parse
from spyre_backend.program.ir import Buffer, Compute, Constant, Instruction, Load, Reduce, Store, Value
from spyre_backend.program.opcodes import Elementwise, Reduction, StoreMode
from spyre_backend.simulator import dl16, kernel
from tests.spyre_backend.device.conftest import run_python  # noqa: F401
from tests.spyre_backend.simulator.build import axes, elementwise, over_rows, run

DL16, FP16 = FORMATS["dl16"], FORMATS["fp16"]
HALF = DType.FLOAT16
EVERY_HALF = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)


@pytest.fixture
def in_dl16(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(numerics, "MODE", Numerics.DL16)
    monkeypatch.setattr(numerics, "_said", [])
    kernel.load.cache_clear()
    _C.use_dl16(numerics.warn_narrowed)
    yield
    _C.use_dl16(None)
    kernel.load.cache_clear()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(0.5), b.nan_to_num(0.5)) and torch.equal(
        a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan()
    )


# ---- the format ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "nearest"),
    [
        (1.0, 1.0),
        (1 + 2**-10, 1 + 2**-9),  # in the middle: away from zero
        (-1 - 2**-10, -1 - 2**-9),
        (1 + 2**-10 - 2**-23, 1.0),
        (2 - 2**-23, 2.0),
        (65504.0, 65536.0),
        (dl16.LARGEST, dl16.LARGEST),
        (-dl16.LARGEST * (1 + 2**-12), -dl16.LARGEST),
        (8.6e9, math.nan),
        (math.inf, math.nan),
        (-math.inf, math.nan),
        (math.nan, math.nan),
        (dl16.SMALLEST, dl16.SMALLEST),
        (2.0**-31, dl16.SMALLEST),  # the pattern that would be 2**-31 is zero
        (dl16.SMALLEST / 2, 0.0),
        (-1e-20, -0.0),
        (-0.0, -0.0),
        (1e-45, 0.0),
    ],
)
def test_rounding(x: float, nearest: float) -> None:
    assert same(dl16.rounded(torch.tensor([x])), torch.tensor([nearest]))


def test_it_is_the_format_that_results_are_judged_by() -> None:
    assert (DL16.max, DL16.smallest_normal) == (dl16.LARGEST, dl16.SMALLEST)
    assert same(dl16.rounded(EVERY_HALF).double(), round_to(EVERY_HALF.double(), DL16))


@settings(max_examples=500, deadline=None)
@given(x=st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_rounding_of_any_number_is_that_of_the_judge(x: list[float]) -> None:
    wide = torch.tensor(x, dtype=torch.float32)
    made = dl16.rounded(wide)
    assert same(made.double(), round_to(wide.double(), DL16))
    assert same(dl16.rounded(made), made)


@pytest.mark.parametrize(
    ("value", "stored", "loaded"),
    [
        (1.0, 1.0, 1.0),
        (65472.0, 65472.0, 65472.0),
        (65536.0, 65472.0, 65472.0),  # what the lowest float16, with which models mask, rounds to: stays a number
        (-65536.0, -65472.0, -65472.0),
        (65664.0, math.inf, dl16.LARGEST),  # float16 lacks it: what is loaded again is the largest number
        (-1e9, -math.inf, -dl16.LARGEST),
        (math.nan, math.nan, math.nan),
        (2.0**-24, 2.0**-24, 2.0**-24),
        (2.0**-30, 0.0, 0.0),
    ],
)
def test_what_memory_keeps(value: float, stored: float, loaded: float) -> None:
    kept = dl16.to_memory(dl16.rounded(torch.tensor([value])))
    assert same(kept, torch.tensor([stored]).half())
    assert same(dl16.from_memory(kept), torch.tensor([loaded]))


def test_memory_keeps_every_number_from_2_to_the_minus_15_to_65472() -> None:
    steps = torch.arange(512, 1024, dtype=torch.float32)
    every = torch.cat([torch.ldexp(steps, torch.tensor(e - 9)) for e in range(-15, 16)])
    assert every.min() == 2.0**-15
    assert every.max() == dl16.LARGEST_IN_MEMORY
    assert torch.equal(dl16.rounded(every), every)
    assert torch.equal(dl16.from_memory(dl16.to_memory(every)), every)


# ---- programs ------------------------------------------------------------------------------------------------------


def test_every_instruction_rounds(in_dl16: None) -> None:
    """(x + 1/512) - 1 keeps nothing finer than the spacing at 1, and float32 in the same program keeps it."""
    f32 = DType.FLOAT32

    def program(dtype: DType) -> Program:
        body: list[Instruction] = [Load(Value("x", HALF), "a", parse("x0"))]
        if dtype is not HALF:
            body.append(Compute(Value("wide", dtype), Elementwise.CAST, ("x",)))
        body += [
            Constant(Value("one", dtype), "1.0"),
            Compute(Value("sum", dtype), Elementwise.ADD, ("x" if dtype is HALF else "wide", "one")),
            Compute(Value("result", dtype), Elementwise.SUB, ("sum", "one")),
            Store("out", parse("x0"), "result", ("x0",)),
        ]
        return Program("p", axes([2]), (), (Buffer("a", HALF), Buffer("out", dtype, written=True)), tuple(body))

    x = torch.tensor([2.0**-10, 2.0**-12]).half()
    out, wide = torch.empty(2).half(), torch.empty(2)
    run(program(HALF), x, out)
    run(program(f32), x, wide)
    assert out.tolist() == [2.0**-9, 0.0]
    assert wide.tolist() == x.tolist()


def test_what_lies_between_may_exceed_float16_and_a_stored_number_may_not(in_dl16: None) -> None:
    x = torch.tensor([300.0, -300.0, 1e-4]).half()
    body = (
        Load(Value("x", HALF), "a", parse("x0")),
        Compute(Value("square", HALF), Elementwise.SQUARE, ("x",)),
        Compute(Value("root", HALF), Elementwise.SQRT, ("square",)),
        Store("out", parse("x0"), "root", ("x0",)),
        Store("kept", parse("x0"), "square", ("x0",)),
    )
    buffers = (Buffer("a", HALF), Buffer("out", HALF, written=True), Buffer("kept", HALF, written=True))
    out, kept = torch.empty(3).half(), torch.empty(3).half()
    run(Program("p", axes([3]), (), buffers, body), x, out, kept)
    torch.testing.assert_close(out, x.abs(), rtol=2**-8, atol=0)
    assert kept.tolist() == [math.inf, math.inf, 0.0]


def test_overflow_and_infinities_are_nan_and_a_literal_infinity_is_the_largest_number(in_dl16: None) -> None:
    huge = torch.tensor([65472.0]).half()
    cubed = elementwise(Elementwise.POW, [huge, torch.tensor([3.0]).half()], torch.float16)
    assert cubed.isnan().all()
    body = (
        Load(Value("x", HALF), "a", parse("x0")),
        Constant(Value("least", HALF), "-inf"),
        Compute(Value("top", HALF), Elementwise.MAXIMUM, ("x", "least")),
        Compute(Value("none", HALF), Elementwise.EXP, ("least",)),
        Compute(Value("result", HALF), Elementwise.ADD, ("top", "none")),
        Store("out", parse("x0"), "result", ("x0",)),
    )
    out = torch.empty(1).half()
    run(Program("p", axes([1]), (), (Buffer("a", HALF), Buffer("out", HALF, written=True)), body), huge, out)
    assert out.tolist() == huge.tolist()


def test_sums_are_rounded_once(in_dl16: None) -> None:
    x, out = torch.full((1, 4096), 2.0**-4).half(), torch.empty(1).half()
    reduction = Reduce((Value("total", HALF),), Reduction.SUM, ("t",))
    over_rows(x, reduction, [("total", out, False)])
    assert out.item() == 256.0, "added up in DL16 one by one it would stop at 64"


def test_an_accumulating_store_leaves_numbers_of_the_format(in_dl16: None) -> None:
    body = (
        Load(Value("x", HALF), "a", parse("x0")),
        Store("out", parse("0"), "x", ("x0",), StoreMode.ADD),
    )
    out = torch.ones(1).half()
    program = Program("p", axes([3]), (), (Buffer("a", HALF), Buffer("out", HALF, written=True)), body)
    run(program, torch.tensor([2.0**-10, 2.0**-9, 0.0]).half(), out)
    assert same(dl16.rounded(out), out.float())
    assert out.item() in (1 + 2**-9, 1 + 2**-8)


def test_a_stored_int64_keeps_32_bits_and_says_so(in_dl16: None) -> None:
    x = torch.tensor([7, -1, 2**31 - 1, 2**31, 2**40 + 5])
    one = torch.ones_like(x)
    with pytest.warns(NarrowedIntegerWarning, match="add: an int64 is beyond 32 bits"):
        got = elementwise(Elementwise.ADD, [x, one], torch.int64)
    assert got.tolist() == [8, 0, -(2**31), -(2**31) + 1, 6]


def test_nothing_of_this_happens_in_ieee() -> None:
    assert not numerics.is_dl16()
    x = torch.tensor([1 + 2.0**-10, 65504.0, math.inf]).half()
    assert torch.equal(elementwise(Elementwise.ABS, [x], torch.float16), x)
    assert torch.equal(x.to("spyre").cpu(), x)
    wide = torch.tensor([2**40 + 5])
    assert torch.equal(wide.to("spyre").cpu(), wide)


# ---- the device ----------------------------------------------------------------------------------------------------


def test_copies_to_the_device_round(in_dl16: None) -> None:
    got = EVERY_HALF.to("spyre").cpu()
    assert same(got.double(), representable(EVERY_HALF.double(), DL16, FP16))
    strided = EVERY_HALF.reshape(256, 256).t()
    device = torch.empty(256, 256, dtype=torch.float16, device="spyre").t()
    device.copy_(strided)
    assert same(device.cpu(), got.reshape(256, 256).t())
    assert torch.full((2,), -65504.0, dtype=torch.float16, device="spyre").tolist() == [-65472.0] * 2
    masked = torch.full((1,), -math.inf, dtype=torch.float16, device="spyre")
    assert masked.cpu().item() == -math.inf, "a literal infinity is a number beyond float16"


@pytest.mark.filterwarnings("ignore::spyre_backend.HostFallbackWarning")
def test_results_of_the_host_round(in_dl16: None) -> None:
    x = torch.randn(100).half().to("spyre")
    got = (x * 1.37).cpu()
    x.mul_(1.37)
    assert same(dl16.rounded(got), got.float())
    assert same(x.cpu(), got)


def test_an_int64_that_is_copied_keeps_32_bits_and_says_so(in_dl16: None) -> None:
    with pytest.warns(NarrowedIntegerWarning, match="a copy to the device"):
        assert torch.tensor([2**40 + 5, 2**31, -3]).to("spyre").tolist() == [5, -(2**31), -3]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bit_floats_are_stored_as_they_are(in_dl16: None, dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    assert torch.equal(every.to("spyre").cpu().view(torch.uint8), every.view(torch.uint8))


_COMPILED = """
import json, warnings, torch
import torch.nn.functional as F
warnings.simplefilter("ignore")
import spyre_backend
from spyre_backend.simulator import dl16

torch.manual_seed(0)
x, w, table = torch.randn(8, 64).half(), torch.randn(64, 16).half(), torch.randn(100, 8).half()
at = torch.tensor([3, 99, 0])

def held(t):
    return t.to("spyre").cpu()

def close(fn, *args):
    got = torch.compile(fn, fullgraph=True)(*(a.to("spyre") for a in args)).cpu()
    want = fn(*(held(a).double() if a.is_floating_point() else a for a in args))
    on_grid = torch.equal(dl16.rounded(got), got.float())
    return on_grid, float((got.double() - want).abs().max() / want.abs().max())

def narrow(x):
    return x.to(torch.float8_e4m3fn).to(torch.float16)

found = {
    "pointwise": close(lambda x: F.gelu(x) * 1.7 + 0.1, x),
    "softmax": close(lambda x: torch.softmax(x, -1), x),
    "product": close(lambda x, w: x @ w, x, w),
    "attention": close(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), x[None, None]),
    "pooling": close(lambda x: F.max_pool2d(x, 3, 1, 1), x.reshape(1, 1, 16, 32)),
    "stored in 8 bits": close(lambda x: x.to(torch.float8_e4m3fn).to(x.dtype) if x.is_cpu else narrow(x), x),
    "embedding": close(lambda at, table: F.embedding(at, table), at, table),
}
print(json.dumps(found))
try:
    torch.compile(lambda x: x.view(torch.int16) + 1)(x.to("spyre"))
except Exception as error:
    print("refused" if "bits of a float16" in str(error) else error)
"""


def test_compiled_functions_compute_in_dl16(run_python) -> None:  # noqa: F811
    out = run_python(_COMPILED, SPYRE_NUMERICS="dl16").splitlines()
    found = json.loads(out[0])
    assert all(on_grid for on_grid, _ in found.values()), found
    assert all(off < 2**-7 for _, off in found.values()), found
    assert found["embedding"][1] == 0
    assert out[1] == "refused"
