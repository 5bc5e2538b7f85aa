"""Verdicts on moving from one backend to another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.cases import Case, Direction, ShapeMode
from conformance.outcomes import Outcome
from conformance.records import GraphBreak, Recompile, Record
from conformance.report.migration import Migration, device_ratio, migration, migration_table


def record(outcome: Outcome = Outcome.PASS, subject: str = "m", **fields: object) -> Record:
    case = Case("model", subject, "float32", ShapeMode.STATIC, Direction.FORWARD)
    return Record.of(case, 0, suite="models", backend="b", outcome=outcome, **fields)


def broken(times: int) -> Record:
    return record(Outcome.BUDGET, breaks=[GraphBreak("why", "x.py:1", times)])


FAST, SLOW = record(device_s=1.0), record(device_s=2.0)
WRONG = record(Outcome.WRONG, culprit_op="aten::mm")


@pytest.mark.parametrize(
    ("left", "right", "verdict", "why"),
    [
        ([record()], [record()], Migration.EQUAL, ""),
        ([record()], [WRONG], Migration.BLOCKED, "wrong: aten::mm"),
        ([record(Outcome.UNSUPPORTED, fingerprint="E:no sort@codegen:op")], [record()], Migration.UNLOCKED, None),
        ([WRONG], [record(Outcome.ERROR)], Migration.NEITHER, "error"),
        ([], [record()], Migration.UNKNOWN, "not judged here"),
        ([record()], [record(Outcome.SKIPPED)], Migration.UNKNOWN, "not judged there"),
        ([record(), record(Outcome.INFRA)], [record()], Migration.EQUAL, ""),
        ([broken(3)], [record()], Migration.BETTER, "3 to 0 graph breaks"),
        ([record()], [broken(2)], Migration.WORSE, "0 to 2 graph breaks"),
        ([FAST], [SLOW], Migration.WORSE, "2.00 x the time on the device"),
        ([SLOW], [FAST], Migration.BETTER, "0.50 x the time on the device"),
        ([record(device_s=1.0)], [record(device_s=1.04)], Migration.EQUAL, ""),
        ([SLOW], [record(device_s=1.0, fallbacks={"aten::mm": 2})], Migration.WORSE, "0 to 2 calls on the host"),
        (
            [SLOW],
            [record(Outcome.BUDGET, device_s=1.0, recompiles=[Recompile("g", "x.py:1")])],
            Migration.MIXED,
            "0.50 x the time on the device, 0 to 1 recompiles",
        ),
    ],
)
def test_verdicts(left: list[Record], right: list[Record], verdict: Migration, why: str | None) -> None:
    found, because = migration(left, right)
    assert found is verdict
    if why is not None:
        assert because == why


@pytest.mark.parametrize(
    ("left", "right", "ratio"),
    [(FAST, SLOW, 2.0), (record(), SLOW, None), (FAST, record(), None), (record(device_s=0.0), FAST, None)],
)
def test_times_are_compared_where_both_are_known(left: Record, right: Record, ratio: float | None) -> None:
    assert device_ratio([left], [right]) == ratio


OPPOSITE = {
    Migration.BLOCKED: Migration.UNLOCKED,
    Migration.UNLOCKED: Migration.BLOCKED,
    Migration.BETTER: Migration.WORSE,
    Migration.WORSE: Migration.BETTER,
}
SIDES = st.lists(
    st.builds(
        record,
        st.sampled_from(Outcome),
        device_s=st.none() | st.floats(0.1, 10),
        fallbacks=st.dictionaries(st.just("aten::mm"), st.integers(0, 3)),
    ),
    max_size=3,
)


@given(SIDES, SIDES)
def test_going_back_is_the_opposite(left: list[Record], right: list[Record]) -> None:
    there, back = migration(left, right)[0], migration(right, left)[0]
    assert back is OPPOSITE.get(there, there)


def test_the_table_has_a_line_for_each_check_and_counts_verdicts() -> None:
    left = [record(subject="a", device_s=2.0, compile_s=3.0), record(subject="b")]
    right = [record(subject="a", device_s=1.0, compile_s=1.0), record(Outcome.WRONG, "b")]
    table = migration_table(left, right, ("old", "new"))
    assert [row[:4] for row in table.rows] == [
        ("a", "static", "float32", "better"),
        ("b", "static", "float32", "blocked"),
    ]
    assert table.rows[0][5:] == (3.0, 1.0, 2000.0, 1000.0)
    assert list(table.notes) == ["1 blocked, 1 better"]
