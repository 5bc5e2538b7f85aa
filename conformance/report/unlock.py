"""Which ops would unlock which models, as tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from conformance.blockers import Diagnosis, Evidence, Goal
from conformance.report.table import Report, Share, Table
from conformance.unlocking import Alone, Unlock, Weights, total

SHOWN = 3  # models named in a line
GOALS: Mapping[Goal, str] = {
    Goal.DEVICE: "runs right and leaves nothing to the host",
    Goal.RUNS: "runs right",
}


class Unlocks(msgspec.Struct, frozen=True, kw_only=True):
    """All that is reported, computed. `sets` and `plan` are by what they unlock."""

    goal: Goal
    backend: str
    diagnosis: Diagnosis
    weights: Weights
    alone: Sequence[Alone]
    sets: Sequence[Unlock]
    plan: Sequence[Unlock]
    notes: Sequence[str] = ()  # where evidence comes from, and what there is none of


def report(found: Unlocks, limit: int | None = None) -> Report:
    """Headline, then three tables: single ops, smallest sets, best sets by size. `limit`: lines of each."""
    diagnosis, weights = found.diagnosis, found.weights
    blocked = diagnosis.blockers
    models = [*diagnosis.unlocked, *blocked, *diagnosis.unknown]
    done, everything = total(diagnosis.unlocked, weights), total(models, weights)
    lines = [
        f"{found.backend or 'unknown backend'}, goal {found.goal}: the model {GOALS[found.goal]}",
        f"models: {len(models)} = {len(diagnosis.unlocked)} there + {len(blocked)} blocked + "
        f"{len(diagnosis.unknown)} unknown (not run, and no call of theirs known to fail)",
        f"weight: {done:g} of {everything:g} ({100 * done / everything if everything else 0:.1f}%) there, "
        f"{total(blocked, weights):g} blocked by {len(frozenset().union(*blocked.values()) if blocked else ())} ops "
        "and causes",
        *found.notes,
    ]
    return Report(lines, [alone_table(found, limit), set_table(found, limit), plan_table(found)])


def alone_table(found: Unlocks, limit: int | None = None) -> Table:
    """A line an op: what it alone unlocks, and who waits for it among others."""
    rows = [
        (
            each.op,
            each.weight,
            len(each.models),
            each.waiting_weight,
            len(each.waiting),
            ", ".join(_evidence(found.diagnosis, each.op)),
            ", ".join(sorted(found.diagnosis.dtypes.get(each.op, ()))),
            named(each.models or each.waiting),
        )
        for each in found.alone[:limit]
    ]
    notes = [
        "Unlocks: models that wait for this alone. Blocks: all that wait for it, perhaps for others too.",
        "In: the dtypes of calls that fail alone.",
    ]
    headers = ("op", "unlocks (weight)", "models", "blocks (weight)", "models", "known because", "in", "for instance")
    return Table("Ops alone", headers, rows, _more(notes, len(found.alone), limit))


def set_table(found: Unlocks, limit: int | None = None) -> Table:
    """A line a smallest set of several ops; single ones are in the first table."""
    several = [each for each in found.sets if len(each.fixed) > 1]
    rows = [
        (len(each.fixed), each.weight, len(each.models), ", ".join(sorted(each.fixed)), named(each.models))
        for each in several[:limit]
    ]
    notes = ["Of each set every op is needed. Most weight for each op first; what its parts unlock is counted in."]
    headers = ("ops", "unlocks (weight)", "models", "set", "for instance")
    return Table("Smallest sets of ops", headers, rows, _more(notes, len(several), limit))


def plan_table(found: Unlocks) -> Table:
    """What to fix with a budget of so many ops."""
    everything = total(found.diagnosis.evidence, found.weights)
    rows = []
    before: frozenset[str] = frozenset()
    for each in found.plan:
        gone = sorted(before - each.fixed)
        change = ", ".join([*(f"+{op}" for op in sorted(each.fixed - before)), *(f"-{op}" for op in gone)])
        share = Share(each.weight / everything) if everything else None
        rows.append((len(each.fixed), each.weight, share, len(each.models), "" if each.exact else "no", change))
        before = each.fixed
    notes = [
        "Best sets of at most so many ops, each with the change to the line above. Not proven: search was cut short."
    ]
    headers = ("ops", "unlocks (weight)", "of what is blocked", "models", "proven best", "set")
    return Table("Most for so many ops", headers, rows, notes)


def as_data(found: Unlocks) -> dict[str, Any]:
    """The same as plain values for JSON, nothing left out."""

    def unlock(each: Unlock) -> dict[str, Any]:
        return {
            "ops": sorted(each.fixed),
            "models": sorted(each.models),
            "weight": each.weight,
            "exact": each.exact,
        }

    return {
        "backend": found.backend,
        "goal": str(found.goal),
        "notes": list(found.notes),
        "there": sorted(found.diagnosis.unlocked),
        "unknown": sorted(found.diagnosis.unknown),
        "blocked": {
            model: {
                "weight": found.weights.get(model, 1.0),
                "blockers": {op: sorted(map(str, how)) for op, how in sorted(evidence.items())},
            }
            for model, evidence in sorted(found.diagnosis.evidence.items())
        },
        "alone": [
            {
                "op": each.op,
                "weight": each.weight,
                "models": sorted(each.models),
                "waiting_weight": each.waiting_weight,
                "waiting": sorted(each.waiting),
                "known": _evidence(found.diagnosis, each.op),
                "dtypes": sorted(found.diagnosis.dtypes.get(each.op, ())),
            }
            for each in found.alone
        ],
        "sets": [unlock(each) for each in found.sets],
        "plan": [unlock(each) for each in found.plan],
    }


def named(models: Iterable[str]) -> str:
    """The first few, and how many more."""
    ordered = sorted(models)
    more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return ", ".join(ordered[:SHOWN]) + more


def _evidence(diagnosis: Diagnosis, op: str) -> list[str]:
    seen: set[Evidence] = set().union(*(found.get(op, set()) for found in diagnosis.evidence.values()))
    return [str(each) for each in Evidence if each in seen]


def _more(notes: list[str], count: int, limit: int | None) -> list[str]:
    left = 0 if limit is None else max(0, count - limit)
    return [*notes, f"{left} more; `conformance unlock RUN --all` lists them."] if left else notes
