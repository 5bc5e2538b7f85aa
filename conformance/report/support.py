"""How a backend supports each op in each dtype, from what its samples did. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from conformance.outcomes import Outcome, Support, is_undecided
from conformance.records import Record
from conformance.report.table import Share, Table

UNKNOWN = "unknown"  # it runs, and nobody can tell how

RANKS: tuple[str, ...] = (
    Support.NATIVE,
    Support.CUSTOM,
    Support.DECOMPOSED,
    UNKNOWN,  # below: known to be worse than whatever is not known
    Support.FALLBACK,
    Support.UNSUPPORTED,
    Support.WRONG,
)
"""From best to worst; the worst sample decides for its op and dtype."""

ON_DEVICE = frozenset({str(Support.NATIVE), str(Support.CUSTOM), str(Support.DECOMPOSED)})
"""What counts as coverage."""

BY_OUTCOME: Mapping[Outcome, Support | None] = {
    Outcome.PASS: None,  # as the record says
    Outcome.BUDGET: None,  # right, but with more breaks, recompiles or fallbacks than allowed
    Outcome.WRONG: Support.WRONG,
    Outcome.UNSUPPORTED: Support.UNSUPPORTED,
    Outcome.ERROR: Support.UNSUPPORTED,  # a user cannot run it either way
    Outcome.CRASH: Support.UNSUPPORTED,
    Outcome.TIMEOUT: Support.UNSUPPORTED,
    Outcome.OOM: Support.UNSUPPORTED,
}
"""Outcomes that are not here (`skipped`, `infra`) say nothing about support, nor do undecided ones."""


def of_sample(record: Record) -> str | None:
    """One of `RANKS`; None where the sample says nothing."""
    if record.outcome not in BY_OUTCOME or is_undecided(record):
        return None
    return str(BY_OUTCOME[record.outcome] or record.support or UNKNOWN)


def worst(of: Iterable[str | None]) -> str | None:
    """The worst of `RANKS`; None where nothing is said."""
    return max((each for each in of if each is not None), key=RANKS.index, default=None)


def by_pair(records: Iterable[Record]) -> dict[tuple[str, str], str]:
    """(subject, dtype) -> one of `RANKS`. Pairs of which no sample says anything are left out."""
    seen: dict[tuple[str, str], list[str | None]] = defaultdict(list)
    for record in records:
        seen[record.subject, record.dtype].append(of_sample(record))
    return {pair: found for pair, samples in seen.items() if (found := worst(samples)) is not None}


def by_op(pairs: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """Subject -> the worst over its dtypes."""
    seen: dict[str, list[str | None]] = defaultdict(list)
    for (subject, _), support in pairs.items():
        seen[subject].append(support)
    return {subject: found for subject, each in seen.items() if (found := worst(each)) is not None}


def support_table(records: Iterable[Record]) -> Table:
    """Ops by support, a line a dtype; the last two lines count pairs of op and dtype, and ops by their worst dtype."""
    pairs = by_pair(records)
    dtypes: dict[str, Counter[str]] = defaultdict(Counter)
    for (_, dtype), support in pairs.items():
        dtypes[dtype][support] += 1
    counted = [(dtype, dtypes[dtype]) for dtype in sorted(dtypes)]
    if counted:
        counted.append(("all pairs", Counter(pairs.values())))
        counted.append(("ops (worst dtype)", Counter(by_op(pairs).values())))
    rows = [(name, *(counts[rank] for rank in RANKS), counts.total(), on_device(counts)) for name, counts in counted]
    notes = [
        "The worst sample decides. On device: native, custom or decomposed; a fallback to the host is no coverage."
    ]
    return Table("Support: ops by dtype", ("dtype", *map(str, RANKS), "ops", "on device"), rows, notes)


def on_device(counts: Mapping[str, int]) -> Share | None:
    """Share of what is known to run on the device without the host; None where the backend tells of nothing."""
    total = sum(counts.values())
    if total == counts.get(UNKNOWN, 0):
        return None
    return Share(sum(counts.get(name, 0) for name in ON_DEVICE) / total)


def matrix(records: Iterable[Record]) -> Table:
    """Every op × dtype."""
    pairs = by_pair(records)
    dtypes = sorted({dtype for _, dtype in pairs})
    subjects = sorted({subject for subject, _ in pairs})
    rows = [(subject, *(pairs.get((subject, dtype)) for dtype in dtypes)) for subject in subjects]
    return Table("Support: op × dtype", ("op", *dtypes), rows)
