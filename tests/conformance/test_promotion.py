"""A promoted file makes its run expected, changes nothing else, and waves nothing through that needs an issue."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import expectations, promotion
from conformance.cases import Case
from conformance.outcomes import Outcome, Owner
from conformance.records import Record

TODAY = datetime.date(2026, 11, 30)
TORCH = "2.13.0"
URL = "https://example.org/issues/1"


def record(sample: str, outcome: Outcome = Outcome.PASS, cause: str = "", **fields: object) -> Record:
    case, index = Case.parse(sample)
    fingerprint = f"{cause}@lower:{case.subject}" if cause else ""
    return Record.of(case, index or 0, suite="ops", backend="b", outcome=outcome, fingerprint=fingerprint, **fields)


def op(subject: str, dtype: str = "int64", mode: str = "static", direction: str = "fwd", index: int = 0) -> str:
    return f"op:{subject}:{dtype}:{mode}:{direction}:samples#{index}"


def promote(tmp_path: Path, records: list[Record], text: str = "", **options: object) -> promotion.Promotion:
    path = tmp_path / "b.toml"
    if text:
        path.write_text(text)
    made = promotion.promote(records, path, TORCH, today=TODAY, **options)
    made.write()
    return made


FILE = """# What this backend cannot do.

# --- sorting ---

[[expect]]
case        = "op:sort:int64:*"   # no hardware for it
outcome     = "unsupported"
fingerprint = "E:no sort"
issue       = "https://example.org/issues/7"

# topk is next
[[expect]]
case = [
    "op:topk:int64:*",
    "op:topk:int32:*",  # two of them
]
outcome = "unsupported"
fingerprint = "E:no topk"
reason = "planned"

# --- the rest ---
"""


def test_nothing_to_do_changes_nothing(tmp_path: Path) -> None:
    records = [
        record(op("sort"), Outcome.UNSUPPORTED, "E:no sort"),
        record(op("topk"), Outcome.UNSUPPORTED, "E:no topk"),
    ]
    made = promote(tmp_path, records, FILE)
    assert not made.changed
    assert made.text == FILE
    assert made[2:7] == ([], [], [], [], [])


def test_adds_one_entry_for_one_cause(tmp_path: Path) -> None:
    records = [
        record(op("a"), Outcome.UNSUPPORTED, "E:x", owner=Owner.BACKEND),
        record(op("b"), Outcome.UNSUPPORTED, "E:x", owner=Owner.BACKEND),
        record(op("b", "float16")),
        record(op("c"), Outcome.ERROR, "F:y", owner=Owner.UNDETERMINED),
    ]
    made = promote(tmp_path, records, FILE, reason="because")
    assert (
        made.text
        == FILE
        + """
[[expect]]
case = "op:c:int64:*"
outcome = "error"
fingerprint = "F:y@lower:c"
reason = "because"

[[expect]]
case = [
    "op:a:int64:*",
    "op:b:int64:*",
]
outcome = "unsupported"
fingerprint = "E:x@lower:*"
reason = "because"
owner = "backend"
"""
    )
    assert made.added == ["error (F:y): 1 samples", "unsupported (E:x): 2 samples"]


def test_a_new_file(tmp_path: Path) -> None:
    made = promote(tmp_path / "new", [record(op("a"), Outcome.CRASH, "crash:SIGSEGV")], issue=URL, torch="<2.14")
    assert (tmp_path / "new" / "b.toml").read_text() == made.text
    assert (
        made.text
        == """[[expect]]
case = "op:a:int64:*"
outcome = "crash"
fingerprint = "crash:SIGSEGV@lower:a"
torch = "<2.14"
issue = "https://example.org/issues/1"
"""
    )


def test_drops_what_passes_and_keeps_the_comments_of_others(tmp_path: Path) -> None:
    made = promote(tmp_path, [record(op("sort")), record(op("topk"), Outcome.UNSUPPORTED, "E:no topk")], FILE)
    head, _, tail = FILE.partition("[[expect]]")
    assert made.text == head + "# topk is next" + tail.partition("# topk is next")[2]
    assert made.dropped == [f"{tmp_path}/b.toml:5 op:sort:int64:*: none of its 1 samples in the run fails so"]


def test_narrows_what_passes_in_part_in_place(tmp_path: Path) -> None:
    records = [record(op("sort"), Outcome.UNSUPPORTED, "E:no sort"), record(op("sort", mode="dynamic"))]
    made = promote(tmp_path, records, FILE)
    assert made.text == FILE.replace("op:sort:int64:*", "op:sort:int64:static:*")
    assert made.narrowed == [f"{tmp_path}/b.toml:5 op:sort:int64:*: 1 of its 2 samples pass"]


MANY = """[[expect]]
case = [
    "op:a:int64:static:*",
    "op:b:int64:static:fwd:samples",
    "op:c:int64:static:fwd:samples",
    "op:d:int64:static:fwd:samples",
    "op:e:int64:static:fwd:samples",
    "op:f:int64:static:fwd:samples",
    "op:g:int64:static:fwd:samples",  # the last
]
outcome = "unsupported"
fingerprint = "E:x"
"""


def test_narrowing_leaves_globs_that_nothing_is_known_against(tmp_path: Path) -> None:
    fails = Outcome.UNSUPPORTED, "E:x"
    records = [
        *(record(op(subject), *fails) for subject in "abcdef"),
        record(op("b", index=1)),  # passes beside a failure
        record(op("c", index=1), *fails),
        record(op("other")),
    ]
    made = promote(tmp_path, records, MANY)
    assert made.text == MANY.replace('"op:b:int64:static:fwd:samples"', '"op:b:int64:static:fwd:samples#0"')
    passed = [record(op("f"), Outcome.PASS), record(op("g"), *fails)]
    made = promote(tmp_path, passed, MANY)
    assert made.text == MANY.replace('    "op:f:int64:static:fwd:samples",\n', "")
    assert made.narrowed
    assert not made.dropped


def test_a_known_cause_in_a_new_place_extends_its_entry(tmp_path: Path) -> None:
    records = [
        record(op("sort"), Outcome.UNSUPPORTED, "E:no sort"),
        record(op("msort"), Outcome.UNSUPPORTED, "E:no sort"),
    ]
    made = promote(tmp_path, records, FILE)
    assert made.added == []
    assert made.extended == [f"{tmp_path}/b.toml:5 op:sort:int64:*: 1 samples more"]
    assert '"op:msort:int64:*"' in made.text
    assert made.text.count("[[expect]]") == 2
    assert "# no hardware for it" in made.text


def test_another_failure_replaces_the_entry(tmp_path: Path) -> None:
    made = promote(tmp_path, [record(op("sort"), Outcome.ERROR, "F:new")], FILE)
    assert made.dropped
    assert made.added == ["error (F:new): 1 samples"]
    assert "E:no sort" not in made.text


@pytest.mark.parametrize(
    ("outcome", "options", "complaint"),
    [
        (Outcome.WRONG, {}, "wrong needs --issue URL (E:x@lower:a)"),
        (Outcome.CRASH, {}, "crash needs --issue URL (E:x@lower:a)"),
        (Outcome.INFRA, {}, "infra is never expected: disk full"),
        (Outcome.INFRA, {"issue": URL}, "infra is never expected: disk full"),
    ],
)
def test_refusals(tmp_path: Path, outcome: Outcome, options: dict[str, str], complaint: str) -> None:
    made = promote(tmp_path, [record(op("a"), outcome, "E:x", message="disk full")], FILE, **options)
    assert made.refused == [f"{op('a')}: {complaint}"]
    assert not made.changed


def test_an_expired_entry_is_not_renewed(tmp_path: Path) -> None:
    text = FILE.replace('issues/7"', 'issues/7"\nexpires = 2026-01-01', 1)
    made = promote(tmp_path, [record(op("sort"), Outcome.UNSUPPORTED, "E:no sort")], text)
    assert not made.changed
    assert "set a later `expires`" in made.refused[0]


def test_a_flaky_entry_stays(tmp_path: Path) -> None:
    text = '[[expect]]\ncase = "op:a:*"\noutcome = "flaky"\nrate = 0.5\nexpires = 2027-01-01\n'
    assert not promote(tmp_path, [record(op("a"))], text).changed


def test_entries_of_other_versions_stay(tmp_path: Path) -> None:
    text = FILE.replace('reason = "planned"', 'reason = "planned"\ntorch = "<2.13"')
    made = promote(tmp_path, [record(op("topk"))], text)
    assert not made.changed


def test_a_bad_issue_and_an_inline_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(expectations.ExpectationError, match="--issue '12' is not a URL"):
        promote(tmp_path, [], issue="12")
    inline = 'expect = [{case = "op:sort:*", outcome = "error"}]'
    with pytest.raises(expectations.ExpectationError, match="cannot be edited: write each entry as a table"):
        promote(tmp_path, [record(op("sort"))], inline)


@pytest.mark.parametrize(
    ("fingerprints", "expected"),
    [
        (["E:x@lower:a"], "E:x@lower:a"),
        (["E:x@lower:a", "E:x@lower:b"], "E:x@lower:*"),
        (["E:x@lower:a", "E:x@run:a"], "E:x"),
        (["", ""], ""),
    ],
)
def test_pins(fingerprints: list[str], expected: str) -> None:
    assert promotion.pin(fingerprints) == expected
    assert all(expectations.pins(expected, each) for each in fingerprints)


SAMPLES = st.builds(
    op,
    st.sampled_from(["sort", "topk", "sum", "a", "b", "c"]),
    st.sampled_from(["int64", "float16"]),
    st.sampled_from(["static", "dynamic"]),
    st.just("fwd"),
    st.integers(0, 2),
)
RESULTS = st.sampled_from(
    [
        (Outcome.PASS, ""),
        (Outcome.PASS, ""),
        (Outcome.UNSUPPORTED, "E:no sort"),
        (Outcome.UNSUPPORTED, "E:no topk"),
        (Outcome.ERROR, "F:y [N] *"),
        (Outcome.WRONG, "wrong:values"),
        (Outcome.ERROR, ""),
    ]
)


@settings(max_examples=60, deadline=None)
@given(results=st.dictionaries(SAMPLES, RESULTS, max_size=30), again=st.dictionaries(SAMPLES, RESULTS, max_size=30))
def test_after_promotion_the_run_is_as_expected(
    tmp_path_factory: pytest.TempPathFactory,
    results: dict[str, tuple[Outcome, str]],
    again: dict[str, tuple[Outcome, str]],
) -> None:
    tmp_path = tmp_path_factory.mktemp("p")
    text = FILE
    for each in (results, again):  # the second run finds the file that the first has left
        records = [record(sample, *result) for sample, result in each.items()]
        made = promote(tmp_path, records, text, issue=URL)
        assert made.refused == []
        loaded = expectations.load(made.path)
        assert [v.message for r in records if not (v := loaded.match(r, TORCH, TODAY)).ok] == []
        assert "# --- the rest ---" in made.text
        assert not promote(tmp_path, records, made.text, issue=URL).changed
        text = made.text
