"""Declared, dated exceptions to "must pass" (docs/expectations.md): one TOML file a backend, read and matched here.

    [[expect]]
    case        = "op:sort:int64:*"               # or a list of globs; over sample ids where it has a #
    outcome     = "unsupported"                   # or "flaky", with an observed rate and an expiry
    fingerprint = "NotImplementedError:no int64*" # absent = any; another cause is a failure even here
    torch       = ">=2.13,<2.15"                  # PEP 440; absent = all
    issue       = "https://…/issues/123"
    reason      = "why, where there is no issue"
    owner       = "backend"
    expires     = 2027-03-01                      # the last day on which it holds

In globs only `*` and `?` are special. A fingerprint without stage and op pins the cause wherever it shows.
Pure: never imports torch.
"""

from __future__ import annotations

import datetime
import difflib
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from conformance import globs
from conformance.outcomes import FAILED, Outcome, Owner
from conformance.records import Record

FLAKY = "flaky"
EXPECTABLE = (*(str(o) for o in Outcome if o in FAILED and o is not Outcome.INFRA), FLAKY)
DIRECTORY = "expectations"


class ExpectationError(ValueError):
    """A file that cannot be used; the message names file, line and key and says what would be right."""


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry of the file, in the file's own words."""

    case: str | list[str]
    outcome: str
    fingerprint: str = ""
    torch: str = ""
    issue: str = ""
    reason: str = ""
    owner: str = ""
    expires: datetime.date | None = None
    rate: float | None = None  # share of runs that fail, as observed; flaky only


KEYS = Expectation.__struct_fields__


class Entry(NamedTuple):
    """An expectation and where it stands."""

    expectation: Expectation
    number: int  # from 0, in file order
    line: int | None
    path: Path

    @property
    def cases(self) -> list[str]:
        case = self.expectation.case
        return [case] if isinstance(case, str) else case

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}" if self.line else f"{self.path}, entry {self.number + 1}"

    @property
    def flaky(self) -> bool:
        return self.expectation.outcome == FLAKY

    def covers(self, sample: str) -> bool:
        """Whether the sample is one of those that the entry speaks of."""
        return any(covers(pattern, sample) for pattern in self.cases)

    def explains(self, record: Record) -> bool:
        """Whether a failure of a covered sample is the one that the entry declares."""
        expected = self.expectation
        same_outcome = self.flaky or expected.outcome == record.outcome
        return same_outcome and pins(expected.fingerprint, record.fingerprint)

    def holds_for(self, torch_version: str) -> bool:
        return holds(self.expectation.torch, torch_version)


def covers(pattern: str, sample: str) -> bool:
    """Whether a glob of an entry speaks of a sample: of its case, unless the glob has an index."""
    return globs.matches(pattern, sample if "#" in pattern else sample.partition("#")[0])


def pins(pin: str, fingerprint: str) -> bool:
    """Whether a pin admits a fingerprint: it matches the whole, or the cause before `@stage:op`; empty admits all."""
    if not pin:
        return True
    return globs.matches(pin, fingerprint) or globs.matches(pin, fingerprint.rpartition("@")[0])


def holds(specifier: str, torch_version: str) -> bool:
    """Whether a PEP 440 specifier admits a torch version; a nightly counts as the release that it leads to."""
    if not specifier:
        return True
    parsed = SpecifierSet(specifier)
    try:
        release = Version(Version(torch_version).base_version)
    except InvalidVersion:
        raise ExpectationError(
            f"torch version {torch_version!r} is not a version; entries with `torch = {specifier!r}` cannot be judged"
        ) from None
    return parsed.contains(release, prereleases=True)


class Kind(StrEnum):
    """What a result is in the light of the expectations."""

    EXPECTED_PASS = "expected-pass"
    EXPECTED_FAILURE = "expected-failure"
    FLAKY_OK = "flaky-ok"
    SKIPPED = "skipped"
    UNEXPECTED_PASS = "unexpected-pass"
    UNEXPECTED_FAILURE = "unexpected-failure"
    DIFFERENT_FAILURE = "different-failure"  # an entry covers the sample, for another outcome or cause
    EXPIRED = "expired"
    INFRA = "infra"


ACCEPTABLE = frozenset({Kind.EXPECTED_PASS, Kind.EXPECTED_FAILURE, Kind.FLAKY_OK, Kind.SKIPPED})


class Verdict(NamedTuple):
    """The judgement on one record; words are made when they are asked for."""

    kind: Kind
    record: Record
    path: Path  # of the file
    entry: Entry | None = None

    @property
    def ok(self) -> bool:
        return self.kind in ACCEPTABLE

    @property
    def label(self) -> str:
        """For `Record.expectation`: the issue, or where the entry stands."""
        return "" if self.entry is None else self.entry.expectation.issue or self.entry.where

    @property
    def message(self) -> str:
        """What is not as expected, in a sentence; empty where all is well."""
        record, kind = self.record, self.kind
        ended = f"{record.sample} ends in `{record.outcome}` ({record.fingerprint or 'no fingerprint'})"
        if kind is Kind.INFRA:
            return f"{record.sample}: our own environment failed: {record.message}"
        if kind is Kind.UNEXPECTED_FAILURE:
            return f"{ended}: {record.message}" if record.message else ended
        if self.entry is None:
            return ""
        where, expected = self.entry.where, self.entry.expectation
        if kind is Kind.UNEXPECTED_PASS:
            return f"{record.sample} passes, but {where} expects `{expected.outcome}`"
        if kind is Kind.EXPIRED:
            return f"{ended}; its expectation at {where} expired on {expected.expires}"
        if kind is Kind.DIFFERENT_FAILURE:
            pinned = f" ({expected.fingerprint})" if expected.fingerprint else ""
            return f"{ended}, but {where} expects `{expected.outcome}`{pinned}"
        return ""

    @property
    def edit(self) -> str:
        """What to change in the file where that is a way out; empty where nothing is to be changed."""
        record, kind = self.record, self.kind
        if kind is Kind.UNEXPECTED_FAILURE:
            return f"if it is known, add to {self.path}:\n{snippet(record)}"
        if self.entry is None:
            return ""
        where, expected = self.entry.where, self.entry.expectation
        if kind is Kind.UNEXPECTED_PASS:
            return (
                f"narrow `case = {' or '.join(self.entry.cases)}` at {where} so that it leaves out {record.sample}, or "
                "delete the entry if all that it covers passes (`conformance promote RUN` does either)"
            )
        if kind is Kind.EXPIRED:
            why = expected.issue or "the reason"
            return f"fix it, or look at {why} again and set a later `expires` at {where}"
        if kind is Kind.DIFFERENT_FAILURE:
            return f"if the new cause is known, add to {self.path} and narrow {where}:\n{snippet(record)}"
        return ""


class Expectations:
    """The entries of one file, indexed so that a sample finds its own without trying them all."""

    def __init__(self, path: Path, entries: Iterable[Entry] = ()) -> None:
        self.path = path
        self.entries = list(entries)
        self._indices: dict[str, _Index] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def covering(self, sample: str, torch_version: str) -> list[Entry]:
        """The entries that speak of the sample under this torch, in file order."""
        index = self._indices.get(torch_version)
        if index is None:
            index = _Index(entry for entry in self.entries if entry.holds_for(torch_version))
            self._indices[torch_version] = index
        return index.covering(sample)

    def match(self, record: Record, torch_version: str, today: datetime.date | None = None) -> Verdict:
        """What the record is in the light of the entries that hold for this torch, as of `today`.

        Raises `ExpectationError` if entries depend on the torch version and `torch_version` is none.
        """
        kind, entry = self._judge(record, torch_version, today or datetime.date.today())
        return Verdict(kind, record, self.path, entry)

    def _judge(self, record: Record, torch_version: str, today: datetime.date) -> tuple[Kind, Entry | None]:
        if record.outcome is Outcome.SKIPPED:
            return Kind.SKIPPED, None
        if record.outcome is Outcome.INFRA:
            return Kind.INFRA, None
        covering = self.covering(record.sample, torch_version)
        if record.outcome is Outcome.PASS:
            if not covering:
                return Kind.EXPECTED_PASS, None
            flaky = next((entry for entry in covering if entry.flaky), None)
            return (Kind.FLAKY_OK, flaky) if flaky else (Kind.UNEXPECTED_PASS, covering[0])
        explaining = [entry for entry in covering if entry.explains(record)]
        for entry in explaining:
            if entry.expectation.expires is None or today <= entry.expectation.expires:
                return (Kind.FLAKY_OK if entry.flaky else Kind.EXPECTED_FAILURE), entry
        if explaining:
            return Kind.EXPIRED, explaining[0]
        if covering:
            return Kind.DIFFERENT_FAILURE, covering[0]
        return Kind.UNEXPECTED_FAILURE, None


class _Indexed(NamedTuple):
    needle: str  # part of every case that the glob matches
    matches: Callable[[str], re.Match[str] | None]  # over cases
    over_samples: str  # glob over sample indices; empty: all
    entry: Entry


_NOTHING: tuple[list[Entry], list[tuple[str, Entry]]] = ([], [])
_HEAD = re.compile(r"([^:*?]*:[^:*?]*):")  # kind and subject, without wildcards


class _Index:
    """Entries by the kind and subject in their globs, else by the literal prefix: a case looks up its own.

    An id has one `#`, so a glob over samples is a glob over cases and one over sample indices.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._by_head: dict[str, list[_Indexed]] = defaultdict(list)
        self._by_prefix: dict[str, list[_Indexed]] = defaultdict(list)
        for entry in entries:
            for pattern in entry.cases:
                over_cases, _, over_samples = pattern.partition("#")
                needle, matches = globs.longest_literal(over_cases), globs.compiled(over_cases).fullmatch
                head = _HEAD.match(over_cases)
                place = self._by_head[head[1]] if head else self._by_prefix[globs.literal_prefix(over_cases)]
                place.append(_Indexed(needle, matches, over_samples, entry))
        self._lengths = sorted({len(prefix) for prefix in self._by_prefix})
        self._by_case: dict[str, tuple[list[Entry], list[tuple[str, Entry]]]] = {}

    def covering(self, sample: str) -> list[Entry]:
        case, _, index = sample.partition("#")
        cached = self._by_case.get(case)
        if cached is None:
            cached = self._by_case[case] = self._of_case(case)
        whole, per_sample = cached
        if not per_sample:
            return whole
        found = {entry.number: entry for entry in whole}
        found.update((entry.number, entry) for pattern, entry in per_sample if globs.matches(pattern, index))
        return [found[number] for number in sorted(found)]

    def _of_case(self, case: str) -> tuple[list[Entry], list[tuple[str, Entry]]]:
        head = _HEAD.match(case)
        places = [self._by_prefix[case[:n]] for n in self._lengths if case[:n] in self._by_prefix]
        if head and head[1] in self._by_head:
            places.append(self._by_head[head[1]])
        hits = [indexed for place in places for indexed in place if indexed[0] in case and indexed[1](case)]
        if not hits:
            return _NOTHING  # shared: most cases are in no entry, and a list for each keeps the garbage collector busy
        whole = {hit.entry.number: hit.entry for hit in hits if not hit.over_samples}
        per_sample = [(hit.over_samples, hit.entry) for hit in hits if hit.over_samples]
        return [whole[number] for number in sorted(whole)], per_sample


def snippet(record: Record) -> str:
    """The entry that would declare this failure, ready to paste."""
    lines = [
        "[[expect]]",
        f"case = {_toml(record.sample)}",
        f"outcome = {_toml(str(record.outcome))}",
        f"fingerprint = {_toml(record.fingerprint)}" if record.fingerprint else "",
        'issue = "https://…"',
    ]
    return "\n".join(line for line in lines if line)


def _toml(text: str) -> str:
    import tomlkit  # here: only failures need it

    return tomlkit.item(text).as_string()


# --- loading ---------------------------------------------------------------------------------------------------------


def file_for(directory: Path | str, backend: str) -> Path:
    """Where a backend's expectations lie: `<directory>/<backend>.toml`, what no file name can hold made a dash."""
    return Path(directory) / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', backend).strip('-')}.toml"


def load(path: Path | str) -> Expectations:
    """Read a file; one that does not exist expects nothing.

    Raises `ExpectationError` naming file, line and key.
    """
    path = Path(path)
    if not path.exists():
        return Expectations(path)
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExpectationError(f"{path}: not TOML: {error}") from None
    for key in document:
        if key != "expect":
            raise ExpectationError(f"{path}:{_line_of(text, key)}: unknown key `{key}`; entries go under [[expect]]")
    tables = document.get("expect", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ExpectationError(f"{path}:{_line_of(text, 'expect')}: write each entry as a table [[expect]]")
    lines = entry_lines(text, len(tables))
    return Expectations(path, (_entry(path, text, n, table, lines[n]) for n, table in enumerate(tables)))


def entry_lines(text: str, count: int) -> list[int | None]:
    """Line of each `[[expect]]` header, from 1; unknown where the entries are written in another way."""
    found = [n for n, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*expect\s*\]\]", line)]
    return list(found) if len(found) == count else [None] * count


def _line_of(text: str, key: str, start: int = 1) -> int:
    name = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[.=\]]""")
    lines = text.splitlines()
    return next((n for n, line in enumerate(lines[start - 1 :], start) if name.match(line)), start)


def _entry(path: Path, text: str, number: int, table: dict[str, Any], line: int | None) -> Entry:
    for key, complaint in _complaints(table):
        where = (
            f"{path}:{_line_of(text, key, line) if key in table else line}" if line else f"{path}, entry {number + 1}"
        )
        raise ExpectationError(f"{where}: {complaint}")
    return Entry(msgspec.convert(table, Expectation), number, line, path)


def _complaints(table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong with it and what would be right), most basic first."""
    for key in table:
        if key not in KEYS:
            meant = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"did you mean `{meant[0]}`?" if meant else f"the keys are {', '.join(KEYS)}"
            yield key, f"unknown key `{key}`; {hint}"
    for key in ("case", "outcome"):
        if key not in table:
            yield key, f"`{key}` is missing"
    for key in ("outcome", "fingerprint", "torch", "issue", "reason", "owner"):
        if not isinstance(table.get(key, ""), str):
            yield key, f"`{key}` must be a string, not {table[key]!r}"
    yield from _case_complaints(table["case"])
    outcome = table["outcome"]
    if outcome not in EXPECTABLE:
        yield "outcome", f"`outcome = {outcome!r}` cannot be expected; it is one of {', '.join(EXPECTABLE)}"
    if table.get("owner") and table["owner"] not in set(Owner):
        yield "owner", f"`owner = {table['owner']!r}` is not one of {', '.join(Owner)}"
    try:
        SpecifierSet(table.get("torch", ""))
    except InvalidSpecifier:
        yield "torch", f"`torch = {table['torch']!r}` is not a PEP 440 specifier such as '>=2.13,<2.15'"
    if table.get("issue") and not re.fullmatch(r"https?://\S+", table["issue"]):
        yield "issue", f"`issue = {table['issue']!r}` is not a URL; say it in `reason` where there is no issue"
    expires = table.get("expires")
    if expires is not None and type(expires) is not datetime.date:
        yield "expires", f"`expires = {expires!r}` must be a date without quotes, such as 2027-03-01"
    rate = table.get("rate")
    if outcome == FLAKY:
        if not isinstance(rate, float) or not 0 < rate < 1:
            yield "rate", "a flaky entry needs `rate`, the observed share of failures, between 0 and 1, such as 0.05"
        if expires is None:
            yield "expires", "a flaky entry needs `expires`, such as 2027-03-01"
    elif rate is not None:
        yield "rate", f"`rate` belongs to `outcome = {FLAKY!r}` only"


def _case_complaints(case: Any) -> Iterator[tuple[str, str]]:
    patterns = [case] if isinstance(case, str) else case
    if not isinstance(patterns, list) or not patterns or not all(isinstance(p, str) and p for p in patterns):
        yield "case", f"`case` must be a glob over case ids or a list of them, not {case!r}"
        return
    for pattern in patterns:
        over_cases, hash_, over_samples = pattern.partition("#")
        possible = (
            globs.intersect(over_cases, "*:*:*:*:*:*") and "#" not in over_samples and bool(over_samples or not hash_)
        )
        if not possible:
            yield (
                "case",
                f"`case = {pattern!r}` can match no id; one looks like "
                "kind:subject:dtype:static|dynamic|automatic:fwd|bwd:lane, "
                "with #sample where one sample is meant, e.g. op:sort:int64:*",
            )
