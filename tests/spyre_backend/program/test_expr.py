"""Index expressions: print and parse, folding, and the detection of affine accesses."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyre_backend.program import ProgramError
from spyre_backend.program.affine import affine
from spyre_backend.program.expr import (
    Call,
    Const,
    Expr,
    Fn,
    Sym,
    add,
    call,
    evaluate,
    floordiv,
    mod,
    mul,
    names,
    parse,
    substitute,
    to_text,
)

NAMES = ("x0", "x1", "s0")

_leaves = st.one_of(st.integers(-9, 9).map(Const), st.sampled_from(NAMES).map(Sym))


def _grow(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    pair = st.tuples(children, children)
    positive = st.integers(1, 9).map(Const)
    return st.one_of(
        pair.map(lambda ab: add(*ab)),
        pair.map(lambda ab: mul(*ab)),
        st.tuples(children, positive).map(lambda ab: floordiv(*ab)),
        st.tuples(children, positive).map(lambda ab: mod(*ab)),
        pair.map(lambda ab: call(Fn.MIN, *ab)),
        pair.map(lambda ab: call(Fn.MAX, *ab)),
        st.tuples(children, children, children, children).map(
            lambda abcd: call(Fn.WHERE, call(Fn.LT, abcd[0], abcd[1]), abcd[2], abcd[3])
        ),
        children.map(lambda a: call(Fn.ABS, a)),
    )


EXPRESSIONS = st.recursive(_leaves, _grow, max_leaves=12)


@given(EXPRESSIONS)
@settings(max_examples=200, deadline=None)
def test_a_printed_expression_parses_back_to_itself(expr: Expr) -> None:
    assert parse(to_text(expr)) == expr


@given(EXPRESSIONS, st.tuples(*(st.integers(0, 20) for _ in NAMES)))
@settings(max_examples=200, deadline=None)
def test_the_printed_form_is_what_python_computes(expr: Expr, values: tuple[int, ...]) -> None:
    bindings = dict(zip(NAMES, values, strict=True))
    python = {"min": min, "max": max, "abs": abs, "where": lambda c, a, b: a if c else b}
    assert evaluate(expr, bindings) == eval(to_text(expr), {**python, **bindings})


@given(EXPRESSIONS, st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_substitution_is_evaluation_in_two_steps(expr: Expr, value: int) -> None:
    rest = {"x1": 3, "s0": 7}
    assert evaluate(substitute(expr, {"x0": Const(value)}), rest) == evaluate(expr, {"x0": value, **rest})


@given(EXPRESSIONS)
@settings(max_examples=200, deadline=None)
def test_an_affine_access_addresses_the_same_elements(expr: Expr) -> None:
    extents = {"x0": 3, "x1": 4}
    found = affine(expr, extents, {"s0": 5})
    if found is None:
        return
    low, high = found.bounds(extents)
    for x0, x1 in itertools.product(range(3), range(4)):
        position = {"x0": x0, "x1": x1}
        value = found.offset + sum(step * position[axis] for axis, step in found.coefficients.items())
        assert value == evaluate(expr, {**position, "s0": 5})
        assert low <= value <= high


@pytest.mark.parametrize(
    ("text", "offset", "steps"),
    [
        ("4*x0 + x1", 0, {"x0": 4, "x1": 1}),
        ("(4*x0 + x1) // 4", 0, {"x0": 1}),
        ("(4*x0 + x1) % 4", 0, {"x1": 1}),
        ("s0*x0 + 2*s0", 10, {"x0": 5}),
        ("7 + (-1)*x1", 7, {"x1": -1}),
        ("where(s0 < 6, x1, 0)", None, None),
        ("(x0 + x1) % 4", None, None),
        ("x0*x1", None, None),
        ("tmp3 + x0", None, None),
    ],
)
def test_which_accesses_are_affine(text: str, offset: int | None, steps: dict[str, int] | None) -> None:
    found = affine(parse(text), {"x0": 3, "x1": 4}, {"s0": 5})
    if offset is None:
        assert found is None
    else:
        assert found is not None
        assert (found.offset, found.coefficients) == (offset, steps)


def test_names_and_unbound_names() -> None:
    expr = parse("where(x0 < s0, 2*x0, tmp1)")
    assert names(expr) == {"x0", "s0", "tmp1"}
    with pytest.raises(ProgramError, match="unbound name 'tmp1'"):
        evaluate(parse("tmp1 + 1"), {})


@pytest.mark.parametrize("text", ["x0 +", "x0.y", "f(x0)", "x0 if x1 else 2", "[1]", "'x'"])
def test_what_is_no_index_expression_is_refused(text: str) -> None:
    with pytest.raises(ProgramError, match="not an index expression"):
        parse(text)


def test_literals_keep_their_kind() -> None:
    assert to_text(Const(1.0)) == "1.0"
    assert Const(1.0) != Const(1)
    assert parse(to_text(Const(float("inf")))) == Const(float("inf"))
    assert Call(Fn.POW, (Sym("x0"), Const(2))) == parse("x0**2")
