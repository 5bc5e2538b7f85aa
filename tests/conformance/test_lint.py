"""Every fault that an expectations file may have is named, with the place, and a good file has none."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from conformance import lint
from conformance.cases import Case
from conformance.lint import Fault
from conformance.outcomes import Outcome
from conformance.records import Record

TODAY = datetime.date(2026, 11, 30)
CASES = ["op:sort:int64:static:fwd:samples", "op:sort:int64:dynamic:fwd:samples", "op:sum:int64:static:fwd:samples"]


def entry(case: str = "op:sort:*", **keys: str) -> str:
    fields = {"case": f'"{case}"', "outcome": '"error"', "reason": '"r"', **keys}
    return "[[expect]]\n" + "".join(f"{key} = {value}\n" for key, value in fields.items() if value) + "\n"


def faults(tmp_path: Path, text: str, **options: object) -> list[tuple[Fault, int]]:
    path = tmp_path / "b.toml"
    path.write_text(text)
    return [(c.fault, c.entry.number) for c in lint.lint(path, today=TODAY, **{"cases": CASES, **options})]


GOOD = [
    entry(),
    entry(expires="2026-11-30"),
    entry(reason="", issue='"https://x"'),
    entry("op:sort:*") + entry("op:sum:*"),
    entry(fingerprint='"A"') + entry(fingerprint='"B"'),
    entry(fingerprint='"A@run:*"') + entry(fingerprint='"A@lower:*"'),
    entry(outcome='"crash"') + entry(),
    entry(torch='"<2.14"') + entry(torch='">=2.14"'),
    entry("*:static:*#0") + entry("*:static:*#1"),
    entry("op:sort:int64:static:fwd:samples#3"),
]


@pytest.mark.parametrize("text", GOOD)
def test_a_good_file_has_no_fault(tmp_path: Path, text: str) -> None:
    assert faults(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (entry("op:gone:*"), [(Fault.DEAD, 0)]),
        (entry("op:sort:int64:static:bwd:samples#3"), [(Fault.DEAD, 0)]),
        (entry(expires="2026-11-29"), [(Fault.EXPIRED, 0)]),
        (entry(reason=""), [(Fault.REASONLESS, 0)]),
        (entry() + entry(), [(Fault.DUPLICATE, 1)]),
        (entry() + entry("op:sort:int64:*"), [(Fault.OVERLAPPING, 1)]),
        (entry("op:sort:int64:*") + entry("op:*:static:*"), [(Fault.OVERLAPPING, 1)]),
        (entry("op:*:static:*") + entry("op:sort:int64:*"), [(Fault.OVERLAPPING, 1)]),
        (entry(fingerprint='"A:*"') + entry(fingerprint='"A:x@run:*"'), [(Fault.OVERLAPPING, 1)]),
        (entry(fingerprint='"A:x"') + entry(fingerprint='"A:x@run:op"'), [(Fault.OVERLAPPING, 1)]),
        (entry(fingerprint='"A"') + entry(), [(Fault.OVERLAPPING, 1)]),
        (entry(torch='"<=2.14"') + entry(torch='">=2.14"'), [(Fault.OVERLAPPING, 1)]),
        (entry(torch='">2.13,<2.14"') + entry(torch='">2.12"'), [(Fault.OVERLAPPING, 1)]),
        (
            entry(outcome='"flaky"', rate="0.5", expires="2027-01-01") + entry(outcome='"crash"'),
            [(Fault.OVERLAPPING, 1)],
        ),
        (entry("op:gone:*", reason="") + entry(), [(Fault.DEAD, 0), (Fault.REASONLESS, 0)]),
    ],
)
def test_faults(tmp_path: Path, text: str, expected: list[tuple[Fault, int]]) -> None:
    assert faults(tmp_path, text) == expected


def test_without_cases_nothing_is_dead(tmp_path: Path) -> None:
    assert faults(tmp_path, entry("op:gone:*"), cases=None) == []


def test_with_samples_their_numbers_are_judged(tmp_path: Path) -> None:
    samples = [f"{CASES[0]}#0", f"{CASES[0]}#1"]
    assert faults(tmp_path, entry("op:sort:*#1"), cases=samples) == []
    assert faults(tmp_path, entry("op:sort:*#2"), cases=samples) == [(Fault.DEAD, 0)]
    assert faults(tmp_path, entry("op:sort:*"), cases=samples) == []


@pytest.mark.parametrize(
    ("outcomes", "doubted"),
    [
        ([Outcome.PASS] * 10, True),
        ([Outcome.PASS] * 3, False),
        ([Outcome.PASS] * 10 + [Outcome.ERROR], False),
        ([Outcome.SKIPPED] * 10, False),
    ],
)
def test_a_flaky_entry_that_never_fails(tmp_path: Path, outcomes: list[Outcome], doubted: bool) -> None:
    case, _ = Case.parse(CASES[0])
    records = [Record.of(case, n, suite="s", backend="b", outcome=o) for n, o in enumerate(outcomes)]
    text = entry(outcome='"flaky"', rate="0.5", expires="2027-01-01")
    assert faults(tmp_path, text, records=records) == ([(Fault.STEADY, 0)] if doubted else [])


def test_complaints_say_where(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(entry() + entry("op:sort:int64:*") + entry("op:gone:*"))
    seen = [str(complaint) for complaint in lint.lint(path, cases=CASES, today=TODAY)]
    assert seen == [
        f"{path}:6: overlapping: with {path}:1, for one outcome and cause: "
        "`op:sort:int64:*` and `op:sort:*` share samples",
        f"{path}:11: dead: `op:gone:*` matches none of 3 cases",
    ]


def test_a_thousand_entries_take_moments(tmp_path: Path) -> None:
    names = [f"op:op{n}:int64:static:fwd:samples" for n in range(1000)]
    text = "".join(entry(f"op:op{n}:int64:*") for n in range(1000))
    assert faults(tmp_path, text, cases=names) == []
