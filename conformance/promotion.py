"""Rewrite an expectations file from a run, with the smallest diff: comments, order and layout stay.

The file is cut into the blocks of its entries and the gaps between them; only blocks that change are written anew.
"""

from __future__ import annotations

import bisect
import datetime
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import tomlkit

from conformance import expectations, fingerprints
from conformance.covering import Avoided, cover
from conformance.expectations import Entry, Expectation, ExpectationError, Kind, Verdict
from conformance.outcomes import Outcome
from conformance.records import Record

NEEDS_ISSUE = frozenset({Outcome.WRONG, Outcome.CRASH})
"""Outcomes that nobody may wave through without an issue that says why."""


class Promotion(NamedTuple):
    """What would change, in words, and the file's new text."""

    path: Path
    text: str
    added: list[str]
    extended: list[str]
    narrowed: list[str]
    dropped: list[str]
    refused: list[str]  # failures that stay unexpected, and why
    changed: bool

    def write(self) -> None:
        """Replace the file in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        scratch.write_text(self.text, encoding="utf-8")
        scratch.replace(self.path)


def promote(
    records: Iterable[Record],
    path: Path | str,
    torch_version: str,
    *,
    issue: str = "",
    reason: str = "",
    torch: str = "",
    today: datetime.date | None = None,
) -> Promotion:
    """What the file must say so that the run is as expected.

    Unexpected failures are added, grouped by outcome and cause; entries of which nothing fails as declared any more
    are dropped, and those of which some samples pass are narrowed. `issue`, `reason` and the specifier `torch` go to
    what is added. Refused: `infra` always, `wrong` and `crash` without an issue, expired entries (a person must look).

    Raises `ExpectationError` for a file that cannot be read or edited, or a bad `issue`.
    """
    if issue and not re.fullmatch(r"https?://\S+", issue):
        raise ExpectationError(f"--issue {issue!r} is not a URL")
    loaded = expectations.load(path)
    records = [record for record in records if record.outcome is not Outcome.SKIPPED]
    verdicts = [loaded.match(record, torch_version, today) for record in records]
    file = _File(loaded)
    refused: list[str] = []
    wanted = _failures_to_declare(verdicts, issue, refused)
    passing = Avoided(record.sample for record in records if record.outcome is Outcome.PASS)

    dropped, narrowed = _shrink(file, records, torch_version)
    extended = _extend(file, wanted, passing, torch_version, today)
    added = []
    for (outcome, cause), group in sorted(wanted.items()):
        avoid = passing if cause else [r.sample for r in records if r.fingerprint or r.outcome != outcome]
        entry = Expectation(
            case=_one_or_list(cover((r.sample for r in group), avoid)),
            outcome=outcome,
            fingerprint=pin(record.fingerprint for record in group),
            torch=torch,
            issue=issue,
            reason=reason,
            owner=_owner(group),
        )
        file.append(entry)
        added.append(f"{outcome} ({cause or 'no fingerprint'}): {len(group)} samples")
    text = file.text()
    return Promotion(file.path, text, added, extended, narrowed, dropped, refused, text != file.before)


def pin(of: Iterable[str]) -> str:
    """The narrowest pin that admits all the fingerprints, which share a cause."""
    found = sorted(set(of))
    if len(found) == 1:
        return found[0]
    parts = [fingerprints.split(each) for each in found]
    stages = {part.stage for part in parts}
    return f"{parts[0].cause}@{stages.pop()}:*" if len(stages) == 1 else parts[0].cause


_Groups = dict[tuple[str, str], list[Record]]  # (outcome, cause) -> records


def _failures_to_declare(verdicts: Iterable[Verdict], issue: str, refused: list[str]) -> _Groups:
    groups: _Groups = defaultdict(list)
    for verdict in verdicts:
        record = verdict.record
        if verdict.kind is Kind.INFRA:
            refused.append(f"{record.sample}: infra is never expected: {record.message}")
        elif verdict.kind is Kind.EXPIRED and verdict.entry is not None:
            refused.append(f"{record.sample}: {verdict.edit}")
        elif verdict.kind in (Kind.UNEXPECTED_FAILURE, Kind.DIFFERENT_FAILURE):
            if record.outcome in NEEDS_ISSUE and not issue:
                refused.append(f"{record.sample}: {record.outcome} needs --issue URL ({record.fingerprint})")
            else:
                groups[str(record.outcome), fingerprints.split(record.fingerprint).cause].append(record)
    return groups


def _shrink(file: _File, records: list[Record], torch_version: str) -> tuple[list[str], list[str]]:
    """Drop and narrow entries that declare failures of samples that pass; each glob of an entry by itself."""
    covered: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        if record.outcome is not Outcome.INFRA:
            for entry in file.loaded.covering(record.sample, torch_version):
                covered[entry.number].append(record)
    dropped, narrowed = [], []
    for number, seen in covered.items():
        entry = file.loaded.entries[number]
        failing = [r.sample for r in seen if r.outcome is not Outcome.PASS and entry.explains(r)]
        passing = [r.sample for r in seen if r.outcome is Outcome.PASS]
        if entry.flaky or not (passing or not failing):
            continue
        kept = [part for pattern in entry.cases for part in _narrowed(pattern, failing, passing, seen)]
        if kept:
            file.set_case(number, kept)
            narrowed.append(f"{_title(entry)}: {len(passing)} of its {len(seen)} samples pass")
        else:
            file.drop(number)
            dropped.append(f"{_title(entry)}: none of its {len(seen)} samples in the run fails so")
    return dropped, narrowed


def _narrowed(pattern: str, failing: list[str], passing: list[str], seen: list[Record]) -> list[str]:
    """What is left of a glob: all of it where nothing that it covers passes, or ran; nothing where nothing fails."""
    ours, theirs = ([s for s in samples if expectations.covers(pattern, s)] for samples in (failing, passing))
    if not ours:
        return [] if any(expectations.covers(pattern, record.sample) for record in seen) else [pattern]
    return cover(ours, theirs, within=pattern) if theirs else [pattern]


def _extend(
    file: _File, wanted: _Groups, passing: Avoided, torch_version: str, today: datetime.date | None
) -> list[str]:
    """Add samples to entries that declare the same cause already; takes them out of `wanted`."""
    extended = []
    for (outcome, cause), group in list(wanted.items()):
        for entry in file.loaded.entries:
            expected = entry.expectation
            usable = expected.outcome == outcome and expected.fingerprint and entry.holds_for(torch_version)
            expired = expected.expires is not None and expected.expires < (today or datetime.date.today())
            if not usable or expired or file.is_dropped(entry.number):
                continue
            if all(expectations.pins(expected.fingerprint, record.fingerprint) for record in group):
                file.set_case(entry.number, file.cases(entry.number) + cover((r.sample for r in group), passing))
                extended.append(f"{_title(entry)}: {len(group)} samples more")
                del wanted[outcome, cause]
                break
    return extended


def _owner(group: list[Record]) -> str:
    owners = {str(record.owner or "") for record in group}
    return owners.pop() if len(owners) == 1 and "undetermined" not in owners else ""


def _title(entry: Entry) -> str:
    case = entry.cases[0] + (f" (+{len(entry.cases) - 1})" if len(entry.cases) > 1 else "")
    return f"{entry.where} {case}"


def _one_or_list(patterns: list[str]) -> str | list[str]:
    return patterns[0] if len(patterns) == 1 else patterns


class _File:
    """The text of a file as blocks (one an entry, with the comment directly above it) and gaps around them."""

    def __init__(self, loaded: expectations.Expectations) -> None:
        self.loaded = loaded
        self.path = loaded.path
        self.before = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        self._gaps, self._blocks = _cut(self.before, loaded)
        self._cases = {entry.number: entry.cases for entry in loaded.entries}
        self._dropped: set[int] = set()
        self._new: list[str] = []

    def cases(self, number: int) -> list[str]:
        return self._cases[number]

    def is_dropped(self, number: int) -> bool:
        return number in self._dropped

    def drop(self, number: int) -> None:
        self._dropped.add(number)

    def set_case(self, number: int, patterns: list[str]) -> None:
        wanted = self._cases[number] = sorted(set(patterns))
        document = tomlkit.parse(self._blocks[number])
        table: Any = document["expect"][0]  # type: ignore[index]
        if isinstance(table["case"], tomlkit.items.Array) and len(wanted) > 1:
            _edit(table["case"], wanted)
        else:
            table["case"] = _case_item(wanted)
        self._blocks[number] = tomlkit.dumps(document)

    def append(self, entry: Expectation) -> None:
        table = tomlkit.table()
        for key in expectations.KEYS:
            value = getattr(entry, key)
            if value:
                table[key] = _case_item([value] if isinstance(value, str) else value) if key == "case" else value
        array = tomlkit.aot()
        array.append(table)
        document = tomlkit.document()
        document["expect"] = array
        self._new.append(tomlkit.dumps(document).strip("\n") + "\n")

    def text(self) -> str:
        parts = [self._gaps[0]]
        for number, (block, gap) in enumerate(zip(self._blocks, self._gaps[1:], strict=True)):
            if number not in self._dropped:
                parts += [block, gap]
            else:
                parts.append(gap.lstrip("\n"))  # the blank lines in front of the block stay, those behind it go
        text = "".join(parts)
        for block in self._new:
            text = (text.rstrip("\n") + "\n\n" if text.strip() else "") + block
        return text


def _edit(array: tomlkit.items.Array, wanted: list[str]) -> None:
    """Makes an array hold what is wanted, and leaves the lines and comments of what stays."""
    for at in reversed(range(len(array))):
        if array[at] not in wanted:
            del array[at]
    for pattern in wanted:
        if pattern not in array:
            array.insert(bisect.bisect(list(array), pattern), pattern)


def _case_item(patterns: list[str]) -> tomlkit.items.Item:
    if len(patterns) == 1:
        return tomlkit.item(patterns[0])
    array = tomlkit.array()
    array.extend(patterns)
    return array.multiline(True)


def _cut(text: str, loaded: expectations.Expectations) -> tuple[list[str], list[str]]:
    """`(gaps, blocks)` with a gap before each block and one behind the last; joined they are the text."""
    lines = text.splitlines(keepends=True)
    starts = [entry.line for entry in loaded.entries]
    if None in starts:
        raise ExpectationError(f"{loaded.path}: cannot be edited: write each entry as a table [[expect]] of its own")
    gaps, blocks, position = [], [], 0
    headers = [line - 1 for line in starts if line is not None]
    for header, following in zip(headers, [*headers, len(lines)][1:], strict=True):
        first = header
        while first > position and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        end = following
        while end > header + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1
        gaps.append("".join(lines[position:first]))
        blocks.append("".join(lines[first:end]))
        position = end
    gaps.append("".join(lines[position:]))
    return gaps, blocks
