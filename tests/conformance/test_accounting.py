"""Every case and sample is somewhere, and a run whose numbers mean nothing says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import accounting, store
from conformance.cases import Case, Direction, ShapeMode
from conformance.outcomes import Outcome
from conformance.records import Accounting, Manifest, Record


def case(subject: str, dtype: str = "float16", direction: Direction = Direction.FORWARD) -> Case:
    return Case("op", subject, dtype, ShapeMode.STATIC, direction)


def record(of: Case, index: int, outcome: Outcome = Outcome.PASS, reason: str = "") -> Record:
    return Record.of(of, index, suite="ops", backend="b", outcome=outcome, reason=reason)


def log(*records: Record, started: tuple[str, ...] = (), cases: tuple[store.CaseDone, ...] = ()) -> store.Log:
    return store.Log(list(records), {s: store.Started(s, 0.0) for s in started}, {done.case: done for done in cases})


A, B, C, D = case("a"), case("b", "int64"), case("c", direction=Direction.BACKWARD), case("d")


def test_where_cases_and_samples_go() -> None:
    seen = accounting.account(
        map(str, (A, B, C, D)),
        log(
            record(A, 0),
            record(A, 1, Outcome.SKIPPED, "too large"),
            record(A, 2, Outcome.INFRA),
            record(B, 0, Outcome.SKIPPED, "no int64"),
            started=(A.sample_id(0), D.sample_id(0)),
            cases=(store.CaseDone(str(A), 4), store.CaseDone(str(C), reason="no backward")),
        ),
        excluded={"random": 2},
        deselected=5,
    )
    assert seen == Accounting(
        cases_collected=4,
        cases_run=1,
        cases_skipped={"no int64": 1, "no backward": 1},
        cases_lost=[str(D)],
        samples_run=1,
        samples_skipped={"too large": 1, "no int64": 1},
        samples_lost=[A.sample_id(2), A.sample_id(3), D.sample_id(0)],
        excluded={"random": 2},
        deselected=5,
    )


def test_a_case_without_samples_is_skipped_for_that_reason() -> None:
    seen = accounting.account([str(A)], log(cases=(store.CaseDone(str(A), 0),)))
    assert seen.cases_skipped == {"the suite has no sample for it": 1}


def test_a_case_with_only_infra_is_lost() -> None:
    seen = accounting.account([str(A)], log(record(A, 0, Outcome.INFRA)))
    assert seen.cases_lost == [str(A)]
    assert seen.samples_lost == [A.sample_id(0)]


CASES = st.builds(case, st.sampled_from("abc"), st.sampled_from(["float16", "int64"]), st.sampled_from(Direction))
RECORDS = st.builds(record, CASES, st.integers(0, 3), st.sampled_from(Outcome), st.sampled_from(["", "r"]))


@given(
    st.lists(CASES, max_size=8),
    st.lists(RECORDS, max_size=12),
    st.lists(st.builds(store.CaseDone, CASES.map(str), st.integers(0, 4), st.sampled_from(["", "why"])), max_size=3),
    st.dictionaries(CASES.map(str), st.just("said by the plugin"), max_size=2),
)
def test_it_adds_up_on_every_axis(
    collected: list[Case], records: list[Record], dones: list[store.CaseDone], skipped: dict[str, str]
) -> None:
    ids = [str(each) for each in collected]
    of_run = log(*records, cases=tuple(dones))
    seen = accounting.account(ids, of_run, skipped=skipped)
    total = (seen.cases_collected, seen.cases_run, sum(seen.cases_skipped.values()), len(seen.cases_lost))
    assert total[0] == sum(total[1:]) == len(set(ids))
    axes = accounting.by_axis(ids, of_run, skipped)
    assert set(axes) == set(accounting.AXES)
    for values in axes.values():
        assert all(s.collected == s.run + s.skipped + s.lost for s in values.values())
        assert tuple(map(sum, zip(*values.values(), strict=True))) == (total if values else ())


GOOD = Accounting(cases_collected=2, cases_run=2, samples_run=2)


@pytest.mark.parametrize(
    ("seen", "records", "complaint"),
    [
        (Accounting(), [], "no case was collected"),
        (
            Accounting(deselected=3, excluded={"x": 2}),
            [],
            "no case was collected (3 deselected, 2 excluded by the suite)",
        ),
        (Accounting(cases_collected=2, cases_skipped={"r": 2}), [], "no case has run"),
        (Accounting(cases_collected=3, cases_run=2), [record(A, 0)], "3 cases collected, but 2 accounted for"),
        (
            Accounting(cases_collected=6, cases_run=1, cases_lost=list("vwxyz")),
            [record(A, 0)],
            "5 cases lost: v, w, x, …",
        ),
        (
            Accounting(cases_collected=1, cases_run=1, samples_run=1, samples_lost=["s"]),
            [record(A, 0)],
            "1 samples lost: s",
        ),
        (
            GOOD,
            [record(A, 0, Outcome.ERROR), record(B, 0, Outcome.ERROR), record(C, 0, Outcome.CRASH)],
            "nothing passes at all (2 error, 1 crash): is the backend set up?",
        ),
    ],
)
def test_problems(seen: Accounting, records: list[Record], complaint: str) -> None:
    assert complaint in accounting.problems(seen, records)


def test_a_good_run_has_no_problems() -> None:
    same = Manifest(run="r", started=0.0, accounting=GOOD)
    assert accounting.problems(GOOD, [record(A, 0), record(B, 0, Outcome.ERROR)], same) == []


def test_a_drop_is_a_problem_and_growth_is_not() -> None:
    before = Manifest(run="old", started=0.0, versions={"torch": "2.13.0"}, accounting=GOOD)
    less = Accounting(cases_collected=1, cases_run=1, samples_run=3)
    assert accounting.problems(less, [record(A, 0)], before) == [
        "cases collected dropped from 2 in run old with torch 2.13.0 to 1",
        "cases run dropped from 2 in run old with torch 2.13.0 to 1",
    ]


def test_unknown_cases() -> None:
    assert accounting.unknown_cases([str(A)], [record(A, 0), record(B, 0)]) == [str(B)]


def test_the_previous_run_is_the_newest_comparable_one(tmp_path: Path) -> None:
    def run(name: str, started: float, **fields: object) -> Manifest:
        made = Manifest(
            run=name, started=started, **{"backend": "spyre", "options": {"tier": "pr"}, "complete": True, **fields}
        )
        (tmp_path / name).mkdir()
        store.write_manifest(tmp_path / name, made)
        return made

    run("a", 1.0)
    expected = run("b", 2.0)
    run("c", 3.0, complete=False)
    run("d", 3.0, options={"tier": "smoke"})
    run("e", 3.0, backend="eager")
    run("h", 3.0, versions={"torch": "2.14.0"})
    run("i", 3.0, accounting=Accounting(deselected=1))
    now = run("f", 4.0)
    run("g", 5.0)
    assert accounting.previous_run(now, tmp_path) == expected
    assert accounting.previous_run(Manifest(run="z", started=0.5, backend="spyre"), tmp_path) is None
