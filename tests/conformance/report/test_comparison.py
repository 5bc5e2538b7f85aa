"""Two runs side by side."""

from __future__ import annotations

from typing import Any

from conformance.cases import Case, Direction, ShapeMode
from conformance.outcomes import Agreement, Change, Outcome
from conformance.records import Manifest, Record
from conformance.report import comparison
from conformance.report.summary import compare
from conformance.report.table import render


def record(subject: str, outcome: Outcome = Outcome.PASS, backend: str = "l", **fields: Any) -> Record:
    case = Case("op", subject, "float16", ShapeMode.STATIC, Direction.FORWARD)
    return Record.of(case, 0, suite="ops", backend=backend, outcome=outcome, **fields)


LEFT = [
    record("same"),
    record("worse"),
    record("better", Outcome.ERROR, fingerprint="E:x@run:better"),
    record("both", Outcome.ERROR, fingerprint="E:x@run:both"),
    record("other", Outcome.ERROR, fingerprint="E:x@run:other"),
    record("gone"),
    record("changed", digest="1"),
    record("mute", Outcome.SKIPPED),
]
RIGHT = [
    record("same"),
    record("worse", Outcome.WRONG, fingerprint="wrong:values@compare:worse"),
    record("better"),
    record("both", Outcome.ERROR, fingerprint="E:x@run:both"),
    record("other", Outcome.CRASH, fingerprint="crash:SIGSEGV@run:other"),
    record("new"),
    record("changed", Outcome.ERROR, digest="2"),
    record("mute"),
]


def verdicts(kind: comparison.Verdicts) -> dict[str, str]:
    return {pair.subject: str(comparison.verdict(pair, kind)) for pair in comparison.pairs(LEFT, RIGHT)}


def test_agreement_of_two_backends() -> None:
    assert verdicts(Agreement) == {
        "same": "parity",
        "worse": "only-left",
        "better": "only-right",
        "both": "both-fail-same",
        "other": "both-fail-differently",
        "gone": "unknown",
        "changed": "unknown",
        "mute": "unknown",
        "new": "unknown",
    }


def test_change_of_one_backend() -> None:
    assert verdicts(Change) == {
        "same": "unchanged",
        "worse": "regressed",
        "better": "fixed",
        "both": "unchanged",
        "other": "changed-failure",
        "gone": "gone",
        "changed": "changed-test",
        "mute": "unknown",
        "new": "new",
    }


def test_tables() -> None:
    both = comparison.pairs(LEFT, RIGHT)
    counts = comparison.count_table(both, Agreement)
    assert dict(zip(counts.headers, counts.rows[0], strict=True)) == {
        "dtype": "float16",
        "parity": 1,
        "only-left": 1,
        "only-right": 1,
        "both-fail-same": 1,
        "both-fail-differently": 1,
        "unknown": 4,
        "samples": 9,
    }
    assert comparison.op_table(both, ("l", "r")).rows[-1] == ("all", 5, 0.4, 0.4)
    differences = comparison.difference_table(both, Agreement, ("l", "r"))
    assert [row[:3] for row in differences.rows] == [
        ("only-left", "pass", "wrong: wrong:values"),
        ("only-right", "error: E:x", "pass"),
        ("both-fail-differently", "error: E:x", "crash: crash:SIGSEGV"),
    ]
    assert comparison.difference_table(both, Agreement, ("l", "r"), limit=1).notes == ["2 more; --all lists them."]
    assert set(comparison.unknown_notes(both)) == {
        "1 samples not compared: only in the left run",
        "1 samples not compared: only in the right run",
        "1 samples not compared: skipped, or infra, on one side",
        "1 samples not compared: the inputs or weights differ (another torch, transformers or seed)",
    }


def test_which_comparison_is_made() -> None:
    left = Manifest(run="a", started=0.0, backend="spyre", versions={"torch": "2.13.0"})
    right = Manifest(run="b", started=1.0, backend="eager", versions={"torch": "2.14.0"})
    assert "only-left" in render(compare((left, LEFT), (right, RIGHT)))
    right.backend = "spyre"
    text = render(compare((left, LEFT), (right, RIGHT)))
    assert "regressed" in text
    assert "torch 2.14.0" in text
