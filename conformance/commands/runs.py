"""`conformance summary`, `findings`, `compare`, `show` and `query`: what runs say."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from conformance import accounting, globs, store
from conformance.commands.mistakes import needs
from conformance.records import Record
from conformance.report import results
from conformance.report import summary as reports
from conformance.report.record import told
from conformance.report.table import Format, Table, render
from conformance.reporting import FEW


def format_of(text: str) -> Format:
    """The format by its name."""
    needs(text in set(Format), f"--format {text!r} is unknown; one of {', '.join(Format)}")
    return Format(text)


def summary(run: str, as_format: str, by: Sequence[str], everything: bool, *, rest: bool = False) -> None:
    """All about one run; with `rest`, what pytest's own summary lacks."""
    to = format_of(as_format)
    for axis in by:
        needs(axis in results.AXES, f"--by {axis!r} is unknown; one of {', '.join(results.AXES)}")
    run_dir = store.resolve(run)
    manifest, records = store.read_manifest(run_dir), store.read(run_dir)
    problems = accounting.problems(
        manifest.accounting, records, accounting.previous_run(manifest, run_dir.absolute().parent), few=FEW
    )
    print(render(reports.summary(manifest, records, by=by, problems=problems, everything=everything, rest=rest), to))
    print(f"\n{run_dir}")


def findings(run: str, as_format: str, causes: bool) -> None:
    """All failures, grouped."""
    to = format_of(as_format)
    records = store.read(store.resolve(run))
    found = results.cause_table(records) if causes else results.finding_table(records)
    print(render(found, to) if found.rows else "no failures")


def compare(left: str, right: str, as_format: str, everything: bool) -> None:
    """Two runs side by side."""
    to = format_of(as_format)
    sides = [(store.read_manifest(path), store.read(path)) for path in map(store.resolve, (left, right))]
    print(render(reports.compare(sides[0], sides[1], everything=everything), to))


def models(runs: Sequence[str], as_format: str, subjects: Sequence[str]) -> None:
    """Each model by itself, the runs side by side."""
    from conformance.report import models as reports_of_models

    to = format_of(as_format)
    backends = {path: store.read_manifest(path).backend for path in map(store.resolve, runs)}
    times = Counter(backends.values())
    found = {
        (backend if times[backend] == 1 else path.name): [
            record
            for record in store.read(path)
            if not subjects or any(globs.matches(glob, record.subject) for glob in subjects)
        ]
        for path, backend in backends.items()
    }
    table = reports_of_models.model_table(found)
    needs(bool(table.rows), f"no model in {', '.join(runs)}" + (f" is like {', '.join(subjects)}" if subjects else ""))
    print(render(table, to))


def query(run: str, sql: str, as_format: str) -> None:
    """The answer of DuckDB."""
    to = format_of(as_format)
    answer = store.query(run, sql)
    print(render(Table(f"{len(answer.rows)} rows", answer.columns, answer.rows), to) if answer.rows else "no rows")


# --- show ------------------------------------------------------------------------------------------------------------


def show(run: str, case: str, as_json: bool) -> None:
    """Every record of the run whose case or sample matches."""
    run_dir = store.resolve(run)
    found = matching(store.read(run_dir), case)
    needs(bool(found), f"run {run_dir.name} has no case or sample {case!r}; globs over ids are possible")
    for record in found:
        if as_json:
            sys.stdout.write(store.encode(record).decode() + "\n")
        else:
            print(told(record) + "\n")


def matching(records: Iterable[Record], case: str) -> list[Record]:
    """Records whose sample or case matches a glob."""
    return [record for record in records if globs.matches(case, record.sample) or globs.matches(case, record.case)]
