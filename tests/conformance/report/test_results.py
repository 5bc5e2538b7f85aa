"""Outcomes, findings, tolerances and cost: counted right, grouped by cause, nothing made up where nothing is known."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.cases import Case, Direction, ShapeMode
from conformance.outcomes import Outcome, Owner
from conformance.records import Record
from conformance.report import results
from conformance.report.table import Table


def record(subject: str = "add", dtype: str = "float16", index: int = 0, **fields: Any) -> Record:
    case = Case("op", subject, dtype, ShapeMode.STATIC, Direction.FORWARD)
    return Record.of(case, index, suite="ops", backend="b", **{"outcome": Outcome.PASS, **fields})


def as_dicts(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.headers, row, strict=True)) for row in table.rows]


RECORDS = [
    record(),
    record(index=1),
    record("sort", "int64", outcome=Outcome.UNSUPPORTED, fingerprint="E:no sort@lower:sort", owner=Owner.BACKEND),
    record("topk", "int64", outcome=Outcome.UNSUPPORTED, fingerprint="E:no sort@lower:topk", expectation="https://x/1"),
    record("sort", "int64", 10, outcome=Outcome.UNSUPPORTED, fingerprint="E:no sort@lower:sort"),
    record("x", "int64", outcome=Outcome.SKIPPED),
    record("y", "int64", outcome=Outcome.INFRA),
]


def test_outcomes_by_axis() -> None:
    assert as_dicts(results.outcome_table(RECORDS, "dtype")) == [
        {"dtype": "float16", "pass": 2, "pass %": 1.0, "unsupported": 0, "skipped": 0, "infra": 0, "samples": 2},
        {"dtype": "int64", "pass": 0, "pass %": 0.0, "unsupported": 3, "skipped": 1, "infra": 1, "samples": 5},
        {"dtype": "all", "pass": 2, "pass %": 0.4, "unsupported": 3, "skipped": 1, "infra": 1, "samples": 7},
    ]
    with pytest.raises(ValueError, match="'colour' is not an axis; they are kind, dtype"):
        results.outcome_table(RECORDS, "colour")


def test_a_share_needs_something_that_ran() -> None:
    table = results.outcome_table([record(outcome=Outcome.INFRA)], "lane")
    assert table.rows[0][-1] is None


def test_findings_by_fingerprint() -> None:
    assert as_dicts(results.finding_table(RECORDS)) == [
        {
            "outcome": "unsupported",
            "fingerprint": "E:no sort@lower:sort",
            "owner": "backend",
            "samples": 2,
            "ops": 1,
            "expected": 0,
            "example": "op:sort:int64:static:fwd:samples#0",
        },
        {
            "outcome": "infra",
            "fingerprint": "(none)",
            "owner": "",
            "samples": 1,
            "ops": 1,
            "expected": 0,
            "example": "op:y:int64:static:fwd:samples#0",
        },
        {
            "outcome": "unsupported",
            "fingerprint": "E:no sort@lower:topk",
            "owner": "",
            "samples": 1,
            "ops": 1,
            "expected": 1,
            "example": "op:topk:int64:static:fwd:samples#0",
        },
    ]


def test_causes_join_what_differs_in_the_op_alone() -> None:
    table = results.cause_table(RECORDS, limit=1)
    (row,) = as_dicts(table)
    assert (row["cause"], row["samples"], row["ops"], row["owner"]) == ("E:no sort@lower", 3, 2, "backend")
    assert table.notes == ["1 more; `conformance findings RUN` lists all."]


def test_loose_tolerances_are_named() -> None:
    records = [
        record("norm", loosest=0.05, slack=0.0, numerics="composite"),
        record("norm", index=1, loosest=0.02, slack=1e-4, numerics="composite"),
        record("mm", loosest=0.03, slack=0.5, numerics="contraction"),
        record("add", loosest=0.001, slack=0.5),
        record("bad", loosest=0.5, slack=3.0, outcome=Outcome.WRONG),
        record("none"),
    ]
    first, second = as_dicts(results.loose_table(records))
    assert (first["op"], first["passes"], first["loosest"], first["idle"]) == ("norm", 2, 0.05, "yes")
    assert first["sample"] == "op:norm:float16:static:fwd:samples#0"
    assert (second["op"], second["largest slack"], second["idle"]) == ("mm", 0.5, "")
    assert len(results.loose_table(records, limit=1).rows) == 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0], (1.0, 1.0, 1.0)),
        (list(range(1, 11)), (5.5, 9, 10)),
        (list(range(1, 12)), (6, 10, 11)),
        (list(range(1, 101)), (50.5, 90, 100)),
    ],
)
def test_quantiles(values: list[float], expected: tuple[float, float, float]) -> None:
    assert results.quantiles(values) == expected
    assert results.quantiles(values[::-1]) == expected


def test_cost() -> None:
    records = [
        record(compile_s=1.0, cpu_s=3.0, backend_cpu_s=2.0, peak_memory=2**21),
        record(compile_s=3.0, cpu_s=3.0, backend_cpu_s=2.0),
        record(compile_s=99.0),  # died: its process could not tell what it used
    ]
    table = results.cost_table(records)
    assert [row[:3] for row in table.rows] == [("compile", 2, 2.0), ("cpu", 2, 3.0), ("backend_cpu", 2, 2.0)]
    assert table.notes == [
        "Median CPU of a sample with judging / of compile and run alone: 1.50",
        "Largest process: 2 MiB",
    ]
    assert results.cost_table([record()]).rows == []
