"""Coverage by overload: a fallback in any sample spoils it, a wrong sample earns nothing."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.cases import Case, Direction, ShapeMode
from conformance.outcomes import Outcome
from conformance.records import Manifest, Record
from conformance.report import overloads

ALL = ["aten::add.Tensor", "aten::mul.Tensor", "aten::sort", "aten::relu", "aten::floor"]


def record(outcome: Outcome = Outcome.PASS, **fields: Any) -> Record:
    case = Case("op", "x", "float16", ShapeMode.STATIC, Direction.FORWARD)
    return Record.of(case, 0, suite="ops", backend="b", outcome=outcome, **fields)


RECORDS = [
    record(lowered={"aten::add.Tensor": 2, "aten.sort.default": 1}),
    record(fallbacks={"aten::sort": 1, "aten::floor": 1}, lowered={"aten::floor": 1}),
    record(Outcome.WRONG, lowered={"aten::relu": 1}),
    record(lowered={"other::op": 1}),
]


def test_coverage() -> None:
    seen = overloads.coverage(RECORDS, ALL)
    assert seen.known == 5
    assert (seen.native, seen.mixed, seen.fallback) == ({"aten::add.Tensor"}, {"aten::sort"}, {"aten::floor"})
    assert seen.missing == {"aten::mul.Tensor", "aten::relu"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::add.Tensor", "aten::add.Tensor"),
        ("aten.add.Tensor", "aten::add.Tensor"),
        ("aten::sort.default", "aten::sort"),
        ("aten.sort.default", "aten::sort"),
        ("aten::sort", "aten::sort"),
    ],
)
def test_spellings(name: str, expected: str) -> None:
    assert overloads.canonical(name) == expected


def test_the_table() -> None:
    facts = {"ops": {"overloads": {"all": ALL, "core": ALL[:3]}}, "models": {"else": 1}}
    manifest = Manifest(run="r", started=0.0, suite_facts=facts)
    table = overloads.overload_table(RECORDS, manifest)
    assert [row[:6] for row in table.rows] == [("all", 5, 1, 1, 1, 2), ("core", 3, 1, 1, 0, 1)]
    assert table.notes == ["Core, on the host too: aten::sort", "Core, never reached: aten::mul.Tensor"]
    assert overloads.overload_table(RECORDS, manifest, limit=0).notes == [
        "Core, on the host too:  and 1 more",
        "Core, never reached:  and 1 more",
    ]


def test_a_backend_that_tells_nothing_has_no_table() -> None:
    manifest = Manifest(run="r", started=0.0, suite_facts={"ops": {"overloads": {"all": ALL}}})
    assert overloads.overload_table([record()], manifest).rows == ()
