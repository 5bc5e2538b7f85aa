"""Support of an op in a dtype: the worst sample decides, and what says nothing does not count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.cases import Case, Direction, ShapeMode
from conformance.outcomes import Outcome, Stage, Support
from conformance.records import Record
from conformance.report import support
from conformance.report.support import RANKS, UNKNOWN, by_pair, of_sample, on_device, support_table, worst


def record(
    outcome: Outcome = Outcome.PASS, how: Support | None = None, subject: str = "add", dtype: str = "float16"
) -> Record:
    case = Case("op", subject, dtype, ShapeMode.STATIC, Direction.FORWARD)
    return Record.of(case, 0, suite="ops", backend="b", outcome=outcome, support=how)


@pytest.mark.parametrize(
    ("outcome", "how", "expected"),
    [
        (Outcome.PASS, Support.NATIVE, "native"),
        (Outcome.PASS, Support.FALLBACK, "fallback"),
        (Outcome.PASS, None, UNKNOWN),
        (Outcome.BUDGET, Support.FALLBACK, "fallback"),
        (Outcome.WRONG, Support.NATIVE, "wrong"),
        (Outcome.UNSUPPORTED, None, "unsupported"),
        (Outcome.ERROR, None, "unsupported"),
        (Outcome.CRASH, None, "unsupported"),
        (Outcome.TIMEOUT, None, "unsupported"),
        (Outcome.OOM, None, "unsupported"),
        (Outcome.SKIPPED, None, None),
        (Outcome.INFRA, Support.WRONG, None),
    ],
)
def test_of_a_sample(outcome: Outcome, how: Support | None, expected: str | None) -> None:
    assert of_sample(record(outcome, how)) == expected


@pytest.mark.parametrize("stage", list(Stage))
def test_want_of_time_or_memory_of_our_own_says_nothing(stage: Stage) -> None:
    ours = stage in (Stage.BUILD, Stage.REFERENCE, Stage.COMPARE)
    for outcome in (Outcome.TIMEOUT, Outcome.OOM):
        of = record(outcome)
        of.stage = stage
        assert of_sample(of) == (None if ours else "unsupported")


def test_every_outcome_has_been_thought_of() -> None:
    assert set(support.BY_OUTCOME) | {Outcome.SKIPPED, Outcome.INFRA} == set(Outcome)
    assert set(RANKS) == {*map(str, Support), UNKNOWN}


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ([], None),
        ([None], None),
        (["native", None], "native"),
        (["native", "custom"], "custom"),
        (["custom", "decomposed"], "decomposed"),
        (["decomposed", UNKNOWN], UNKNOWN),
        ([UNKNOWN, "fallback"], "fallback"),
        (["fallback", "unsupported"], "unsupported"),
        (["unsupported", "wrong"], "wrong"),
    ],
)
def test_the_worst_decides(of: list[str | None], expected: str | None) -> None:
    assert worst(of) == expected
    assert worst(reversed(of)) == expected


@given(st.lists(st.builds(record, st.sampled_from(Outcome), st.sampled_from(Support) | st.none()), max_size=6))
def test_one_more_sample_never_makes_it_better(records: list[Record]) -> None:
    for more in records:
        before, after = by_pair(records), by_pair([*records, more])
        for pair, seen in before.items():
            assert RANKS.index(after[pair]) >= RANKS.index(seen)


def test_the_table_counts_pairs_and_ops() -> None:
    records = [
        record(Outcome.PASS, Support.NATIVE),
        record(Outcome.PASS, Support.DECOMPOSED, "add", "int64"),
        record(Outcome.PASS, Support.NATIVE, "sort"),
        record(Outcome.PASS, Support.FALLBACK, "sort"),
        record(Outcome.SKIPPED, None, "none"),
    ]
    table = support_table(records)
    seen = {row[0]: dict(zip(table.headers[1:], row[1:], strict=True)) for row in table.rows}
    assert list(seen) == ["float16", "int64", "all pairs", "ops (worst dtype)"]
    assert seen["float16"] | {"ops": 2} == seen["float16"]
    assert (seen["float16"]["native"], seen["float16"]["fallback"], seen["float16"]["on device"]) == (1, 1, 0.5)
    assert (seen["all pairs"]["ops"], seen["all pairs"]["on device"]) == (3, pytest.approx(2 / 3))
    assert (seen["ops (worst dtype)"]["decomposed"], seen["ops (worst dtype)"]["fallback"]) == (1, 1)
    assert support_table([]).rows == []


def test_nothing_known_is_no_share() -> None:
    assert on_device({}) is None
    assert on_device({UNKNOWN: 2}) is None
    assert on_device({UNKNOWN: 2, "native": 2}) == 0.5


def test_the_matrix() -> None:
    records = [record(Outcome.PASS, Support.NATIVE), record(Outcome.WRONG, None, "sort", "int64")]
    table = support.matrix(records)
    assert table.headers == ("op", "float16", "int64")
    assert table.rows == [("add", "native", None), ("sort", None, "wrong")]
