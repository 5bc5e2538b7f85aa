"""Exact division of symbolic sizes."""

import pytest
import sympy
import torch  # noqa: F401  before the modules of torch that are imported on their own

from spyre_backend import upstream
from spyre_backend.inductor.sizes import equal, exact_quotient

a, b = sympy.symbols("a b", integer=True, positive=True)
third = upstream.FloorDiv(a, 3)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What upstream was asked for; it knows of no multiple."""
    asked: list[tuple] = []
    monkeypatch.setattr(upstream, "statically_multiple", lambda *question: bool(asked.append(question)))
    monkeypatch.setattr(upstream, "statically_equal", lambda x, y: x == y)
    return asked


@pytest.mark.parametrize(
    ("size", "divisor", "quotient"),
    [
        (12, 4, 3),
        (0, 4, 0),
        (0, 0, 1),
        (8 * a, 4, 2 * a),
        (a, a, 1),
        (a, 1, a),
        (3 * (a + 2 * b - 3) * (2 * a + b), a + 2 * b - 3, 6 * a + 3 * b),
        (sympy.expand(3 * (a + 2 * b - 3) * (2 * a + b)), a + 2 * b - 3, 6 * a + 3 * b),
        (sympy.expand(3 * (a + 2 * b - 3) * (2 * a + b)), sympy.expand((a + 2 * b - 3) * (2 * a + b)), 3),
        (sympy.expand(4 * (third + 1) * b), 2 * third + 2, 2 * b),
        (sympy.Max(1, a - 3) * b, sympy.Max(1, a - 3), b),
    ],
)
def test_a_whole_quotient_needs_no_analysis_by_upstream(size, divisor, quotient, asked) -> None:
    assert sympy.expand(exact_quotient(size, divisor) - quotient) == 0
    assert asked == []


@pytest.mark.parametrize(
    ("size", "divisor"), [(7, 4), (a, b), (a + 2, 2), (a + 2 * b - 3, sympy.expand((a + 2 * b - 3) * (a + b)))]
)
def test_upstream_is_asked_in_lowest_terms(size, divisor, asked) -> None:
    assert exact_quotient(size, divisor) is None
    ((whole, part),) = asked
    assert sympy.expand(whole * divisor - part * size) == 0
    assert sympy.gcd(whole, part) == 1


def test_what_upstream_knows_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "statically_multiple", lambda size, divisor: (size, divisor) == (a, b))
    monkeypatch.setattr(upstream, "exact_quotient", lambda size, divisor: upstream.FloorDiv(size, divisor))
    assert exact_quotient(6 * a, 6 * b) == upstream.FloorDiv(a, b)


def test_nothing_is_a_multiple_of_zero(asked) -> None:
    assert exact_quotient(a, 0) is None


def test_sizes_are_equal_however_they_are_written(asked) -> None:
    assert equal((a + 1) * (b - 2), sympy.expand((a + 1) * (b - 2)))
    assert not equal(a, b)
