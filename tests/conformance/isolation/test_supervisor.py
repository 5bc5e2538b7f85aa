"""Whatever a sample does to its process is recorded as its own, and every other sample runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from conformance.cases import Case, Direction, Options, ShapeMode
from conformance.isolation.child import Plan
from conformance.isolation.supervisor import CannotStart, Limits, Supervisor
from conformance.outcomes import Outcome, Stage
from conformance.records import Record

FAKES = Path(__file__).parent.parent / "fakes" / "suites.py"
TORTURE = f"{FAKES}:Torture"
LIMITS = Limits(seconds=1.5, memory=128 << 20)


class Log:
    """Stands in for `store.RunWriter` and checks the order of what it is told."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.records: list[Record] = []
        self.done: dict[str, int] = {}

    def start(self, sample: str) -> None:
        self.started.append(sample)

    def record(self, record: Record) -> None:
        assert record.sample in self.started, "a sample is announced before it is recorded"
        self.records.append(record)

    def case_done(self, case: str, samples: int = 0, reason: str = "") -> None:
        self.done[case] = samples


def plan(backend: str = "FakeBackend", **fields: object) -> Plan:
    return Plan(backend=f"{FAKES}:{backend}", **fields)


def case(subject: str) -> Case:
    return Case("fake", subject, "float32", ShapeMode.STATIC, Direction.FORWARD)


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory):
    with Supervisor(plan(), Options(), log=tmp_path_factory.mktemp("log") / "log", limits=LIMITS, worker="w7") as made:
        made.cases(TORTURE)
        yield made


def run(supervisor: Supervisor, deed: str, **arguments: object) -> tuple[list[Record], Log]:
    log = Log()
    return supervisor.run_case(TORTURE, case(f"do_{deed}"), log, **arguments), log


DEATHS = {
    "segfault": (Outcome.CRASH, "SIGSEGV", None),
    "segfault_without_handler": (Outcome.CRASH, "SIGSEGV", None),
    "noise_then_segfault": (Outcome.CRASH, "SIGSEGV", None),
    "close_everything": (Outcome.CRASH, "SIGSEGV", None),
    "abort": (Outcome.CRASH, "SIGABRT", None),
    "exit3": (Outcome.CRASH, "", 3),
    "exit0": (Outcome.CRASH, "", 0),
    "sigkill": (Outcome.CRASH, "SIGKILL", None),
    "sigterm": (Outcome.CRASH, "SIGTERM", None),
    "sigfpe": (Outcome.CRASH, "SIGFPE", None),
    "sigbus": (Outcome.CRASH, "SIGBUS", None),
    "sigill": (Outcome.CRASH, "SIGILL", None),
    "killpg": (Outcome.CRASH, "SIGKILL", None),
    "leave_children": (Outcome.CRASH, "SIGKILL", None),
    "garbage_on_every_socket": (Outcome.CRASH, "SIGKILL", None),
    "busy": (Outcome.TIMEOUT, "SIGKILL", None),
    "hang_in_c_with_signals_blocked": (Outcome.TIMEOUT, "SIGKILL", None),
    "stop": (Outcome.TIMEOUT, "SIGKILL", None),
    "eat_shared_memory": (Outcome.OOM, "SIGKILL", None),
    "bad_alloc": (Outcome.OOM, "SIGABRT", None),
    "kill_zygote": (Outcome.INFRA, "", None),
}
SURVIVED = {
    "eat_private_memory": Outcome.OOM,
    "c10_allocation": Outcome.OOM,
    "raises": Outcome.ERROR,
    "sys_exit": Outcome.ERROR,
    "keyboard_interrupt": Outcome.ERROR,
    "huge_output": Outcome.PASS,
    "fork_and_return": Outcome.PASS,
    "map_and_leave": Outcome.PASS,
    "fill_and_leave": Outcome.PASS,
    "poison": Outcome.ERROR,
    "suffer": Outcome.PASS,
    "point_to_output": Outcome.ERROR,
    "fine": Outcome.PASS,
}


@pytest.mark.parametrize("deed", [*DEATHS, *SURVIVED])
def test_a_deed_costs_its_own_sample_only(supervisor, deed):
    records, log = run(supervisor, deed)
    assert [record.index for record in records] == [0, 1, 2]
    assert log.started == [record.sample for record in records] == [case(f"do_{deed}").sample_id(i) for i in range(3)]
    assert log.records == records
    assert log.done == {str(case(f"do_{deed}")): 3}
    before, culprit, after = records
    assert (before.outcome, after.outcome) == (Outcome.PASS, Outcome.PASS)
    assert culprit.worker == "w7"
    assert culprit.digest == f"digest-{deed}"
    if deed in DEATHS:
        assert (culprit.outcome, culprit.signal, culprit.exit_code) == DEATHS[deed]
        assert culprit.stage is Stage.RUN
        assert culprit.message
    else:
        assert culprit.outcome is SURVIVED[deed]


def test_a_crash_says_where(supervisor):
    records, _ = run(supervisor, "noise_then_segfault")
    assert "in string_at" in records[1].message
    assert records[1].fingerprint == "crash:SIGSEGV in string_at@run:do_noise_then_segfault"
    assert "the last words of this sample" in records[1].traceback
    assert "_noise_then_segfault" in records[1].traceback


@pytest.mark.parametrize(
    ("deed", "function"),
    [("busy", "_busy"), ("hang_in_c_with_signals_blocked", "_hang_in_c_with_signals_blocked")],
)
def test_a_hang_says_where(supervisor, deed, function):
    records, _ = run(supervisor, deed)
    assert function in records[1].traceback
    assert records[1].fingerprint == f"timeout:{function}@run:do_{deed}"


@pytest.mark.parametrize(
    ("deed", "outcome"),
    [("build_raises", Outcome.ERROR), ("build_segfault", Outcome.CRASH), ("build_hang", Outcome.TIMEOUT)],
)
def test_a_sample_that_cannot_be_built_ends_its_case(supervisor, deed, outcome):
    records, log = run(supervisor, deed)
    assert [record.outcome for record in records] == [Outcome.PASS, outcome]
    assert records[1].stage is Stage.BUILD
    assert "no sample after it" in records[1].reason or "none after it" in records[1].reason
    assert log.done == {str(case(f"do_{deed}")): 2}


def test_what_cannot_be_built_here_is_skipped_with_the_reason(supervisor):
    records, log = run(supervisor, "build_not_possible")
    assert [record.outcome for record in records] == [Outcome.PASS, Outcome.SKIPPED]
    assert records[1].reason == "needs the package natten"
    assert log.done == {str(case("do_build_not_possible")): 2}


def test_a_crash_in_building_counts_only_in_a_fresh_process(supervisor):
    records, _ = run(supervisor, "build_segfault")
    assert "second try: while this sample was built after others" in records[1].reason


@pytest.mark.parametrize("deed", ["segfault", "fine"])
def test_samples_that_are_done_are_not_run_again(supervisor, deed):
    records, log = run(supervisor, deed, skip=frozenset({0, 1}))
    assert [record.index for record in records] == [2]
    assert log.done == {str(case(f"do_{deed}")): 3}


def test_what_a_dead_sample_started_is_killed(supervisor):
    run(supervisor, "leave_children")
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] in (["sleep", "3137"], ["sleep", "3138"])
    ]


def test_huge_output_is_cut(tmp_path):
    log = tmp_path / "log"
    with Supervisor(plan(), Options(), log=log, limits=LIMITS) as supervisor:
        supervisor.cases(TORTURE)
        run(supervisor, "huge_output")
    assert log.stat().st_size < 2 << 20
    assert b"left out" in log.read_bytes()


def test_one_runner_serves_many_cases(tmp_path):
    with Supervisor(plan(), Options(), log=tmp_path / "log", limits=LIMITS) as supervisor:
        supervisor.cases(TORTURE)
        for n in range(10):
            assert len(supervisor.run_case(TORTURE, case(f"innocent_{n}"), Log())) == 5
        assert supervisor.forks == 1


def test_a_runner_is_replaced_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr("conformance.isolation.supervisor.RECYCLE_CASES", 3)
    with Supervisor(plan(), Options(), log=tmp_path / "log", limits=LIMITS) as supervisor:
        supervisor.cases(TORTURE)
        for n in range(7):
            assert len(supervisor.run_case(TORTURE, case(f"innocent_{n}"), Log())) == 5
        assert supervisor.forks == 3


def test_an_error_while_running_does_not_spoil_what_follows(tmp_path):
    suite = f"{FAKES}:Poisoned"
    with Supervisor(plan(), Options(), log=tmp_path / "log", limits=LIMITS) as supervisor:
        supervisor.cases(suite)
        log = Log()
        first = supervisor.run_case(suite, case("first"), log)
        second = supervisor.run_case(suite, case("second"), log)
    assert [record.outcome for record in first] == [Outcome.PASS, Outcome.ERROR, Outcome.PASS, Outcome.ERROR]
    assert [record.outcome for record in second] == [Outcome.PASS]
    assert log.done == {str(case("first")): 4, str(case("second")): 1}


def test_a_message_that_points_to_the_output_is_given_what_was_printed_there(supervisor):
    records, _ = run(supervisor, "point_to_output")
    assert "error: failed to legalize operation 'torch.aten.take'" in records[1].message
    said = "RuntimeError:JIT compilation failed. See diagnostics: failed to legalize operation 'torch.aten.take'"
    assert records[1].fingerprint == f"{said}@run:do_point_to_output"


def test_the_memory_that_samples_leave_behind_does_not_count_against_later_ones(tmp_path):
    suite = f"{FAKES}:Leaky"
    with Supervisor(plan(), Options(), log=tmp_path / "log", limits=LIMITS) as supervisor:
        supervisor.cases(suite)
        records = supervisor.run_case(suite, case("leaky"), Log())
    assert [record.outcome for record in records] == [*[Outcome.PASS] * 5, Outcome.OOM, Outcome.PASS]


@pytest.mark.parametrize(("limit", "said"), [(None, "160 MiB"), (128 << 20, "128 MiB")])
def test_a_suite_says_what_memory_its_samples_may_take_unless_the_user_does(tmp_path, limit, said):
    suite = f"{FAKES}:Frugal"
    with Supervisor(plan(), Options(), log=tmp_path / "log", limits=Limits(memory=limit)) as supervisor:
        supervisor.cases(suite)
        hungry, fine = supervisor.run_case(suite, case("hungry"), Log())
        assert said == f"{supervisor._memory >> 20} MiB"
    assert (hungry.outcome, fine.outcome) == (Outcome.OOM, Outcome.PASS)


@pytest.mark.parametrize("backend", ["CrashesInReset", "RaisesInReset", "HangsInReset"])
def test_what_happens_between_cases_costs_no_sample(tmp_path, backend):
    with Supervisor(plan(backend), Options(), log=tmp_path / "log", limits=LIMITS) as supervisor:
        supervisor.cases(TORTURE)
        for _ in range(2):
            records, log = run(supervisor, "segfault")
            assert [record.outcome for record in records] == [Outcome.PASS, Outcome.CRASH, Outcome.PASS]
            assert log.done == {str(case("do_segfault")): 3}
        assert supervisor.forks == 4


def family(supervisor: Supervisor) -> list[psutil.Process]:
    zygote = psutil.Process(supervisor.start().pid)
    return [zygote, *zygote.children(recursive=True)]


def test_nothing_survives_the_supervisor(tmp_path):
    with Supervisor(plan(), Options(), log=tmp_path / "log", limits=LIMITS) as supervisor:
        supervisor.cases(TORTURE)
        run(supervisor, "fine")
        ours = family(supervisor)
        assert len(ours) == 2
    assert not psutil.wait_procs(ours, timeout=5)[1]


HANGING_WORKER = """
import sys
from pathlib import Path
from conformance.cases import Case, Direction, Options, ShapeMode
from conformance.isolation.child import Plan
from conformance.isolation.supervisor import Limits, Supervisor

fakes, here = sys.argv[1:]

class Log:
    def start(self, sample):
        if sample.endswith("#1"):
            Path(here, "ready").touch()
    def record(self, record): pass

supervisor = Supervisor(Plan(backend=f"{fakes}:FakeBackend"), Options(), log=Path(here, "log"), limits=Limits(1000))
supervisor.cases(f"{fakes}:Torture")
case = Case("fake", "do_hang_in_c_with_signals_blocked", "float32", ShapeMode.STATIC, Direction.FORWARD)
supervisor.run_case(f"{fakes}:Torture", case, Log())
"""


def test_nothing_survives_a_supervisor_that_is_killed(tmp_path):
    """Orphans of a killed pytest worker would eat the machine: zygote and runner die with it, even a hanging one."""
    worker = subprocess.Popen([sys.executable, "-c", HANGING_WORKER, str(FAKES), str(tmp_path)])
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    descendants = psutil.Process(worker.pid).children(recursive=True)
    assert len(descendants) == 2
    worker.kill()
    worker.wait()
    assert not psutil.wait_procs(descendants, timeout=10)[1]


def list_and_run(supervisor: Supervisor) -> None:
    supervisor.cases(TORTURE)
    run(supervisor, "fine")


def test_a_machine_that_cannot_fork_is_one_clear_error(tmp_path):
    supervisor = Supervisor(plan("CannotFork"), Options(), log=tmp_path / "log", limits=LIMITS)
    with supervisor, pytest.raises(CannotStart, match="no process can be forked: the zygote exited with status 1"):
        list_and_run(supervisor)


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("Unavailable", "is not available here: no such card in this machine"),
        ("Unimportable", "cannot be set up: ImportError: libfake.so: cannot open shared object file"),
        ("DiesInSetup", "its process died of SIGSEGV while it was set up"),
        ("Missing", "nothing there is called 'Missing'"),
    ],
)
@pytest.mark.parametrize("fork_safe", [None, False])
def test_a_backend_that_cannot_start_is_one_clear_error(tmp_path, backend, reason, fork_safe):
    supervisor = Supervisor(plan(backend, fork_safe=fork_safe), Options(), log=tmp_path / "log", limits=LIMITS)
    with supervisor, pytest.raises(CannotStart) as raised:
        list_and_run(supervisor)
    if backend == "DiesInSetup" and fork_safe is False:
        reason = "ended or hung while it was set up"
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("suite", "reason"),
    [
        (f"{FAKES}:Missing", "has no 'Missing'"),
        ("/nowhere.py:Suite", "no file /nowhere.py"),
        ("nosuch", "no suite named 'nosuch'"),
        (f"{FAKES}:Broken", "cannot be used: RuntimeError: this suite has no cases today"),
    ],
)
def test_a_suite_that_cannot_be_used_is_one_clear_error(tmp_path, suite, reason):
    with (
        Supervisor(plan(), Options(), log=tmp_path / "log", limits=LIMITS) as supervisor,
        pytest.raises(CannotStart) as raised,
    ):
        supervisor.cases(suite)
    assert reason in str(raised.value)


def test_a_backend_whose_setup_starts_threads_is_set_up_after_the_fork(tmp_path):
    with Supervisor(plan("Threaded"), Options(), log=tmp_path / "log", limits=LIMITS) as supervisor:
        supervisor.cases(TORTURE)
        assert supervisor.start().threads == 1
        records, _ = run(supervisor, "segfault")
    assert [record.outcome for record in records] == [Outcome.PASS, Outcome.CRASH, Outcome.PASS]


def test_the_environment_of_the_backend_is_set_before_the_process_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with Supervisor(plan(), Options(), log=tmp_path / "log", limits=LIMITS) as supervisor:
        environment = supervisor.start().environment
    assert environment["FAKE_BACKEND_VARIABLE"] == "set"
    assert environment["OMP_NUM_THREADS"] == "3", "what the user has set wins"
    assert environment["TORCHINDUCTOR_COMPILE_THREADS"] == "1"


def test_a_zygote_that_is_killed_between_cases_costs_nothing(tmp_path):
    with Supervisor(plan(), Options(), log=tmp_path / "log", limits=LIMITS) as supervisor:
        supervisor.cases(TORTURE)
        run(supervisor, "fine")
        os.kill(supervisor.start().pid, signal.SIGKILL)
        time.sleep(0.1)
        records, _ = run(supervisor, "segfault")
    assert [record.outcome for record in records] == [Outcome.PASS, Outcome.CRASH, Outcome.PASS]
    assert supervisor.restarts == 1
