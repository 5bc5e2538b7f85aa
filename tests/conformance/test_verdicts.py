"""What the records of a case come to for pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import verdicts
from conformance.cases import Case, Direction, ShapeMode
from conformance.expectations import load
from conformance.outcomes import Outcome, Stage
from conformance.records import Record
from conformance.session import Judged
from conformance.verdicts import Verdict

CASE = Case("op", "sort", "int64", ShapeMode.STATIC, Direction.FORWARD)

EXPECTATIONS = """
[[expect]]
case = "op:sort:int64:*#1"
outcome = "unsupported"
issue = "https://x.test/1"
"""


@pytest.fixture
def judge(tmp_path: Path):
    path = tmp_path / "x.toml"
    path.write_text(EXPECTATIONS)
    expectations = load(path)

    def judged(*outcomes: Outcome) -> list[Judged]:
        records = [
            Record.of(CASE, index, suite="ops", backend="x", outcome=outcome, stage=None, fingerprint=f"f{index}")
            for index, outcome in enumerate(outcomes)
        ]
        return [Judged(record, expectations.match(record, "2.13.0")) for record in records]

    return judged


P, U, W, S, I = Outcome.PASS, Outcome.UNSUPPORTED, Outcome.WRONG, Outcome.SKIPPED, Outcome.INFRA  # noqa: E741


@pytest.mark.parametrize(
    ("outcomes", "verdict", "text"),
    [
        ((), Verdict.SKIP, "the suite has no sample for it"),
        ((P,), Verdict.PASS, ""),
        ((P, U, P), Verdict.XFAIL, "1 of 3 samples: 1 unsupported (https://x.test/1)"),
        ((P, P), Verdict.FAIL, "passes, but"),
        ((P, W), Verdict.FAIL, "expects `unsupported`"),
        ((U, U), Verdict.FAIL, "if it is known, add to"),
        ((S, S), Verdict.SKIP, "no reason given"),
        ((P, S), Verdict.PASS, ""),
        ((I,), Verdict.FAIL, "our own environment failed"),
    ],
)
def test_verdicts(judge, outcomes, verdict, text):
    found, said = verdicts.of_case(judge(*outcomes), shown=5)
    assert found is verdict
    assert text in said
    assert bool(said) == bool(text)


def test_failures_say_how_to_reproduce_them(judge):
    _, text = verdicts.of_case(judge(W), shown=5, flags="--backend x")
    assert text.splitlines()[0] == f"{CASE}#0: wrong"
    assert f"  reproduce: conformance repro '{CASE}#0' --backend x" in text.splitlines()


@pytest.mark.parametrize("outcome", [P, I])
def test_what_cannot_be_reproduced_is_not_offered(judge, outcome):
    _, text = verdicts.of_case(judge(W, outcome), shown=5, flags="--backend x")
    assert text.count("reproduce:") == 1


def test_only_the_first_failures_are_told_in_full(judge):
    _, text = verdicts.of_case(judge(*[W] * 8), shown=3)
    assert text.count("[[expect]]") == 3
    assert all(f"{CASE}#{index}: wrong" in text for index in range(8))


def test_counts(judge):
    assert verdicts.counts(judge(P, U, W)) == {"pass": 1, "unsupported": 1, "wrong": 1, "unexpected": 1}


def test_properties_are_plain_values_of_what_is_known(judge):
    (item,) = judge(U)
    item.record.stage, item.record.kernels, item.record.compile_s = Stage.LOWER, 0, 1.5
    assert dict(verdicts.properties([item])) == {
        "#0.outcome": "unsupported",
        "#0.stage": "lower",
        "#0.fingerprint": "f0",
        "#0.kernels": 0,
        "#0.seconds": 1.5,
    }
