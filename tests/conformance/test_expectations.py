"""Expectations: what a file may say, what a record is in its light, and the edit that the user is told to make."""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import expectations
from conformance.cases import Case
from conformance.expectations import ExpectationError, Kind
from conformance.outcomes import Outcome
from conformance.records import Record

TODAY = datetime.date(2026, 11, 30)
TORCH = "2.13.0+cpu"
NO_SORT = "NotImplementedError:no int64 sort@lower:sort"


def record(
    sample: str = "op:sort:int64:static:fwd:samples#0",
    outcome: Outcome = Outcome.UNSUPPORTED,
    fingerprint: str = NO_SORT,
) -> Record:
    case, index = Case.parse(sample)
    return Record.of(case, index or 0, suite="ops", backend="spyre", outcome=outcome, fingerprint=fingerprint)


def load(tmp_path: Path, text: str) -> expectations.Expectations:
    path = tmp_path / "spyre.toml"
    path.write_text(text)
    return expectations.load(path)


ENTRY = """
[[expect]]
case = "op:sort:int64:*"
outcome = "unsupported"
"""


@pytest.mark.parametrize(
    ("extra", "result", "kind"),
    [
        ("", record(), Kind.EXPECTED_FAILURE),
        ("", record(outcome=Outcome.PASS, fingerprint=""), Kind.UNEXPECTED_PASS),
        ("", record(outcome=Outcome.ERROR), Kind.DIFFERENT_FAILURE),
        ("", record(outcome=Outcome.SKIPPED), Kind.SKIPPED),
        ("", record(outcome=Outcome.INFRA), Kind.INFRA),
        ("", record("op:sort:int32:static:fwd:samples#0"), Kind.UNEXPECTED_FAILURE),
        ("", record("op:sort:int32:static:fwd:samples#0", Outcome.PASS), Kind.EXPECTED_PASS),
        ("", record("op:sort:int32:static:fwd:samples#0", Outcome.CRASH), Kind.UNEXPECTED_FAILURE),
        (f'fingerprint = "{NO_SORT}"', record(), Kind.EXPECTED_FAILURE),
        ('fingerprint = "NotImplementedError:no int64 sort"', record(), Kind.EXPECTED_FAILURE),
        ('fingerprint = "NotImplementedError:*"', record(), Kind.EXPECTED_FAILURE),
        ('fingerprint = "*@lower:*"', record(), Kind.EXPECTED_FAILURE),
        ('fingerprint = "NotImplementedError:no int64"', record(), Kind.DIFFERENT_FAILURE),
        ('fingerprint = "NotImplementedError:no int64 sort@run:sort"', record(), Kind.DIFFERENT_FAILURE),
        ('torch = ">=2.13,<2.15"', record(), Kind.EXPECTED_FAILURE),
        ('torch = "<2.13"', record(), Kind.UNEXPECTED_FAILURE),
        ('torch = "<2.13"', record(outcome=Outcome.PASS), Kind.EXPECTED_PASS),
        ('torch = "==2.13.0"', record(), Kind.EXPECTED_FAILURE),
        ("expires = 2026-11-30", record(), Kind.EXPECTED_FAILURE),
        ("expires = 2026-11-29", record(), Kind.EXPIRED),
        ("expires = 2026-11-29", record(outcome=Outcome.PASS), Kind.UNEXPECTED_PASS),
    ],
)
def test_verdicts(tmp_path: Path, extra: str, result: Record, kind: Kind) -> None:
    assert load(tmp_path, ENTRY + extra).match(result, TORCH, TODAY).kind is kind


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (record(outcome=Outcome.PASS, fingerprint=""), Kind.FLAKY_OK),
        (record(outcome=Outcome.WRONG, fingerprint="wrong:values@compare:sort"), Kind.FLAKY_OK),
        (record(outcome=Outcome.WRONG, fingerprint="wrong:shape@compare:sort"), Kind.DIFFERENT_FAILURE),
        (record(outcome=Outcome.INFRA), Kind.INFRA),
    ],
)
def test_flaky(tmp_path: Path, result: Record, kind: Kind) -> None:
    text = ENTRY.replace("unsupported", "flaky") + 'rate = 0.1\nexpires = 2027-01-01\nfingerprint = "wrong:values"'
    assert load(tmp_path, text).match(result, TORCH, TODAY).kind is kind


def test_an_expired_flaky_entry_excuses_no_failure(tmp_path: Path) -> None:
    text = '[[expect]]\ncase = "op:sort:*"\noutcome = "flaky"\nrate = 0.1\nexpires = 2026-01-01'
    assert load(tmp_path, text).match(record(), TORCH, TODAY).kind is Kind.EXPIRED


@pytest.mark.parametrize(
    ("pattern", "sample", "covered"),
    [
        ("op:sort:*", "op:sort:int64:static:fwd:samples#0", True),
        ("op:sort:*#3", "op:sort:int64:static:fwd:samples#3", True),
        ("op:sort:*#3", "op:sort:int64:static:fwd:samples#13", False),
        ("op:sort:*#1*", "op:sort:int64:static:fwd:samples#13", True),
        ("op:*:int64:*", "op:linalg.norm:int64:static:fwd:samples#13", True),
        ("op:sort:int64:static:fwd:samples", "op:sort:int64:static:fwd:samples#13", True),
        ("op:sort:int64:static:fwd:samples#13", "op:sort:int64:static:fwd:samples#13", True),
        ("op:sort:int64:static:fwd:samples#1", "op:sort:int64:static:fwd:samples#13", False),
        ("op:sor*", "op:sort:int64:static:fwd:samples#13", True),
        ("op:sort.*", "op:sort:int64:static:fwd:samples#13", False),
    ],
)
def test_globs_over_cases_and_samples(tmp_path: Path, pattern: str, sample: str, covered: bool) -> None:
    loaded = load(tmp_path, f'[[expect]]\ncase = ["op:other:*", "{pattern}"]\noutcome = "error"')
    assert loaded.entries[0].covers(sample) is covered
    assert bool(loaded.covering(sample, TORCH)) is covered


FIELDS = st.sampled_from(["op", "sort", "sum", "int64", "int32", "*", "s*", "?um"])
PATTERNS = st.builds(
    lambda parts, tail: ":".join(parts) + tail,
    st.lists(FIELDS, min_size=6, max_size=6),
    st.sampled_from(["", "#1", "#*", "#1?"]),
)


@given(
    st.lists(st.lists(PATTERNS, min_size=1, max_size=2), max_size=5),
    st.sampled_from(["sort", "sum"]),
    st.sampled_from(["int64", "int32"]),
    st.integers(0, 12),
)
def test_the_index_finds_what_trying_all_finds(patterns: list[list[str]], op: str, dtype: str, index: int) -> None:
    entries = [
        expectations.Entry(expectations.Expectation(case=each, outcome="error"), n, None, Path("x.toml"))
        for n, each in enumerate(patterns)
    ]
    loaded = expectations.Expectations(Path("x.toml"), entries)
    sample = f"op:{op}:{dtype}:int64:sum:sort#{index}"
    assert loaded.covering(sample, TORCH) == [entry for entry in entries if entry.covers(sample)]


def test_a_second_entry_may_declare_a_second_cause(tmp_path: Path) -> None:
    text = ENTRY + 'fingerprint = "A:*"\n' + ENTRY + f'fingerprint = "{NO_SORT}"\nissue = "https://x/2"\n'
    verdict = load(tmp_path, text).match(record(), TORCH, TODAY)
    assert verdict.kind is Kind.EXPECTED_FAILURE
    assert verdict.label == "https://x/2"
    assert verdict.entry is not None
    assert verdict.entry.line == 7


@pytest.mark.parametrize(
    ("specifier", "version", "expected"),
    [
        ("", "whatever", True),
        (">=2.13,<2.15", "2.14.1", True),
        (">=2.13,<2.15", "2.15.0", False),
        (">=2.15", "2.15.0.dev20261101+cpu", True),  # a nightly leads to its release
        ("<2.15", "2.15.0.dev20261101+cpu", False),
        ("==2.14.*", "2.14.1+cu130", True),
    ],
)
def test_specifiers(specifier: str, version: str, expected: bool) -> None:
    assert expectations.holds(specifier, version) is expected


def test_an_unknown_torch_version_is_said(tmp_path: Path) -> None:
    loaded = load(tmp_path, ENTRY + 'torch = ">=2.13"')
    with pytest.raises(ExpectationError, match="torch version 'main' is not a version"):
        loaded.match(record(), "main", TODAY)


def test_the_edit_for_an_unexpected_failure_makes_it_expected(tmp_path: Path) -> None:
    failure = record(outcome=Outcome.WRONG, fingerprint='wrong:values "quoted" \\ [N] * ?@compare:sort')
    verdict = load(tmp_path, "").match(failure, TORCH, TODAY)
    assert verdict.kind is Kind.UNEXPECTED_FAILURE
    assert not verdict.ok
    intro, _, entry = verdict.edit.partition("\n")
    assert intro == f"if it is known, add to {tmp_path / 'spyre.toml'}:"
    again = load(tmp_path, entry.replace("https://…", "https://example.org/1"))
    assert again.match(failure, TORCH, TODAY).kind is Kind.EXPECTED_FAILURE


def test_messages_name_sample_entry_and_way_out(tmp_path: Path) -> None:
    loaded = load(tmp_path, ENTRY + "expires = 2026-01-01")
    passed = loaded.match(record(outcome=Outcome.PASS), TORCH, TODAY)
    assert "spyre.toml:2 expects `unsupported`" in passed.message
    assert "narrow `case = op:sort:int64:*`" in passed.edit
    expired = loaded.match(record(), TORCH, TODAY)
    assert "expired on 2026-01-01" in expired.message
    assert "spyre.toml:2" in expired.edit
    other = loaded.match(record(outcome=Outcome.ERROR, fingerprint="F"), TORCH, TODAY)
    assert "ends in `error` (F), but" in other.message
    assert 'fingerprint = "F"' in other.edit


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("case = ]", r"spyre.toml: not TOML: .*line 1"),
        ('title = "x"', r"spyre.toml:1: unknown key `title`; entries go under \[\[expect\]\]"),
        ('\n[expect]\ncase = "x"', r"spyre.toml:2: write each entry as a table \[\[expect\]\]"),
        ('[[expect]]\ncase = "op:*"', r"spyre.toml:1: `outcome` is missing"),
        ('[[expect]]\noutcome = "error"', r"spyre.toml:1: `case` is missing"),
        (ENTRY + 'isue = "https://x"', r"spyre.toml:5: unknown key `isue`; did you mean `issue`\?"),
        (ENTRY + "zzz = 1", r"spyre.toml:5: unknown key `zzz`; the keys are case, outcome"),
        (
            ENTRY.replace("unsupported", "failing"),
            r"spyre.toml:4: `outcome = 'failing'` cannot be expected; it is one of",
        ),
        (ENTRY.replace("unsupported", "infra"), r"`outcome = 'infra'` cannot be expected"),
        (ENTRY.replace("unsupported", "pass"), r"`outcome = 'pass'` cannot be expected"),
        (ENTRY + "fingerprint = 3", r"spyre.toml:5: `fingerprint` must be a string, not 3"),
        (ENTRY + 'torch = "2.13"', r"spyre.toml:5: `torch = '2.13'` is not a PEP 440 specifier such as"),
        (ENTRY + 'issue = "123"', r"spyre.toml:5: `issue = '123'` is not a URL"),
        (ENTRY + 'owner = "me"', r"spyre.toml:5: `owner = 'me'` is not one of upstream, backend"),
        (ENTRY + 'expires = "2027-01-01"', r"spyre.toml:5: `expires = '2027-01-01'` must be a date without quotes"),
        (ENTRY + "expires = 2027-01-01T00:00:00", r"spyre.toml:5: `expires = .*must be a date"),
        (ENTRY + "rate = 0.5", r"spyre.toml:5: `rate` belongs to `outcome = 'flaky'` only"),
        (ENTRY.replace("unsupported", "flaky"), r"spyre.toml:2: a flaky entry needs `rate`"),
        (ENTRY.replace("unsupported", "flaky") + "rate = 2.0", r"spyre.toml:5: a flaky entry needs `rate`"),
        (ENTRY.replace("unsupported", "flaky") + "rate = 0.5", r"spyre.toml:2: a flaky entry needs `expires`"),
        (ENTRY.replace('"op:sort:int64:*"', "[]"), r"spyre.toml:3: `case` must be a glob"),
        (ENTRY.replace("op:sort:int64:*", "op:sort"), r"spyre.toml:3: `case = 'op:sort'` can match no id"),
        (ENTRY.replace("op:sort:int64:*", "op:sort:*#"), r"can match no id"),
        (ENTRY + ENTRY + "nope = 1", r"spyre.toml:9: unknown key `nope`"),
    ],
)
def test_bad_files_are_named_by_line_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ExpectationError, match=complaint) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_inline_entries_are_read_and_named_by_number(tmp_path: Path) -> None:
    text = 'expect = [{case = "op:sort:*", outcome = "unsupported"}]'
    loaded = load(tmp_path, text)
    assert loaded.match(record(), TORCH, TODAY).kind is Kind.EXPECTED_FAILURE
    assert loaded.entries[0].where.endswith("spyre.toml, entry 1")


def test_a_missing_file_expects_nothing(tmp_path: Path) -> None:
    loaded = expectations.load(tmp_path / "none.toml")
    assert len(loaded) == 0
    assert loaded.match(record(outcome=Outcome.PASS), TORCH, TODAY).kind is Kind.EXPECTED_PASS


def test_file_names() -> None:
    assert expectations.file_for("d", "spyre") == Path("d/spyre.toml")
    assert expectations.file_for("d", "compile:tvm") == Path("d/compile-tvm.toml")
    assert expectations.file_for("d", "a/b.py:Name") == Path("d/a-b.py-Name.toml")


def test_matching_a_hundred_thousand_cases_takes_less_than_a_second(tmp_path: Path) -> None:
    dtypes = ("float32", "float16", "bfloat16", "int64", "int32", "bool")
    cases = [
        f"op:op_{n}:{dtype}:{mode}:{direction}:samples"
        for n in range(4200)
        for dtype in dtypes
        for mode in ("static", "dynamic")
        for direction in ("fwd", "bwd")
    ][:100_000]
    globs = [f"op:op_{n}:{dtypes[n % 6]}:*" for n in range(700)]
    globs += [f"op:op_{n}*:{dtypes[n % 6]}:dynamic:*" for n in range(200)]
    globs += [f"op:op_{n}:{dtypes[n % 6]}:static:fwd:samples#0" for n in range(75)]
    globs += [f"op:*_{n}7:{dtypes[n % 6]}:*" for n in range(25)]
    text = "".join(
        f'[[expect]]\ncase = "{g}"\noutcome = "error"\nfingerprint = "F:*"\ntorch = ">=2.13"\n' for g in globs
    )
    records = [
        Record.of(Case(*case.split(":")), 0, suite="ops", backend="b", outcome=Outcome.ERROR, fingerprint="F:x@run:op")
        for case in cases
    ]
    spent = []
    for _ in range(3):  # the best of three: the machine may be busy with other tests
        loaded = load(tmp_path, text)
        assert len(loaded) == 1000
        begun = time.process_time()
        kinds = [loaded.match(each, TORCH, TODAY).kind for each in records]
        spent.append(time.process_time() - begun)
        assert len(kinds) == 100_000
        assert set(kinds) == {Kind.EXPECTED_FAILURE, Kind.UNEXPECTED_FAILURE}
    assert min(spent) < 1.0, f"{spent} CPU seconds"


def test_importing_needs_no_torch() -> None:
    body = "import sys, conformance.expectations; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", body], check=False).returncode == 0


def test_the_design_example_is_valid(tmp_path: Path) -> None:
    text = """
[[expect]]
case        = "op:sort:int64:*"
outcome     = "unsupported"
fingerprint = "LoweringError:no int64 sort"
torch       = ">=2.13,<2.15"
issue       = "https://example.org/issues/123"
expires     = 2027-03-01
"""
    assert tomllib.loads(text)
    assert len(load(tmp_path, text)) == 1
