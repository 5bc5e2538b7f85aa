"""What a sweep of models says: which are right unmodified, where graphs break, what compiles again. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from conformance.outcomes import Change, Outcome, is_mute, is_undecided
from conformance.records import Record
from conformance.report.comparison import Pair
from conformance.report.table import Table

KINDS = frozenset({"model", "decode", "block"})
RIGHT = frozenset({Outcome.PASS, Outcome.BUDGET})
"""Outcomes of right answers; `budget` is one with more breaks or recompiles than allowed."""


LONGEST_DETAIL = 80  # characters: the name of an op or of a method, but no more

WORST_FIRST = (
    Change.REGRESSED,
    Change.CHANGED_FAILURE,
    Change.CHANGED_TEST,
    Change.FIXED,
    Change.NEW,
    Change.GONE,
    Change.UNKNOWN,
    Change.UNCHANGED,
)
"""The change of a model is the worst of its samples."""


def of_models(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.kind in KINDS]


def variant_table(records: Iterable[Record]) -> Table:
    """Subjects by what became of them, a line each way of checking. The worst sample of a subject decides."""
    groups: dict[tuple[str, ...], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in of_models(records):
        groups[record.kind, record.shape_mode, record.direction, record.lane, record.dtype][record.subject].append(
            record
        )
    rows = []
    for key, subjects in sorted(groups.items()):
        told = [[r for r in each if not is_mute(r)] for each in subjects.values()]
        ran = [each for each in told if each]
        right = [each for each in ran if all(r.outcome in RIGHT for r in each)]
        rows.append(
            (
                " ".join(key),
                len(subjects),
                len(right),
                sum(all(not r.breaks for r in each) for each in right),
                sum(any(r.breaks for r in each) for each in right),
                sum(any(r.outcome is Outcome.BUDGET and not r.breaks for r in each) for each in right),
                len(ran) - len(right),
                len(subjects) - len(ran),
                sum(r.compile_s or 0.0 for each in ran for r in each),
            )
        )
    headers = (
        "check",
        "models",
        "right",
        "one graph",
        "broken graphs",
        "recompile",
        "not right",
        "not judged",
        "compile s",
    )
    notes = [
        "Right: as the CPU in eager mode, unmodified; of these whole: without graph breaks, broken: with. Recompile: "
        "more often than the sizes that torch.compile must tell apart. Not judged: skipped, or we failed ourselves."
    ]
    return Table("Models", headers, rows, notes)


CHECKS: Mapping[tuple[str, str, str, str], str] = {
    ("model", "static", "fwd", "samples"): "static",
    ("model", "static", "fwd", "fullgraph"): "fullgraph",
    ("model", "dynamic", "fwd", "samples"): "dynamic",
    ("model", "automatic", "fwd", "marked"): "marked dynamic",
    ("model", "static", "bwd", "samples"): "training",
    ("decode", "automatic", "fwd", "dynamic-cache"): "decode, growing cache",
    ("decode", "automatic", "fwd", "static-cache"): "decode, static cache",
}
"""Kind, shape mode, direction and lane of a case -> what is checked, in the order of a table."""


def model_table(runs: Mapping[str, Iterable[Record]]) -> Table:
    """A line for each model and check, and for each run, by its name, what it came to and what compiling cost."""
    found: dict[tuple[str, str, str], dict[str, list[Record]]] = defaultdict(dict)
    for run, records in runs.items():
        for record in records:
            check = CHECKS.get((record.kind, record.shape_mode, record.direction, record.lane))
            if check:
                found[record.subject, check, record.dtype].setdefault(run, []).append(record)
    order = list(CHECKS.values())
    timed = {
        run for cells in found.values() for run, each in cells.items() if any(r.device_s is not None for r in each)
    }
    rows = [
        (*key, *(cell for run in runs for cell in _cells(cells.get(run, ()), run in timed)))
        for key, cells in sorted(found.items(), key=lambda item: (item[0][0], order.index(item[0][1]), item[0][2]))
    ]
    headers = ["model", "check", "dtype"]
    for run in runs:
        headers += [run, "compile s", *(["device ms"] if run in timed else [])]
    notes = [
        "Right: as the CPU in eager mode, unmodified. Breaks: graph breaks. Again: recompiles, where they are "
        "more than the sizes demand that torch.compile must tell apart. Compile seconds: of all compilations."
    ]
    if timed:
        notes.append("Device: all calls, by the device's own clock, host aside; simulated where the device is.")
    return Table("Models one by one", tuple(headers), rows, notes)


def _cells(records: Sequence[Record], timed: bool) -> tuple[str | float | None, ...]:
    ran = [record for record in records if record.outcome is not Outcome.SKIPPED]
    if not ran:
        said = "skipped: " + _short(records[0].reason) if records else "-"
        return (said, None, None) if timed else (said, None)
    device = _sum(record.device_s for record in ran)
    cells = "; ".join(dict.fromkeys(map(_verdict, ran))), _sum(record.compile_s for record in ran)
    return (*cells, None if device is None else device * 1000) if timed else cells


def _sum(seconds: Iterable[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return sum(known) if known else None


def _verdict(record: Record) -> str:
    if is_undecided(record):
        return f"not judged: {record.outcome} at {record.stage}"
    if record.outcome not in RIGHT:
        at = f" at {record.stage}" if record.stage else ""
        return f"{record.outcome}{at}" + (f", {record.culprit_op}" if record.culprit_op else "")
    said = [f"{sum(item.count for item in record.breaks)} breaks"] if record.breaks else []
    if record.outcome is Outcome.BUDGET and not record.breaks:
        said.append(f"{sum(item.count for item in record.recompiles)} again")
    return ", ".join(["right", *said])


def break_table(records: Iterable[Record], limit: int | None = None) -> Table:
    """Reasons for graph breaks with their place, the reason that most models have first."""
    subjects: dict[tuple[str, str], set[str]] = defaultdict(set)
    counts: Counter[tuple[str, str]] = Counter()
    for record in of_models(records):
        for item in record.breaks:
            key = _kind(item.reason), item.place
            subjects[key].add(record.subject)
            counts[key] += item.count
    return _listed("Graph breaks by reason", "reason", subjects, counts, limit)


def recompile_table(records: Iterable[Record], limit: int | None = None) -> Table:
    """Guards that failed in samples which compiled more often than allowed."""
    subjects: dict[tuple[str, str], set[str]] = defaultdict(set)
    counts: Counter[tuple[str, str]] = Counter()
    for record in of_models(records):
        if record.outcome is Outcome.BUDGET:
            for item in record.recompiles:
                subjects[item.guard, item.place].add(record.subject)
                counts[item.guard, item.place] += item.count
    return _listed("Recompiles by guard", "guard", subjects, counts, limit)


def _listed(
    title: str,
    name: str,
    subjects: dict[tuple[str, str], set[str]],
    counts: Counter[tuple[str, str]],
    limit: int | None,
) -> Table:
    ordered = sorted(subjects, key=lambda key: (-len(subjects[key]), -counts[key], key))
    rows = [
        (_short(reason), place, len(subjects[reason, place]), counts[reason, place], min(subjects[reason, place]))
        for reason, place in ordered[:limit]
    ]
    left = len(ordered) - len(rows)
    notes = [f"{left} more; `conformance summary RUN --all` lists them."] if left else []
    return Table(title, (name, "place", "models", "times", "example"), rows, notes)


def _kind(reason: str) -> str:
    """A reason without what it was about, where that is a dump of objects: each model would have its own."""
    first, _, detail = reason.partition(" (")
    return reason if len(detail) <= LONGEST_DETAIL else first


def _short(text: str) -> str:
    """What a table has room for: the guard or reason without the comment that follows it."""
    line = " ".join(text.partition("  # ")[0].split())
    return line if len(line) <= 120 else line[:117] + "..."


def change_table(both: Iterable[Pair], limit: int | None = None) -> Table:
    """What became of each model between two runs of one backend: of those that are the same, and of new ones.

    A model whose inputs, weights or code changed is another test, and no regression.
    """
    subjects: dict[str, list[Pair]] = defaultdict(list)
    for pair in both:
        if (pair.left or pair.right).kind in KINDS:  # type: ignore[union-attr]
            subjects[pair.subject].append(pair)
    found: dict[Change, list[str]] = defaultdict(list)
    for subject, pairs in subjects.items():
        changes = {pair.change for pair in pairs}
        found[next(each for each in WORST_FIRST if each in changes)].append(subject)
    rows = [
        (str(each), len(names), ", ".join(sorted(names)[:limit]) + (", ..." if limit and len(names) > limit else ""))
        for each, names in sorted(found.items(), key=lambda item: WORST_FIRST.index(item[0]))
    ]
    return Table("Models by change", ("change", "models", "which"), rows)


def tables(records: Sequence[Record], limit: int | None) -> list[Table]:
    """What goes into detail: why graphs break and why a model compiles again."""
    return [break_table(records, limit), recompile_table(records, limit)]
