"""The summary of a run holds its tables, and says first what makes its numbers doubtful."""

from __future__ import annotations

from conformance.cases import Case, Direction, ShapeMode
from conformance.outcomes import Outcome, Support
from conformance.records import Accounting, Manifest, Record
from conformance.report import summary
from conformance.report.table import Format, render

CASE = Case("op", "add", "float16", ShapeMode.STATIC, Direction.FORWARD)
RECORDS = [
    Record.of(CASE, 0, suite="ops", backend="spyre", outcome=Outcome.PASS, support=Support.NATIVE, cpu_s=0.1),
    Record.of(CASE, 1, suite="ops", backend="spyre", outcome=Outcome.ERROR, fingerprint="E:x@run:add"),
]
MANIFEST = Manifest(
    run="r1",
    started=0.0,
    backend="spyre",
    versions={"torch": "2.13.0"},
    wall_s=12.3,
    cpu_s=20.0,
    accounting=Accounting(
        cases_collected=3, cases_run=1, cases_skipped={"no dtype": 1}, cases_lost=["x"], excluded={"random": 4}
    ),
)


def test_heading() -> None:
    assert summary.heading(MANIFEST, ["1 cases lost: x"]) == [
        "run r1: spyre (torch 2.13.0)",
        "12 s wall, 20 s CPU",
        "cases: 3 collected = 1 run + 1 skipped + 1 lost; samples: 0 run + 0 skipped + 0 lost",
        "skipped: 1 cases (no dtype)",
        "excluded by the suite: 4 cases (random)",
        "the run is not complete",
        "PROBLEM: 1 cases lost: x",
    ]


def test_tables() -> None:
    for to in Format:
        text = render(summary.summary(MANIFEST, RECORDS, by=["lane"], everything=True), to)
        for title in (
            "Samples by dtype",
            "Samples by lane",
            "Support: ops by dtype",
            "Support: op × dtype",
            "Cost of a",
        ):
            assert title in text
        assert "E:x@run" in text


def test_the_rest_is_what_pytest_does_not_show() -> None:
    text = render(summary.summary(MANIFEST, RECORDS, rest=True))
    assert "Failures by cause" in text
    for title in ("run r1", "Samples by dtype", "Support: ops by dtype"):
        assert title not in text


def test_an_empty_run_has_a_heading_alone() -> None:
    assert render(summary.summary(Manifest(run="r", started=0.0), [])).splitlines()[0] == "run r: unknown backend"
