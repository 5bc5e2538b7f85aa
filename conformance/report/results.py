"""Outcomes, findings, tolerances and cost of one run. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from conformance import fingerprints
from conformance.outcomes import FAILED, Outcome
from conformance.records import Record
from conformance.report.table import Share, Table

AXES = ("kind", "dtype", "shape_mode", "direction", "lane", "numerics", "subject", "suite", "backend")

LOOSE = 0.01  # of the RMS of the result: a wrong answer of 1 % is one that users notice
IDLE = 1e-3  # slack below which the tolerance was never near being needed


def outcome_table(records: Iterable[Record], axis: str) -> Table:
    """Samples by outcome, a line a value of one axis (a field of `Record`). Raises `ValueError` for another axis."""
    if axis not in AXES:
        raise ValueError(f"{axis!r} is not an axis; they are {', '.join(AXES)}")
    counts: dict[str, Counter[Outcome]] = defaultdict(Counter)
    for record in records:
        counts[str(getattr(record, axis))][record.outcome] += 1
    columns = [outcome for outcome in Outcome if any(count[outcome] for count in counts.values())]
    lines = sorted(counts.items())
    if len(lines) > 1:
        lines.append(("all", sum(counts.values(), Counter())))
    rows = [(name, *(count[o] for o in columns), count.total(), passing(count)) for name, count in lines]
    name = axis.replace("_", " ")
    return Table(f"Samples by {name}", (name, *map(str, columns), "samples", "pass %"), rows)


def passing(counts: Counter[Outcome]) -> Share | None:
    """Share of passes among the samples that say something about the backend; None where none does."""
    total = counts.total() - counts[Outcome.SKIPPED] - counts[Outcome.INFRA]
    return Share(counts[Outcome.PASS] / total) if total else None


def failures(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.outcome in FAILED]


def finding_table(records: Iterable[Record], limit: int | None = None) -> Table:
    """Failures by fingerprint, most samples first."""
    return _grouped(
        "Findings by fingerprint",
        "fingerprint",
        failures(records),
        lambda record: (str(record.outcome), record.fingerprint or "(none)"),
        limit,
    )


def cause_table(records: Iterable[Record], limit: int | None = None) -> Table:
    """Failures by cause and stage, whatever the op, most samples first."""

    def cause(record: Record) -> tuple[str, str]:
        parts = fingerprints.split(record.fingerprint)
        return str(record.outcome), f"{parts.cause}@{parts.stage}" if parts.stage else parts.cause or "(none)"

    return _grouped("Failures by cause", "cause", failures(records), cause, limit)


def _grouped(
    title: str, name: str, failed: list[Record], key: Callable[[Record], tuple[str, str]], limit: int | None
) -> Table:
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in failed:
        groups[key(record)].append(record)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = [
        (
            outcome,
            text,
            ", ".join(sorted({str(record.owner) for record in group if record.owner})),
            len(group),
            len({record.subject for record in group}),
            sum(bool(record.expectation) for record in group),
            min(group, key=lambda record: (len(record.sample), record.sample)).sample,
        )
        for (outcome, text), group in ordered[:limit]
    ]
    left = len(ordered) - len(rows)
    notes = [f"{left} more; `conformance findings RUN` lists all."] if left else []
    return Table(title, ("outcome", name, "owner", "samples", "ops", "expected", "example"), rows, notes)


def loose_table(records: Iterable[Record], limit: int | None = None) -> Table:
    """Passes whose tolerance was so wide, and so little used, that it could have hidden a wrong answer."""
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.outcome is Outcome.PASS and record.loosest is not None and record.loosest > LOOSE:
            groups[record.subject, record.dtype, record.numerics].append(record)
    rows = [
        (
            *key,
            len(group),
            max(record.loosest or 0.0 for record in group),
            max((record.slack or 0.0) for record in group),
            "yes" if all((record.slack or 0.0) < IDLE for record in group) else "",
            max(group, key=lambda record: record.loosest or 0.0).sample,
        )
        for key, group in groups.items()
    ]
    rows.sort(key=lambda row: (-row[4], row[0], row[1]))
    notes = [
        f"Loosest: allowed error / RMS of the result, here above {LOOSE:.0%}. Slack: error / allowed. "
        f"Idle: slack below {IDLE:g}, so the tolerance could be tightened."
    ]
    if limit is not None and len(rows) > limit:
        notes.append(f"{len(rows) - limit} more; `conformance summary RUN --all` lists them.")
    headers = ("op", "dtype", "class", "passes", "loosest", "largest slack", "idle", "sample")
    return Table("Tolerances that could have hidden a wrong answer", headers, rows[:limit], notes)


COSTS = ("reference_s", "compile_s", "run_s", "judge_s", "cpu_s", "backend_cpu_s")


def cost_table(records: Iterable[Record]) -> Table:
    """What a sample costs, in seconds, over those that ran to a verdict in their own process."""
    ran = [record for record in records if record.cpu_s is not None]
    rows = []
    for name in COSTS:
        values = [value for record in ran if (value := getattr(record, name)) is not None]
        if values:
            rows.append((name.removesuffix("_s"), len(values), *quantiles(values), sum(values)))
    both = [(r.cpu_s, r.backend_cpu_s) for r in ran if r.cpu_s is not None and r.backend_cpu_s]
    notes = []
    if both:
        ratio = statistics.median(cpu for cpu, _ in both) / statistics.median(own for _, own in both)
        notes.append(f"Median CPU of a sample with judging / of compile and run alone: {ratio:.2f}")
    peak = max((record.peak_memory for record in ran if record.peak_memory), default=None)
    if peak is not None:
        notes.append(f"Largest process: {peak / 2**20:.0f} MiB")
    return Table("Cost of a sample (seconds)", ("", "samples", "median", "p90", "largest", "sum"), rows, notes)


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, 90th percentile by the nearest rank, maximum)."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[max(0, -(-9 * len(ordered) // 10) - 1)], ordered[-1]
