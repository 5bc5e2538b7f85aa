"""The reporting side of a run, in the process that the user started: progress, merging, accounting, summary."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from conformance import accounting, session, store, verdicts
from conformance.progress import Progress
from conformance.records import Manifest, Record
from conformance.report.summary import heading, outcomes
from conformance.report.table import Report, render

PROBLEM = "PROBLEM: "
FEW = 20  # samples: so many known failures alone are a selection, not a broken run


class Closing(msgspec.Struct):
    """What a run came to."""

    manifest: Manifest
    records: list[Record]
    problems: list[str]  # what makes the run itself a failure
    unexpected: int  # samples


class Reporter:
    """Follows the reports of all items; `finish` when the last process has stopped."""

    def __init__(self, run_dir: Path, terminal: Any | None, *, verbose: bool = False) -> None:
        self.run_dir = run_dir
        self.progress = Progress(terminal, draws=terminal is not None and terminal.isatty and not verbose)
        self.cpu_s = 0.0
        self.closing: Closing | None = None
        self._unexpected: dict[str, int] = {}  # item -> samples
        self._began = time.time()

    def report(self, nodeid: str, counts: dict[str, int]) -> None:
        """An item has ended."""
        unexpected = counts.get(verdicts.UNEXPECTED, 0)
        self._unexpected[nodeid] = unexpected
        self.progress.item({name: n for name, n in counts.items() if name != verdicts.UNEXPECTED}, unexpected)

    def finish(self, *, interrupted: bool) -> Closing | None:
        """Merge and account; None when no case was ever collected into the run."""
        plan = session.read_plan(self.run_dir)
        if plan is None:
            return None
        manifest = store.read_manifest(self.run_dir)
        log = store.read_log(self.run_dir)
        manifest.accounting = accounting.account(
            (case for cases in plan.cases.values() for case in cases),
            log,
            excluded=plan.excluded,
            deselected=plan.deselected,
        )
        manifest.finished = time.time()
        manifest.wall_s = (manifest.wall_s or 0.0) + manifest.finished - self._began
        manifest.cpu_s = (manifest.cpu_s or 0.0) + self.cpu_s
        manifest.complete = not (interrupted or manifest.accounting.cases_lost or manifest.accounting.samples_lost)
        manifest = store.merge(self.run_dir, manifest)
        previous = accounting.previous_run(manifest, self.run_dir.absolute().parent) if manifest.complete else None
        problems = accounting.problems(manifest.accounting, log.records, previous, few=FEW)
        self.closing = Closing(manifest, log.records, problems, sum(self._unexpected.values()))
        return self.closing


def summary(closing: Closing, run_dir: Path) -> list[str]:
    """The lines that end a run."""
    report = Report(heading(closing.manifest, closing.problems), outcomes(closing.records))
    lines = [*render(report).splitlines(), "", f"unexpected: {closing.unexpected} samples", f"results: {run_dir}"]
    lines.append(f"more: conformance summary {run_dir}")
    if not closing.manifest.complete:
        lines.append(f"incomplete; go on with --resume {run_dir}")
    return lines
