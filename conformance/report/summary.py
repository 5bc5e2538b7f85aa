"""The reports of `conformance summary` and `conformance compare`: which tables they have. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.outcomes import Agreement, Change
from conformance.records import Manifest, Record
from conformance.report import comparison, migration, models, overloads, results, support
from conformance.report.table import Report, Table

FEW = 20  # lines of a table that `--all` shows in full


def summary(
    manifest: Manifest,
    records: Sequence[Record],
    *,
    by: Sequence[str] = (),
    problems: Sequence[str] = (),
    everything: bool = False,
    rest: bool = False,
) -> Report:
    """All about one run. `by` adds outcomes by further axes; `everything` shows long tables in full.

    `rest` leaves out what pytest's own summary of the run has shown: the heading, outcomes, support and models.
    """
    limit = None if everything else FEW
    axes = list(dict.fromkeys(["dtype", *by]))
    ops = [record for record in records if record.kind not in models.KINDS]
    tables = [
        *models.tables(records, limit),
        overloads.overload_table(records, manifest, limit),
        results.cause_table(records, limit),
        results.loose_table(records, limit),
        results.cost_table(records),
    ]
    if everything:
        tables.append(support.matrix(ops))
    return Report((), tables) if rest else Report(heading(manifest, problems), [*outcomes(records, axes), *tables])


def outcomes(records: Sequence[Record], axes: Sequence[str] = ("dtype",)) -> list[Table]:
    """The tables that end a run: samples by outcome, ops by support, models by what became of them."""
    ops = [record for record in records if record.kind not in models.KINDS]
    by_axis = [results.outcome_table(records, axis) for axis in axes]
    return [*by_axis, support.support_table(ops), models.variant_table(records)]


def heading(manifest: Manifest, problems: Sequence[str] = ()) -> list[str]:
    """What the run was, and where its cases and samples went."""
    counted = manifest.accounting
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items() if version)
    skipped = sum(counted.cases_skipped.values())
    lines = [f"run {manifest.run}: {manifest.backend or 'unknown backend'}" + (f" ({versions})" if versions else "")]
    if manifest.wall_s is not None:
        cpu = f", {manifest.cpu_s:.0f} s CPU" if manifest.cpu_s is not None else ""
        lines.append(f"{manifest.wall_s:.0f} s wall{cpu}")
    lines.append(
        f"cases: {counted.cases_collected} collected = {counted.cases_run} run + {skipped} skipped + "
        f"{len(counted.cases_lost)} lost; samples: {counted.samples_run} run + "
        f"{sum(counted.samples_skipped.values())} skipped + {len(counted.samples_lost)} lost"
    )
    lines += [f"skipped: {count} cases ({reason})" for reason, count in counted.cases_skipped.items()]
    lines += [f"skipped: {count} samples ({reason})" for reason, count in counted.samples_skipped.items()]
    lines += [f"excluded by the suite: {count} cases ({reason})" for reason, count in counted.excluded.items()]
    if counted.deselected:
        lines.append(f"deselected: {counted.deselected} cases")
    if manifest.torn_lines:
        lines.append(f"{manifest.torn_lines} lines were cut short by dying processes")
    if not manifest.complete:
        lines.append("the run is not complete")
    return lines + [f"PROBLEM: {problem}" for problem in problems]


def compare(
    left: tuple[Manifest, Sequence[Record]], right: tuple[Manifest, Sequence[Record]], *, everything: bool = False
) -> Report:
    """Two runs: of two backends by agreement, of one backend by change."""
    names = _names(left[0], right[0])
    kind: comparison.Verdicts = Change if left[0].backend == right[0].backend else Agreement
    both = comparison.pairs(left[1], right[1])
    limit = None if everything else FEW
    lines = [f"left:  {_told(left[0])}", f"right: {_told(right[0])}", *comparison.unknown_notes(both)]
    if kind is Agreement:
        lines += [f"{side.backend}: {notes}" for side, _ in (left, right) if (notes := side.capabilities.get("notes"))]
    tables: list[Table] = [
        comparison.count_table(both, kind),
        comparison.op_table(both, names),
        *([models.change_table(both, limit)] if kind is Change else []),
        comparison.difference_table(both, kind, names, limit),
    ]
    if kind is Agreement and (moving := migration.migration_table(left[1], right[1], names)).rows:
        tables.append(moving)
    return Report(lines, tables)


def _names(left: Manifest, right: Manifest) -> tuple[str, str]:
    if left.backend != right.backend:
        return left.backend, right.backend
    for package in ("torch", "transformers"):
        versions = left.versions.get(package), right.versions.get(package)
        if all(versions) and versions[0] != versions[1]:
            return f"{package} {versions[0]}", f"{package} {versions[1]}"
    return "before", "after"


def _told(manifest: Manifest) -> str:
    known = [f"{name} {manifest.versions[name]}" for name in ("torch", "transformers") if manifest.versions.get(name)]
    return f"{manifest.run} ({', '.join([manifest.backend, *known])})"
