"""The pytest plugin: turns the cases of a suite into items, and their records into pass, xfail and fail.

Loaded into every pytest run of an environment, so it imports next to nothing and does nothing until a test file
declares a suite:

    from conformance.plugin import SuiteItems

    ops = SuiteItems("ops")  # an entry point of the group conformance.suites, or path/to/file.py:NAME
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance import options

if TYPE_CHECKING:
    from conformance.cases import Case
    from conformance.reporting import Reporter
    from conformance.session import Session
    from conformance.settings import Settings

RUN_DIR = "conformance_run_dir"  # key in what the controller of pytest-xdist tells its workers
CPU_SECONDS = "conformance_cpu_s"  # key in what they tell it
PLAN = "plan.json"  # as in `session`, which is not imported before there is something to run
FOLLOWER = "conformance-follower"  # name of a plugin
COUNTS = "conformance_counts"  # attribute of a report: outcome -> samples
RESCHEDULED = "conformance_rescheduled"  # attribute of the report of an item whose worker was killed
SHOWN = 5  # unexpected samples of an item that are shown in full


class SuiteItems:
    """Declares, at the top level of a test file, that the cases of a suite are collected there."""

    def __init__(self, suite: str) -> None:
        self.suite = suite


_settings = pytest.StashKey["Settings"]()
_run_dir = pytest.StashKey["Path | None"]()
_session = pytest.StashKey["Session"]()
_left_out = pytest.StashKey["list[str]"]()  # suites that `--suite` does not name


# ---------------------------------------------------------------------------------------------------------- options


def pytest_addoption(parser: pytest.Parser) -> None:
    # A conftest of the same environment may have options by our names. Those that take a path must be known before the
    # root directory is determined from what looks like a path; the others can wait until conftests have had their say.
    _register(parser, paths_only=True)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None]:
    yield
    _register(parser, paths_only=False)


def _register(parser: pytest.Parser, *, paths_only: bool) -> None:
    group = parser.getgroup("conformance", "conformance suites")
    # pytest has no question "is this flag taken?", and how it complains of one that is differs between its versions.
    groups = [*getattr(parser, "_groups", ()), getattr(parser, "_anonymous", group)]
    taken = {flag for each in groups for option in each.options for flag in option.names()}
    dests = {option.dest for each in groups for option in each.options}
    options.register(group.addoption, taken, dests, paths_only=paths_only)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "conformance: a case of a conformance suite")
    if _is_in_charge(config):
        config.pluginmanager.register(Follower(config), FOLLOWER)
    if any(getattr(config.option, option.dest, None) is not None for option in options.OPTIONS):
        _settings_of(config)  # a mistake on the command line is said before anything is collected


def _settings_of(config: pytest.Config) -> Settings:
    if _settings not in config.stash:
        from conformance import session, settings, store

        try:
            given = settings.given(config.option)
            base, run_dir = None, None
            if "resume" in given:
                if "run-dir" in given:
                    raise settings.SettingsError("--run-dir and --resume exclude each other: a run stays where it is")
                run_dir = store.resolve(given["resume"])
                plan = session.read_plan(run_dir)
                if plan is None:
                    raise settings.SettingsError(f"--resume: {run_dir} has no {session.PLAN}; start a new run")
                base = plan.settings
                if _is_in_charge(config):
                    (run_dir / session.REDO).unlink(missing_ok=True)
            elif "run-dir" in given:
                run_dir = Path(given["run-dir"])
                if _is_in_charge(config) and session.holds_run(run_dir):
                    raise settings.SettingsError(f"--run-dir: {run_dir} holds a run already; --resume goes on with it")
            config.stash[_settings] = settings.checked(settings.settings_from(given, base))
            config.stash[_run_dir] = run_dir
        except (settings.SettingsError, store.StoreError) as error:
            raise pytest.UsageError(str(error)) from None
    return config.stash[_settings]


def _is_in_charge(config: pytest.Config) -> bool:
    """Whether this process is the one that was started by the user, not a worker of pytest-xdist."""
    return not hasattr(config, "workerinput")


def _run_dir_of(config: pytest.Config) -> Path:
    """Where this run's results go; the controller of pytest-xdist decides for its workers. Nothing is made yet."""
    told = getattr(config, "workerinput", {}).get(RUN_DIR)
    if told is not None:
        return Path(told)
    if config.stash.get(_run_dir, None) is None:
        config.stash[_run_dir] = _new_place(config.option)
    place = config.stash[_run_dir]
    assert place is not None
    return place


def _new_place(option: Any) -> Path:
    """`runs/TIME-BACKEND-TIER`. As `store.new_run` would name it, without its imports: this is part of every run of
    pytest-xdist, and most of them are not ours."""
    backend = (option.conformance_backend or "spyre").rpartition(":")[2]
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    name = re.sub(r"[^\w.-]+", "-", f"{stamp}-{backend}-{option.conformance_tier or 'smoke'}").strip("-")
    root = Path(os.environ.get("CONFORMANCE_RUNS") or "runs").absolute()
    places = (root / f"{name}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(place for place in places if not place.exists())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[RUN_DIR] = str(_run_dir_of(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """`-n auto`: as many as this process may use of the logical cores."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or config.option.numprocesses == "logical":
        return None  # as pytest-xdist does it
    return len(os.sched_getaffinity(0))


# ------------------------------------------------------------------------------------------------------- collecting


def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> pytest.Collector | None:
    if not isinstance(obj, SuiteItems):
        return None
    wanted = collector.config.option.conformance_suite
    if wanted and obj.suite not in [name for text in wanted for name in text.split(",")]:
        collector.config.stash.setdefault(_left_out, []).append(f"--suite leaves out {obj.suite!r}")
        return None
    return SuiteCollector.from_parent(collector, name=name, declared=obj)


def _session_of(config: pytest.Config) -> Session:
    if _session not in config.stash:
        from conformance.session import Session

        run_dir = None if config.option.collectonly else _run_dir_of(config)
        worker = getattr(config, "workerinput", {}).get("workerid", "main")
        resumed = config.option.conformance_resume is not None
        config.stash[_session] = Session(_settings_of(config), run_dir, worker, resumed=resumed)
    return config.stash[_session]


class SuiteCollector(pytest.Collector):
    """The cases of one suite."""

    def __init__(self, *, declared: SuiteItems, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        place, colon, attribute = declared.suite.rpartition(":")
        beside = self.path.parent / place  # a file is looked for beside the test file that names it
        self.suite = f"{beside}:{attribute}" if colon and beside.is_file() else declared.suite
        self.add_marker(pytest.mark.conformance)

    def collect(self) -> Iterator[CaseItem]:
        from conformance.expectations import ExpectationError
        from conformance.isolation.supervisor import CannotStart

        session = _session_of(self.config)
        try:
            listing = session.listing(self.suite)
        except CannotStart as error:
            raise self.CollectError(_with_detail(error, session)) from None
        except ExpectationError as error:
            raise self.CollectError(str(error)) from None
        for case in listing.cases:
            yield CaseItem.from_parent(self, name=str(case), suite=self.suite, case=case)


def _with_detail(error: Any, session: Session) -> str:
    """The reason, and where the traceback is."""
    detail = error.detail.strip()
    if not detail:
        return str(error)
    if session.run_dir is None:
        return f"{error}\n\n{detail}"
    session.supervisor.note(detail)
    # Not the log's own name: pytest-xdist shows one of several equal errors of its workers.
    return f"{error}\n  (traceback in {session.run_dir}/*.log)"


class CaseItem(pytest.Item):
    """One case: passes when every sample ended as expected, xfails when some of that are failures."""

    def __init__(self, *, suite: str, case: Case, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.suite = suite
        self.case = case
        self.counts: dict[str, int] = {}

    def runtest(self) -> None:
        from conformance import settings, verdicts
        from conformance.isolation.supervisor import CannotStart

        session = _session_of(self.config)
        try:
            judged = session.run(self.suite, self.case)
        except CannotStart as error:
            self.session.shouldstop = f"conformance: {error}"
            pytest.fail(_with_detail(error, session), pytrace=False)
        self.counts = verdicts.counts(judged)
        self.user_properties += verdicts.properties(judged)
        verdict, text = verdicts.of_case(judged, shown=SHOWN, flags=settings.repro_flags(session.settings))
        if verdict is verdicts.Verdict.FAIL:
            pytest.fail(text, pytrace=False)
        if verdict is verdicts.Verdict.XFAIL:
            raise pytest.xfail.Exception(text)
        if verdict is verdicts.Verdict.SKIP:
            pytest.skip(text)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.path, None, self.name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if isinstance(item, CaseItem) and call.when == "call":
        setattr(report, COUNTS, item.counts)
        if isinstance(report.longrepr, tuple):  # a skip: say the case, not the line of this file
            report.longrepr = (str(item.path), 0, report.longrepr[2])
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Where no suite has what is selected, say so as an error of collecting."""
    config = session.config
    mistakes = config.stash[_session].mistakes() if _session in config.stash else config.stash.get(_left_out, [])
    if mistakes:
        report = pytest.CollectReport(str(config.rootpath), "failed", longrepr="\n".join(mistakes), result=None)
        session.ihook.pytest_collectreport(report=report)


@pytest.hookimpl(tryfirst=True)  # the plan is there before pytest-xdist tells its controller of the collection
def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    if _session not in config.stash:
        return
    selected = [(item.suite, item.case) for item in session.items if isinstance(item, CaseItem)]
    config.stash[_session].write_plan(selected)


# -------------------------------------------------------------------------------------- progress, lost workers, the end


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if _session not in config.stash:
        return
    cpu_s = config.stash[_session].close()
    follower = config.pluginmanager.get_plugin(FOLLOWER)
    if follower is not None:
        follower.cpu_s += cpu_s
    else:
        getattr(config, "workeroutput", {})[CPU_SECONDS] = cpu_s


class Follower:
    """Hooks of the process that the user started: the only one, or the controller of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.reporter: Reporter | None = None
        self.cpu_s = 0.0

    def _follow(self, items: int) -> None:
        """All is collected. Inert unless that made a run: workers write its plan before they report their items."""
        config = self.config
        if config.option.collectonly:
            return
        run_dir = _run_dir_of(config)
        if self.reporter is None and (run_dir / PLAN).exists():
            from conformance.reporting import Reporter

            terminal = config.pluginmanager.getplugin("terminalreporter")
            quiet = terminal is None or config.option.verbose < 0
            self.reporter = Reporter(run_dir, None if quiet else terminal, verbose=config.option.verbose > 0)
        if self.reporter is not None:
            self.reporter.progress.begin(items)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if _session in self.config.stash:
            self._follow(sum(isinstance(item, CaseItem) for item in session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._follow(len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        counts = getattr(report, COUNTS, None)
        if self.reporter is not None and counts is not None:
            self.reporter.report(report.nodeid, counts)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        status = yield
        if getattr(report, RESCHEDULED, False):
            return "rescheduled", "R", "RESCHEDULED"
        if self.reporter is not None and self.reporter.progress.draws and hasattr(report, COUNTS):
            category, _, word = status
            return category, "", word  # the letters of our items would be written over the progress line
        return status

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """A worker was killed from outside: have another one run the rest of the case, and say what was in flight."""
        from conformance import session
        from conformance.cases import Case

        case = crashitem.rpartition("::")[2]
        try:
            Case.parse(case)
        except ValueError:
            return  # an item of somebody else
        if self.reporter is None:
            return
        session.list_for_redo(self.reporter.run_dir, case)
        try:
            sched.mark_test_pending(crashitem)
        except (
            NotImplementedError
        ):  # a scheduler that cannot: the report stays a failure, accounting names what is lost
            return
        setattr(report, RESCHEDULED, True)
        report.outcome = "rescheduled"  # type: ignore[assignment]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.cpu_s += getattr(node, "workeroutput", {}).get(CPU_SECONDS, 0.0)

    @pytest.hookimpl(trylast=True)  # after pytest-xdist has stopped its workers and the hook above has stopped ours
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.reporter is None:
            return
        self.reporter.cpu_s = self.cpu_s
        interrupted = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        closing = self.reporter.finish(interrupted=interrupted)
        if closing is not None and closing.problems and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.reporter is None or self.reporter.closing is None:
            return
        from conformance import reporting

        terminalreporter.section("conformance")
        for line in reporting.summary(self.reporter.closing, self.reporter.run_dir):
            terminalreporter.write_line(line, red=line.startswith(reporting.PROBLEM))
