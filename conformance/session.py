"""One pytest process's part in a run: lists cases, runs them in isolation, judges the records by the expectations.

Lives in the processes that run items: the only one, or each worker of pytest-xdist. What the processes of a run must
agree on lies in the run's directory: `plan.json` (settings and selected cases), the manifest, and one log a worker.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from conformance import expectations, store
from conformance.cases import Case
from conformance.isolation import wire
from conformance.isolation.child import Plan
from conformance.isolation.supervisor import Supervisor
from conformance.outcomes import Outcome
from conformance.records import Manifest, Record
from conformance.settings import Settings, restrictions, selected_by

PLAN = "plan.json"
REDO = "redo.txt"  # ids of cases whose worker was killed, one a line
NO_SAMPLES = "the suite has no sample for it"


class Planned(msgspec.Struct, kw_only=True):
    """What a run set out to do."""

    settings: Settings
    cases: dict[str, list[str]] = {}  # suite -> ids of the cases to run
    excluded: dict[str, int] = {}  # reason -> cases
    deselected: int = 0


class Judged(msgspec.Struct):
    """A record and what the expectations say about it."""

    record: Record
    verdict: expectations.Verdict


class Session:
    """`run_dir` is None when nothing is to be run (`--collect-only`)."""

    def __init__(
        self, settings: Settings, run_dir: Path | None, worker: str = "main", *, resumed: bool = False
    ) -> None:
        self.settings = settings
        self.run_dir = run_dir
        self.worker = worker
        self.started = time.time()
        self._listings: dict[str, wire.CaseList] = {}
        self._unmatched: dict[str, list[str]] = {}  # suite -> options that select none of its cases
        self._expectations: dict[str, expectations.Expectations] = {}
        self._history = store.read_log(run_dir) if resumed and run_dir is not None else None
        self._writer: _Writer | None = None
        log = run_dir / f"{worker}.log" if run_dir is not None else Path(os.devnull)
        self.supervisor = Supervisor(
            Plan(
                backend=settings.backend,
                backend_import=settings.backend_import,
                backend_options=settings.backend_options,
                device=settings.device,
            ),
            settings.options,
            log=log,
            limits=settings.limits,
            worker=worker,
            warm_up=run_dir is not None,
        )
        self.log = log

    # --------------------------------------------------------------------------------------------------- collecting

    def listing(self, suite: str) -> wire.CaseList:
        """The cases of a suite that the settings select.

        Raises `isolation.CannotStart` when backend or suite cannot be used, `expectations.ExpectationError` when the
        suite's expectations cannot be read. For selections that are empty see `mistakes`.
        """
        if suite not in self._listings:
            listing = self.supervisor.cases(suite)
            self._unmatched[suite] = [
                f"{flag} {value}"
                for flag, value, alone in restrictions(self.settings.options)
                if not any(map(selected_by(flag, value), listing.cases)) and not self.supervisor.list_with(suite, alone)
            ]
            self._expectations[suite] = expectations.load(self._expectations_file(listing))
            self._listings[suite] = listing
            self.supervisor.warm_up()
        return self._listings[suite]

    def mistakes(self) -> list[str]:
        """What is selected and no suite has. An option may select nothing of one suite, but not of all."""
        names = " or ".join(repr(listing.name) for listing in self._listings.values())
        everywhere = set.intersection(*map(set, self._unmatched.values())) if self._unmatched else set()
        found = [f"{option} selects no case of the suite {names}" for option in sorted(everywhere)]
        if not found and self._listings and not any(listing.cases for listing in self._listings.values()):
            found.append(f"the suite {names} has no case for what is selected")
        return found

    def _expectations_file(self, listing: wire.CaseList) -> Path:
        if self.settings.expectations is not None:
            return Path(self.settings.expectations)
        directory = listing.expectations_dir or expectations.DIRECTORY
        return expectations.file_for(directory, self.backend)

    @property
    def backend(self) -> str:
        """The name that the backend gives itself."""
        return self.supervisor.start().backend

    @property
    def torch_version(self) -> str:
        return self.supervisor.start().versions.get("torch", "")

    def write_plan(self, selected: Iterable[tuple[str, Case]]) -> None:
        """Write what will be run, and a first manifest; every worker does, the first one counts."""
        if self.run_dir is None or not self._listings:
            return
        planned = Planned(settings=self.settings)
        for suite, case in selected:
            planned.cases.setdefault(self._listings[suite].name, []).append(str(case))
        total = 0
        for listing in self._listings.values():
            total += len(listing.cases)
            for reason, count in listing.excluded.items():
                planned.excluded[reason] = planned.excluded.get(reason, 0) + count
        planned.deselected = total - sum(map(len, planned.cases.values()))
        manifest = self._manifest(planned)
        _write_once(self.run_dir / PLAN, msgspec.json.encode(planned))
        if not (self.run_dir / store.MANIFEST).exists():
            store.write_manifest(self.run_dir, manifest)

    def _manifest(self, planned: Planned) -> Manifest:
        from conformance import provenance

        assert self.run_dir is not None
        hello = self.supervisor.start()
        return Manifest(
            run=self.run_dir.resolve().name,
            started=self.started,
            suites=sorted(planned.cases),
            backend=hello.backend,
            capabilities=hello.capabilities,
            options=msgspec.to_builtins(self.settings),
            versions={**hello.versions, "backend": hello.version},
            revision=provenance.revision(),
            environment=hello.environment,
            suite_hash=provenance.hash_of(case for cases in planned.cases.values() for case in cases),
            suite_facts={listing.name: listing.facts for listing in self._listings.values()},
        )

    # ------------------------------------------------------------------------------------------------------ running

    def run(self, suite: str, case: Case) -> list[Judged]:
        """Run a case, or what a resumed run lacks of it; all its records in the order of the samples, judged.

        Raises `isolation.CannotStart` when the backend, which could start before, no longer can.
        """
        writer = self._writer_of(suite)
        done, samples = self._earlier(suite, case, writer)
        if samples is None or len(done) < samples:
            records = self.supervisor.run_case(suite, case, writer, skip=frozenset(done))
            done |= {record.index: record for record in records}
        return [Judged(record, writer.judge(record)) for _, record in sorted(done.items())]

    def close(self) -> float:
        """Stop all children; returns the CPU seconds that this process and they have used."""
        self.supervisor.close()
        self._tidy()
        if self._writer is not None:
            self._writer.file.close()
        return sum(
            usage.ru_utime + usage.ru_stime
            for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )

    def _tidy(self) -> None:
        """Leave no directory behind in which there is nothing to read."""
        if self.run_dir is not None and not (self.run_dir / PLAN).exists():
            with contextlib.suppress(OSError):
                if not self.log.stat().st_size:
                    self.log.unlink()
                self.run_dir.rmdir()

    def _writer_of(self, suite: str) -> _Writer:
        assert self.run_dir is not None
        if self._writer is None:
            self._writer = _Writer(store.RunWriter(self.run_dir, self.worker), self.torch_version)
        self._writer.expectations = self._expectations[suite]
        return self._writer

    def _earlier(self, suite: str, case: Case, writer: _Writer) -> tuple[dict[int, Record], int | None]:
        """Records by index that an earlier process made of the case, and how many samples it has, if known.

        A sample that was in flight when a whole run was cut short is run again. One that was in flight when a worker
        was killed during this run is not, it may have been the cause: it gets an `infra` record that says so.
        """
        assert self.run_dir is not None
        killed = _is_listed(self.run_dir / REDO, str(case))
        if killed:
            log = store.read_log(self.run_dir)
        elif self._history is not None:
            log = self._history
        else:
            return {}, None
        done = {record.index: record for record in log.records if record.case == str(case)}
        if killed:
            for start in map(log.started.__getitem__, log.in_flight):
                started_case, index = Case.parse(start.sample)
                if started_case == case and index is not None:
                    done[index] = self._of_killed_worker(suite, case, index, start)
                    writer.record(done[index])
        else:
            done = {index: record for index, record in done.items() if record.outcome is not Outcome.INFRA}
        ended = log.cases.get(str(case))
        return done, ended.samples if ended else None

    def _of_killed_worker(self, suite: str, case: Case, index: int, start: store.Started) -> Record:
        return Record.of(
            case,
            index,
            suite=self._listings[suite].name,
            backend=self.backend,
            outcome=Outcome.INFRA,
            seed=self.settings.options.seed,
            message=f"worker {start.worker} was killed from outside while this sample ran",
            reason="not run again, because it may be the cause; --resume does",
            worker=start.worker,
            started=start.at,
        )


class _Writer:
    """Writes into the run what the supervisor reports, with the expectation that matched."""

    def __init__(self, file: store.RunWriter, torch_version: str) -> None:
        self.file = file
        self.torch_version = torch_version
        self.expectations = expectations.Expectations(Path())

    def judge(self, record: Record) -> expectations.Verdict:
        return self.expectations.match(record, self.torch_version)

    def start(self, sample: str) -> None:
        self.file.start(sample)

    def record(self, record: Record) -> None:
        record.expectation = self.judge(record).label
        self.file.record(record)

    def case_done(self, case: str, samples: int = 0, reason: str = "") -> None:
        self.file.case_done(case, samples, reason or ("" if samples else NO_SAMPLES))


def holds_run(run_dir: Path) -> bool:
    """Whether a directory has results in it already."""
    return (run_dir / PLAN).exists() or any(run_dir.glob(store.WORKER))


def read_plan(run_dir: Path) -> Planned | None:
    """What the run set out to do; None when it never came so far."""
    try:
        return msgspec.json.decode((run_dir / PLAN).read_bytes(), type=Planned)
    except FileNotFoundError:
        return None


def list_for_redo(run_dir: Path, case: str) -> None:
    """Say that a case lost its worker and is going to be run again, by another one."""
    with (run_dir / REDO).open("a") as file:
        file.write(case + "\n")


def _is_listed(path: Path, line: str) -> bool:
    return path.exists() and line in path.read_text().splitlines()


def _write_once(path: Path, content: bytes) -> None:
    if not path.exists():
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_bytes(content)
        scratch.replace(path)
