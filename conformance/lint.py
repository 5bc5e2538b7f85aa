"""Say what is wrong with an expectations file that loads. Pure."""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from conformance import expectations, globs
from conformance.expectations import Entry
from conformance.outcomes import Outcome
from conformance.records import Record

UNLIKELY = 0.01  # a flaky entry is doubted when so many passes in a row had at most this probability


class Fault(StrEnum):
    """What may be wrong with an entry."""

    DEAD = "dead"  # matches no case
    DUPLICATE = "duplicate"
    OVERLAPPING = "overlapping"  # with another entry, for the same outcome and cause
    EXPIRED = "expired"
    REASONLESS = "reason-less"
    STEADY = "steady"  # declared flaky, and never fails


class Complaint(NamedTuple):
    fault: Fault
    entry: Entry
    message: str

    def __str__(self) -> str:
        return f"{self.entry.where}: {self.fault}: {self.message}"


def lint(
    path: Path | str,
    *,
    cases: Collection[str] | None = None,
    records: Iterable[Record] = (),
    today: datetime.date | None = None,
) -> list[Complaint]:
    """All complaints about a file, in file order.

    `cases` are all ids of cases or samples that the suite has; without them nothing is called dead. `records` are those
    of a run, to doubt flaky entries by. Raises `ExpectationError` for a file that does not load.
    """
    loaded = expectations.load(path)
    found = [*_alone(loaded.entries, today or datetime.date.today()), *_pairs(loaded.entries)]
    if cases is not None:
        found += _dead(loaded.entries, cases)
    found += _steady(loaded.entries, records)
    return sorted(found, key=lambda complaint: (complaint.entry.number, complaint.fault))


def _alone(entries: Iterable[Entry], today: datetime.date) -> Iterator[Complaint]:
    for entry in entries:
        expected = entry.expectation
        if expected.expires is not None and expected.expires < today:
            yield Complaint(Fault.EXPIRED, entry, f"expired on {expected.expires}")
        if not expected.issue and not expected.reason:
            yield Complaint(Fault.REASONLESS, entry, "has neither `issue` nor `reason`")


def _pairs(entries: list[Entry]) -> Iterator[Complaint]:
    """Entries that may both explain one failure. Only globs whose literal prefixes agree are looked at."""
    by_prefix: dict[str, list[tuple[str, Entry]]] = defaultdict(list)
    for entry in entries:
        for pattern in entry.cases:
            by_prefix[globs.literal_prefix(pattern)].append((pattern, entry))
    told: set[tuple[int, int]] = set()
    for prefix, members in by_prefix.items():
        shorter = [m for n in range(len(prefix)) for m in by_prefix.get(prefix[:n], ())]
        for position, (pattern, entry) in enumerate(members):
            for other_pattern, other in [*shorter, *members[:position]]:
                first, second = sorted((entry, other), key=lambda e: e.number)
                pair = (first.number, second.number)
                if first.number == second.number or pair in told or not _same_samples(pattern, other_pattern):
                    continue
                if _same_failures(first, second):
                    told.add(pair)
                    yield _pair(first, second, pattern, other_pattern)


def _pair(first: Entry, second: Entry, *patterns: str) -> Complaint:
    if _declares(first) == _declares(second):
        return Complaint(Fault.DUPLICATE, second, f"says the same as {first.where}")
    shared = " and ".join(f"`{pattern}`" for pattern in dict.fromkeys(patterns))
    both = "is in both" if len(set(patterns)) == 1 else "share samples"
    return Complaint(Fault.OVERLAPPING, second, f"with {first.where}, for one outcome and cause: {shared} {both}")


def _same_samples(left: str, right: str) -> bool:
    return globs.intersect(_over_samples(left), _over_samples(right))


def _over_samples(pattern: str) -> str:
    return pattern if "#" in pattern else f"{pattern}#*"


def _same_failures(left: Entry, right: Entry) -> bool:
    a, b = left.expectation, right.expectation
    outcomes = a.outcome == b.outcome or expectations.FLAKY in (a.outcome, b.outcome)
    return outcomes and _pins_meet(a.fingerprint, b.fingerprint) and _specifiers_meet(a.torch, b.torch)


def _pins_meet(left: str, right: str) -> bool:
    """Whether some fingerprint fits both pins; a pin stands for itself and, as a cause, for any stage and op."""
    if not left or not right:
        return True
    return any(globs.intersect(a, b) for a in (left, f"{left}@*") for b in (right, f"{right}@*"))


def _specifiers_meet(left: str, right: str) -> bool:
    """Whether some torch version fits both. Tried at each version that either names, and just above it."""
    named = {Version(text) for text in re.findall(r"\d+(?:\.\d+)*", f"{left} {right}")}
    tried = {str(version) for version in named} | {f"{version}.0.0.1" for version in named} | {"0", "9999"}
    return any(expectations.holds(left, version) and expectations.holds(right, version) for version in tried)


def _declares(entry: Entry) -> tuple[object, ...]:
    expected = entry.expectation
    return sorted(entry.cases), expected.outcome, expected.fingerprint, expected.torch


def _dead(entries: list[Entry], cases: Collection[str]) -> Iterator[Complaint]:
    """Globs that match nothing. Ids may be of cases or of samples; with the former the sample number is not judged."""
    names = {case.partition("#")[0] for case in cases}
    samples = {case for case in cases if "#" in case}
    for entry in entries:
        for pattern in entry.cases:
            over_cases, hash_, _ = pattern.partition("#")
            texts = samples if hash_ and samples else names
            sought = pattern if hash_ and samples else over_cases
            if not (sought in texts if globs.is_literal(sought) else _any_matches(sought, texts)):
                yield Complaint(Fault.DEAD, entry, f"`{pattern}` matches none of {len(texts)} {_kind(texts, samples)}")


def _kind(texts: Collection[str], samples: Collection[str]) -> str:
    return "samples" if texts is samples else "cases"


def _any_matches(pattern: str, texts: Iterable[str]) -> bool:
    needle, matches = globs.longest_literal(pattern), globs.compiled(pattern).fullmatch
    return any(needle in text and matches(text) for text in texts)


def _steady(entries: list[Entry], records: Iterable[Record]) -> Iterator[Complaint]:
    """Flaky entries with so many passes and no failure that the declared rate is hard to believe."""
    flaky = [entry for entry in entries if entry.flaky]
    passes = dict.fromkeys((entry.number for entry in flaky), 0)
    fails = dict(passes)
    for record in records if flaky else ():
        for entry in flaky:
            if entry.covers(record.sample):
                passes[entry.number] += record.outcome is Outcome.PASS
                fails[entry.number] += record.outcome not in (Outcome.PASS, Outcome.SKIPPED, Outcome.INFRA)
    for entry in flaky:
        rate, seen = entry.expectation.rate or 0.0, passes[entry.number]
        if seen and not fails[entry.number] and (1 - rate) ** seen <= UNLIKELY:
            yield Complaint(Fault.STEADY, entry, f"declared to fail in {rate:.0%} of runs, passes in all {seen}")
