"""The two comparisons are total, mirror themselves, and say what each word means."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import fingerprints
from conformance.judgement.findings import Check
from conformance.outcomes import (
    FAILED,
    RAN,
    STANDINGS,
    Agreement,
    Change,
    Outcome,
    Result,
    Stage,
    Standing,
    change,
    compare,
    is_mute,
    is_undecided,
    standing,
)

RESULTS = st.none() | st.builds(
    Result,
    st.sampled_from(Outcome),
    st.sampled_from(["", "A", "B"]),
    st.sampled_from(["", "d1", "d2"]),
    st.sampled_from(Stage) | st.none(),
)
MIRROR_AGREEMENT = {Agreement.ONLY_LEFT: Agreement.ONLY_RIGHT, Agreement.ONLY_RIGHT: Agreement.ONLY_LEFT}
MIRROR_CHANGE = {
    Change.REGRESSED: Change.FIXED,
    Change.FIXED: Change.REGRESSED,
    Change.NEW: Change.GONE,
    Change.GONE: Change.NEW,
}
PASS = Result(Outcome.PASS)


def failing(outcome: Outcome = Outcome.ERROR, fingerprint: str = "A", digest: str = "") -> Result:
    return Result(outcome, fingerprint, digest)


def test_every_outcome_has_a_standing() -> None:
    assert set(STANDINGS) == set(Outcome)
    assert {o for o, s in STANDINGS.items() if s is Standing.FAILS} == FAILED - {Outcome.INFRA}
    assert {o for o, s in STANDINGS.items() if s is Standing.PASSES} <= RAN


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("stage", [*Stage, None])
def test_our_own_want_of_time_or_memory_is_no_failure_of_the_backend(outcome: Outcome, stage: Stage | None) -> None:
    undecided = outcome in (Outcome.TIMEOUT, Outcome.OOM) and stage in (Stage.BUILD, Stage.REFERENCE, Stage.COMPARE)
    result = Result(outcome, stage=stage)
    assert is_undecided(result) is undecided
    assert is_mute(result) is (undecided or outcome in (Outcome.SKIPPED, Outcome.INFRA))
    assert standing(result) is (Standing.MUTE if undecided else STANDINGS[outcome])


@pytest.mark.parametrize("check", list(Check))
def test_a_bound_that_could_not_tell_is_no_failure_of_the_backend(check: Check) -> None:
    fingerprint = fingerprints.of_finding(check, "values", op="mm")
    result = Result(Outcome.WRONG, fingerprint, stage=Stage.COMPARE)
    assert is_undecided(result) is is_mute(result) is (check is Check.LOOSE)
    assert compare(PASS, result) is (Agreement.UNKNOWN if check is Check.LOOSE else Agreement.ONLY_LEFT)


def test_all_pairs_are_defined() -> None:
    every = [None, *(Result(o, f, d) for o in Outcome for f in ("", "A") for d in ("", "d1", "d2"))]
    for left, right in itertools.product(every, every):
        assert isinstance(compare(left, right), Agreement)
        assert isinstance(change(left, right), Change)


@given(RESULTS, RESULTS)
def test_compare_mirrors(left: Result | None, right: Result | None) -> None:
    seen = compare(left, right)
    assert compare(right, left) == MIRROR_AGREEMENT.get(seen, seen)


@given(RESULTS, RESULTS)
def test_change_mirrors(before: Result | None, after: Result | None) -> None:
    seen = change(before, after)
    assert change(after, before) == MIRROR_CHANGE.get(seen, seen)


@given(RESULTS)
def test_a_result_agrees_with_itself(result: Result | None) -> None:
    says_something = standing(result) in (Standing.PASSES, Standing.FAILS)
    assert compare(result, result) in (
        {Agreement.PARITY, Agreement.BOTH_FAIL_SAME} if says_something else {Agreement.UNKNOWN}
    )
    assert change(result, result) == (Change.UNCHANGED if says_something else Change.UNKNOWN)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (PASS, PASS, Agreement.PARITY),
        (PASS, failing(), Agreement.ONLY_LEFT),
        (failing(), PASS, Agreement.ONLY_RIGHT),
        (failing(), failing(), Agreement.BOTH_FAIL_SAME),
        (failing(), failing(fingerprint="B"), Agreement.BOTH_FAIL_DIFFERENTLY),
        (failing(Outcome.ERROR), failing(Outcome.UNSUPPORTED), Agreement.BOTH_FAIL_DIFFERENTLY),
        (PASS, None, Agreement.UNKNOWN),
        (PASS, Result(Outcome.INFRA), Agreement.UNKNOWN),
        (Result(Outcome.SKIPPED), failing(), Agreement.UNKNOWN),
        (Result(Outcome.PASS, "", "d1"), Result(Outcome.PASS, "", "d2"), Agreement.UNKNOWN),
        (Result(Outcome.PASS, "", "d1"), Result(Outcome.PASS, "", ""), Agreement.PARITY),
    ],
)
def test_agreements(left: Result | None, right: Result | None, expected: Agreement) -> None:
    assert compare(left, right) is expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (PASS, PASS, Change.UNCHANGED),
        (PASS, failing(), Change.REGRESSED),
        (failing(), PASS, Change.FIXED),
        (failing(), failing(), Change.UNCHANGED),
        (failing(), failing(fingerprint="B"), Change.CHANGED_FAILURE),
        (failing(Outcome.UNSUPPORTED), failing(Outcome.CRASH), Change.CHANGED_FAILURE),
        (None, failing(), Change.NEW),
        (failing(), None, Change.GONE),
        (None, None, Change.UNKNOWN),
        (failing(digest="d1"), Result(Outcome.PASS, "", "d2"), Change.CHANGED_TEST),
        (PASS, Result(Outcome.INFRA), Change.UNKNOWN),
    ],
)
def test_changes(before: Result | None, after: Result | None, expected: Change) -> None:
    assert change(before, after) is expected
