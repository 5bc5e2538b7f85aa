"""Elementwise opcodes: each one has a meaning, and it is PyTorch's, also where the machine would trap."""

import pytest
import torch

from spyre_backend.program import SpyreUnsupported
from spyre_backend.program.opcodes import Elementwise, Typing
from spyre_backend.simulator import elementwise as table
from tests.spyre_backend.simulator.build import elementwise

E = Elementwise
INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, INF, -INF, NAN, 1e-40, 3e38])


def test_every_opcode_has_an_implementation() -> None:
    assert set(table._FUNCTIONS) | set(table._CONVERSIONS) == set(Elementwise)


UNARY = {
    E.NEG: torch.neg, E.ABS: torch.abs, E.SIGN: torch.sign, E.RELU: torch.relu, E.RECIPROCAL: torch.reciprocal,
    E.FLOOR: torch.floor, E.CEIL: torch.ceil, E.TRUNC: torch.trunc, E.ROUND: torch.round, E.SQRT: torch.sqrt,
    E.RSQRT: torch.rsqrt, E.EXP: torch.exp, E.LOG1P: torch.log1p, E.TANH: torch.tanh, E.SIGMOID: torch.sigmoid,
    E.ERF: torch.erf, E.SQUARE: torch.square,
}  # fmt: skip
PREDICATES = {E.ISNAN: torch.isnan, E.ISINF: torch.isinf, E.SIGNBIT: torch.signbit}
BINARY = {
    E.ADD: torch.add, E.SUB: torch.sub, E.MUL: torch.mul, E.TRUEDIV: torch.true_divide, E.MINIMUM: torch.minimum,
    E.MAXIMUM: torch.maximum, E.FMAX: torch.fmax, E.REMAINDER: torch.remainder, E.FMOD: torch.fmod, E.POW: torch.pow,
    E.ATAN2: torch.atan2, E.COPYSIGN: torch.copysign,
}  # fmt: skip
COMPARE = {E.EQ: torch.eq, E.NE: torch.ne, E.LT: torch.lt, E.LE: torch.le, E.GT: torch.gt, E.GE: torch.ge}


def _same(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    if got.dtype.is_floating_point:
        number = ~torch.isnan(expected)
        assert torch.equal(torch.signbit(got)[number], torch.signbit(expected)[number])


@pytest.mark.parametrize("op", UNARY)
def test_unary_on_special_values(op: Elementwise) -> None:
    _same(elementwise(op, [SPECIAL], torch.float32), UNARY[op](SPECIAL))


@pytest.mark.parametrize("op", PREDICATES)
def test_predicates_on_special_values(op: Elementwise) -> None:
    _same(elementwise(op, [SPECIAL], torch.bool), PREDICATES[op](SPECIAL))


@pytest.mark.parametrize("op", [*BINARY, *COMPARE])
def test_binary_on_all_pairs_of_special_values(op: Elementwise) -> None:
    pairs = torch.cartesian_prod(SPECIAL, SPECIAL)
    a, b = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    expected = (BINARY | COMPARE)[op](a, b)
    _same(elementwise(op, [a, b], expected.dtype), expected)


INTEGER_DIVISION = [
    # a, b, floordiv, truncdiv, remainder, fmod
    (7, 2, 3, 3, 1, 1),
    (-7, 2, -4, -3, 1, -1),
    (7, -2, -4, -3, -1, 1),
    (-7, -2, 3, 3, -1, -1),
    # nothing traps: by zero everything is zero, and the most negative number divided by -1 wraps around
    (5, 0, 0, 0, 0, 0),
    (-(2**31), -1, -(2**31), -(2**31), 0, 0),
]


@pytest.mark.parametrize("row", INTEGER_DIVISION)
def test_integer_division(row: tuple[int, ...]) -> None:
    a, b = (torch.tensor([value], dtype=torch.int32) for value in row[:2])
    ops = (E.FLOORDIV, E.TRUNCDIV, E.REMAINDER, E.FMOD)
    assert [elementwise(op, [a, b], torch.int32).item() for op in ops] == list(row[2:])


@pytest.mark.parametrize(
    ("base", "exponent", "power"), [(3, 4, 81), (2, -1, 0), (1, -5, 1), (-1, -3, -1), (-1, -2, 1), (0, 0, 1)]
)
def test_integer_power(base: int, exponent: int, power: int) -> None:
    a, b = torch.tensor([base]), torch.tensor([exponent])
    assert elementwise(E.POW, [a, b], torch.int64).item() == power


def test_integers_wrap_around() -> None:
    top = torch.tensor([2**31 - 1], dtype=torch.int32)
    one = torch.ones_like(top)
    assert elementwise(E.ADD, [top, one], torch.int32).item() == -(2**31)
    assert elementwise(E.NEG, [torch.tensor([-128], dtype=torch.int8)], torch.int8).item() == -128


def test_bool_arithmetic_is_logic() -> None:
    a, b = torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])
    assert elementwise(E.ADD, [a, b], torch.bool).tolist() == [False, True, True, True]
    assert elementwise(E.MUL, [a, b], torch.bool).tolist() == [False, False, False, True]
    assert elementwise(E.SUB, [a, b], torch.bool).tolist() == [False, True, True, False]


def test_shifts() -> None:
    a, by = torch.tensor([-8, 8, 1], dtype=torch.int32), torch.tensor([1, 2, 3], dtype=torch.int32)
    assert elementwise(E.LEFT_SHIFT, [a, by], torch.int32).tolist() == [-16, 32, 8]
    assert elementwise(E.RIGHT_SHIFT, [a, by], torch.int32).tolist() == [-4, 2, 0]


def test_casts_round_to_even_and_truncate() -> None:
    halves = torch.tensor([2049.0, 2051.0, 65520.0, -0.5])
    assert elementwise(E.CAST, [halves], torch.float16).tolist() == [2048.0, 2052.0, INF, -0.5]
    assert elementwise(E.CAST, [torch.tensor([2.9, -2.9])], torch.int64).tolist() == [2, -2]
    assert elementwise(E.CAST, [torch.tensor([0.0, 0.1, NAN])], torch.bool).tolist() == [False, True, True]


def test_bitcast_keeps_the_bits() -> None:
    assert elementwise(E.BITCAST, [torch.tensor([1.0, -0.0])], torch.int32).tolist() == [0x3F800000, -(2**31)]


def test_fma_rounds_once() -> None:
    a = torch.tensor([1.0 + 2.0**-12])
    c = torch.tensor([-(1.0 + 2.0**-11)])
    assert elementwise(E.FMA, [a, a, c], torch.float32).item() == 2.0**-24
    assert (a * a + c).item() == 0.0


def test_frexp() -> None:
    x = torch.tensor([0.0, 6.0, -0.1])
    mantissa, exponent = torch.frexp(x)
    _same(elementwise(E.FREXP_MANTISSA, [x], torch.float32), mantissa)
    assert elementwise(E.FREXP_EXPONENT, [x], torch.int32).tolist() == exponent.tolist()


def test_polygamma_of_mixed_orders() -> None:
    order, x = torch.tensor([0, 1, 2, 1]), torch.tensor([0.5, 1.5, 2.5, 3.5])
    expected = torch.stack([torch.polygamma(int(n), value) for n, value in zip(order, x, strict=True)])
    _same(elementwise(E.POLYGAMMA, [order, x], torch.float32), expected)


FLOAT_UNARY = [op for op in Elementwise if op.typing is Typing.FLOAT and op.arity == 1]


@pytest.mark.parametrize("op", FLOAT_UNARY)
def test_every_float_function_agrees_with_torch(op: Elementwise) -> None:
    x = torch.linspace(-0.9, 3.0, 13)
    home = {"frexp_mantissa": lambda v: torch.frexp(v).mantissa}
    reference = home.get(op.mnemonic) or getattr(torch.special, op.mnemonic, None) or getattr(torch, op.mnemonic)
    _same(elementwise(op, [x], torch.float32), reference(x))


def test_what_has_no_implementation_is_refused_by_name() -> None:
    with pytest.raises(SpyreUnsupported, match=r"bitwise_and\(float32, float32\)"):
        table.apply(E.BITWISE_AND, (torch.ones(1), torch.ones(1)), torch.float32)
