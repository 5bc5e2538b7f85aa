"""What was traced out of models, as a table. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from conformance import signatures
from conformance.report.table import Table
from conformance.traced import Traced


def op_table(calls: Iterable[Traced], limit: int | None = None) -> Table:
    """A line an op: in which dtypes, how many calls of it there are and how many models make one; most models first."""
    groups: dict[str, list[Traced]] = defaultdict(list)
    for call in calls:
        groups[call.op].append(call)
    rows = [
        (
            op,
            len({model for call in found for model in call.models}),
            len(found),
            sum(signatures.decode(call.signature).is_symbolic for call in found),
            ", ".join(sorted({call.dtype for call in found})),
        )
        for op, found in groups.items()
    ]
    rows.sort(key=lambda row: (-row[1], row[0]))
    left = 0 if limit is None else max(0, len(rows) - limit)
    notes = [f"{left} more; `conformance traced RUN --all` lists them."] if left else []
    return Table("Ops that models call", ("op", "models", "calls", "of symbolic size", "dtypes"), rows[:limit], notes)
