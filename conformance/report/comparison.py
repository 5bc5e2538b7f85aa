"""Two runs side by side: two backends, or one backend before and after. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from conformance import fingerprints
from conformance.outcomes import Agreement, Change, Result, Standing, change, compare, standing
from conformance.records import Record
from conformance.report.table import Share, Table


class Pair(NamedTuple):
    """One sample in both runs; None where a run does not have it."""

    sample: str
    left: Record | None
    right: Record | None

    @property
    def agreement(self) -> Agreement:
        return compare(result(self.left), result(self.right))

    @property
    def change(self) -> Change:
        return change(result(self.left), result(self.right))

    @property
    def subject(self) -> str:
        return (self.left or self.right).subject  # type: ignore[union-attr]

    @property
    def dtype(self) -> str:
        return (self.left or self.right).dtype  # type: ignore[union-attr]


def result(record: Record | None) -> Result | None:
    """What the comparisons look at."""
    return None if record is None else Result(record.outcome, record.fingerprint, record.digest, record.stage)


def pairs(left: Iterable[Record], right: Iterable[Record]) -> list[Pair]:
    """All samples of either run, in the order of the left one, then of the right one."""
    by_left = {record.sample: record for record in left}
    by_right = {record.sample: record for record in right}
    return [Pair(sample, by_left.get(sample), by_right.get(sample)) for sample in {**by_left, **by_right}]


Verdicts = type[Agreement] | type[Change]


def verdict(pair: Pair, kind: Verdicts) -> Agreement | Change:
    return pair.agreement if kind is Agreement else pair.change


UNTOLD = frozenset({Agreement.PARITY, Agreement.BOTH_FAIL_SAME, Agreement.UNKNOWN, Change.UNCHANGED, Change.UNKNOWN})
"""Verdicts that are counted and not listed."""


def count_table(both: Iterable[Pair], kind: Verdicts) -> Table:
    """Samples by verdict, a line a dtype."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in both:
        counts[pair.dtype][verdict(pair, kind)] += 1
    columns = [each for each in kind if any(count[each] for count in counts.values())]
    lines = sorted(counts.items())
    if len(lines) > 1:
        lines.append(("all", sum(counts.values(), Counter())))
    rows = [(name, *(count[column] for column in columns), count.total()) for name, count in lines]
    return Table(
        "Samples by agreement" if kind is Agreement else "Samples by change",
        ("dtype", *map(str, columns), "samples"),
        rows,
    )


def unknown_notes(both: Iterable[Pair]) -> list[str]:
    """Why samples could not be compared, a line a reason."""
    reasons: Counter[str] = Counter()
    for pair in both:
        if pair.agreement is Agreement.UNKNOWN:
            left, right = standing(result(pair.left)), standing(result(pair.right))
            if Standing.ABSENT in (left, right):
                reasons["only in the right run" if left is Standing.ABSENT else "only in the left run"] += 1
            elif Standing.MUTE in (left, right):
                reasons["skipped, or infra, on one side"] += 1
            else:
                reasons["the inputs or weights differ (another torch, transformers or seed)"] += 1
    return [f"{count} samples not compared: {reason}" for reason, count in reasons.most_common()]


def difference_table(both: Iterable[Pair], kind: Verdicts, names: tuple[str, str], limit: int | None = None) -> Table:
    """What differs, grouped by verdict and by the causes on both sides, most samples first."""
    groups: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    for pair in both:
        seen = verdict(pair, kind)
        if seen not in UNTOLD:
            groups[str(seen), _told(pair.left), _told(pair.right)].append(pair)
    order = {str(each): position for position, each in enumerate(kind)}
    ordered = sorted(groups.items(), key=lambda item: (order[item[0][0]], -len(item[1]), item[0]))
    rows = [(*key, len(group), len({p.subject for p in group}), group[0].sample) for key, group in ordered[:limit]]
    left = len(ordered) - len(rows)
    notes = [f"{left} more; --all lists them."] if left else []
    return Table("Differences", ("verdict", *names, "samples", "ops", "example"), rows, notes)


def _told(record: Record | None) -> str:
    if record is None:
        return ""
    cause = fingerprints.split(record.fingerprint).cause
    return f"{record.outcome}: {cause}" if cause else str(record.outcome)


def op_table(both: Iterable[Pair], names: tuple[str, str]) -> Table:
    """Passes on both sides, over the samples that can be compared."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for pair in both:
        if pair.agreement is not Agreement.UNKNOWN:
            sides = (standing(result(pair.left)), standing(result(pair.right)))
            for key in (pair.dtype, "all"):
                counts[key][0] += 1
                counts[key][1] += sides[0] is Standing.PASSES
                counts[key][2] += sides[1] is Standing.PASSES
    lines = sorted(counts.items(), key=lambda item: (item[0] == "all", item[0]))
    rows = [(name, total, Share(left / total), Share(right / total)) for name, (total, left, right) in lines]
    return Table("Samples that pass, of those that can be compared", ("dtype", "samples", *names), rows)
