"""What moving a model from one backend to another gains and costs: one line for each way of checking it. Pure.

Both must be right for the rest to count. Then graph breaks, recompiles, calls on the host and the time on the device
say which is better; the time is compared where both have a clock of their own and leave the same calls to the host,
whose time it lacks. Compiling happens once, and is told beside the verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from conformance import fingerprints
from conformance.outcomes import is_mute
from conformance.records import Record
from conformance.report.models import CHECKS, RIGHT
from conformance.report.table import Table

TIME_APART = 1.05
"""Times on the device that differ by less are equal."""


class Migration(StrEnum):
    """What the move means for a model."""

    BLOCKED = "blocked"  # right before, and not after
    UNLOCKED = "unlocked"  # right after, and not before
    NEITHER = "neither"  # right on neither
    BETTER = "better"
    WORSE = "worse"
    MIXED = "mixed"  # better in something, worse in something else
    EQUAL = "equal"
    UNKNOWN = "unknown"  # one of the two was not judged


def migration(left: Sequence[Record], right: Sequence[Record]) -> tuple[Migration, str]:
    """The verdict on the samples of one check of a model on two backends, and why."""
    left, right = ([record for record in side if not is_mute(record)] for side in (left, right))
    if not left or not right:
        return Migration.UNKNOWN, "not judged " + ("on either" if not (left or right) else "there" if left else "here")
    before, after = (all(record.outcome in RIGHT for record in side) for side in (left, right))
    if not (before and after):
        kind = Migration.BLOCKED if before else Migration.UNLOCKED if after else Migration.NEITHER
        return kind, _blocker(right if not after else left)
    said = {Migration.BETTER: [], Migration.WORSE: []}  # type: dict[Migration, list[str]]
    for name, count in _COUNTED.items():
        were, are = sum(map(count, left)), sum(map(count, right))
        if were != are:
            said[Migration.BETTER if are < were else Migration.WORSE].append(f"{were} to {are} {name}")
    ratio = device_ratio(left, right)
    if ratio is not None and not 1 / TIME_APART <= ratio <= TIME_APART:
        said[Migration.BETTER if ratio < 1 else Migration.WORSE].append(f"{ratio:.2f} x the time on the device")
    kinds = [kind for kind, reasons in said.items() if reasons]
    verdict = Migration.EQUAL if not kinds else kinds[0] if len(kinds) == 1 else Migration.MIXED
    return verdict, ", ".join(reason for reasons in said.values() for reason in reasons)


_COUNTED: dict[str, Callable[[Record], int]] = {
    "graph breaks": lambda record: sum(item.count for item in record.breaks),
    "recompiles": lambda record: sum(item.count for item in record.recompiles),
    "calls on the host": lambda record: sum(record.fallbacks.values()),
}


def device_ratio(left: Sequence[Record], right: Sequence[Record]) -> float | None:
    """Time on the device after, as a multiple of before; None where the two cannot be compared."""
    on_host = [sum(_COUNTED["calls on the host"](record) for record in side) for side in (left, right)]
    before, after = (_total(record.device_s for record in side) for side in (left, right))
    return after / before if before and after is not None and on_host[0] == on_host[1] else None


def _total(seconds: Iterable[float | None]) -> float | None:
    known = list(seconds)
    return None if None in known else sum(known)  # type: ignore[arg-type]


def _blocker(records: Sequence[Record]) -> str:
    """What keeps a model from being right: the op, else the cause."""
    worst = next(record for record in records if record.outcome not in RIGHT)
    cause = worst.culprit_op or fingerprints.split(worst.fingerprint).cause
    return f"{worst.outcome}: {cause}" if cause else str(worst.outcome)


def migration_table(left: Iterable[Record], right: Iterable[Record], names: tuple[str, str]) -> Table:
    """A line for each model and check that either run has: verdict, compile seconds and time on the device."""
    found: dict[tuple[str, str, str], tuple[list[Record], list[Record]]] = defaultdict(lambda: ([], []))
    for place, records in enumerate((left, right)):
        for record in records:
            check = CHECKS.get((record.kind, record.shape_mode, record.direction, record.lane))
            if check:
                found[record.subject, check, record.dtype][place].append(record)
    rows = []
    for (subject, check, dtype), sides in sorted(found.items()):
        verdict, why = migration(*sides)
        times = [_milli(_total(record.device_s for record in side)) if side else None for side in sides]
        compiling = [_total(record.compile_s for record in side) if side else None for side in sides]
        rows.append((subject, check, dtype, str(verdict), why, *compiling, *times))
    measured = [f"{what}, {name}" for what in ("compile s", "device ms") for name in names]
    headers = ("model", "check", "dtype", "verdict", "because", *measured)
    counts = {kind: sum(row[3] == kind for row in rows) for kind in Migration}
    notes = [", ".join(f"{count} {kind}" for kind, count in counts.items() if count)] if rows else []
    return Table(f"Moving from {names[0]} to {names[1]}", headers, rows, notes)


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
