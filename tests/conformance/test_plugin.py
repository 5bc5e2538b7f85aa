"""Whole pytest runs over a suite without torch, each in its own process as a user would start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import psutil
import pytest

from conformance import session, store
from conformance.outcomes import Outcome, Stage

FAKES = Path(__file__).parent / "fakes" / "suites.py"
BACKEND = f"{FAKES}:FakeBackend"


class Place:
    """A directory with a test file in it, and pytest to run there."""

    def __init__(self, path: Path, suite: str) -> None:
        self.path = path
        (path / "test_sweep.py").write_text(
            f"from conformance.plugin import SuiteItems\n\nsweep = SuiteItems({f'{FAKES}:{suite}'!r})\n"
        )
        (path / "pytest.ini").write_text("[pytest]\n")

    def command(self, *arguments: str, backend: str | None = BACKEND) -> list[str]:
        with_backend = ["--backend", backend] if backend else []
        plugins = ["-p", "conformance.plugin", "-p", "xdist.plugin", "-p", "no:cacheprovider"]
        return [sys.executable, "-m", "pytest", *plugins, *with_backend, *arguments]

    def environment(self) -> dict[str, str]:
        ours = ("PYTEST_", "COV_", "CONFORMANCE_")
        ci = ("CI", "BUILD_NUMBER")  # with these, pytest repeats whole failures in its last lines
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours) and name not in ci}
        return kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # importing the others takes a second a process

    def run(self, *arguments: str, backend: str | None = BACKEND) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments, backend=backend),
            cwd=self.path,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.path,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # a shell starts what it puts into the background deaf to Ctrl-C, and so would be what we start
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def only_run(self) -> Path:
        (run,) = (self.path / "runs").iterdir()
        return run

    def expect(self, *entries: str) -> None:
        (self.path / "expectations").mkdir(exist_ok=True)
        text = "\n".join(f"[[expect]]\n{entry}\n" for entry in entries)
        (self.path / "expectations" / "fake.toml").write_text(text)


@pytest.fixture
def place(tmp_path):
    return lambda suite: Place(tmp_path, suite)


def sample(subject: str, index: int) -> str:
    return f"fake:{subject}:float32:static:fwd:samples#{index}"


# ---------------------------------------------------------------------------------------------------------- torture

KILLED = {
    "segfault": Outcome.CRASH,
    "segfault_without_handler": Outcome.CRASH,
    "noise_then_segfault": Outcome.CRASH,
    "close_everything": Outcome.CRASH,
    "abort": Outcome.CRASH,
    "exit3": Outcome.CRASH,
    "exit0": Outcome.CRASH,
    "sigkill": Outcome.CRASH,
    "sigterm": Outcome.CRASH,
    "sigfpe": Outcome.CRASH,
    "sigbus": Outcome.CRASH,
    "sigill": Outcome.CRASH,
    "killpg": Outcome.CRASH,
    "leave_children": Outcome.CRASH,
    "garbage_on_every_socket": Outcome.CRASH,
    "build_segfault": Outcome.CRASH,
    "bad_alloc": Outcome.OOM,
    "eat_shared_memory": Outcome.OOM,
    "busy": Outcome.TIMEOUT,
    "sleep": Outcome.TIMEOUT,
    "hang_in_c_with_signals_blocked": Outcome.TIMEOUT,
    "stop": Outcome.TIMEOUT,
    "build_hang": Outcome.TIMEOUT,
    "kill_zygote": Outcome.INFRA,
}
"""Deeds that cost the process, and what they must be recorded as."""
OTHERS = {
    "eat_private_memory": Outcome.OOM,
    "c10_allocation": Outcome.OOM,
    "raises": Outcome.ERROR,
    "poison": Outcome.ERROR,
    "point_to_output": Outcome.ERROR,
    "sys_exit": Outcome.ERROR,
    "keyboard_interrupt": Outcome.ERROR,
    "build_raises": Outcome.ERROR,
    "wrong": Outcome.WRONG,
    "unsupported": Outcome.UNSUPPORTED,
    "skipped": Outcome.SKIPPED,
    "build_not_possible": Outcome.SKIPPED,
    "recurse": None,  # a stack overflow or a hang, depending on the size of the stack
}
SKIPPED = {deed for deed, outcome in OTHERS.items() if outcome is Outcome.SKIPPED}
HARMLESS = ("fine", "slow", "huge_output", "fork_and_return", "map_and_leave", "fill_and_leave", "suffer", "build_fine")


@pytest.fixture(scope="module", params=[(), ("-n", "2")], ids=["one process", "two workers"])
def torture(request, tmp_path_factory):
    made = Place(tmp_path_factory.mktemp("torture"), "Torture")
    began = time.monotonic()
    done = made.run(*request.param, "--sample-timeout", "1.5", "--memory-limit", "128M", "--junitxml", "junit.xml")
    return made, done, time.monotonic() - began


def test_torture_loses_nothing(torture):
    made, done, seconds = torture
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    records = {record.sample: record for record in store.read(made.only_run())}
    assert sum(len(KILLED) for _ in "x") >= 20
    for deed, outcome in {**KILLED, **OTHERS}.items():
        culprit = records.pop(sample(f"do_{deed}", 1))
        assert outcome is None or culprit.outcome is outcome, (deed, culprit)
        if deed.startswith("build_") and deed not in SKIPPED:
            assert culprit.stage is Stage.BUILD
    assert {record.outcome for record in records.values()} == {Outcome.PASS}
    deeds = [*KILLED, *OTHERS, *HARMLESS]
    cut_short = {deed for deed in deeds if deed.startswith("build_") and deed != "build_fine"}
    whole = [deed for deed in deeds if deed not in cut_short]
    assert len(records) == len(deeds) + len(whole) + len(HARMLESS) + 20 * 5
    assert seconds < 60, "40 s on two free cores"


def test_torture_is_accounted_for(torture):
    made, done, _ = torture
    accounting = store.read_manifest(made.only_run()).accounting
    cases = len(KILLED) + len(OTHERS) + len(HARMLESS) + 20
    assert accounting.cases_collected == accounting.cases_run == cases
    assert accounting.samples_lost == [sample("do_kill_zygote", 1)], "infra is no result"
    assert accounting.samples_skipped == {"no reason given": 1, "needs the package natten": 1}
    assert f"cases: {cases} collected = {cases} run + 0 skipped + 0 lost" in done.stdout
    assert f"unexpected: {len(KILLED) + len(OTHERS) - len(SKIPPED)} samples" in done.stdout


def test_torture_makes_no_noise(torture):
    made, done, _ = torture
    for words in ("Fatal Python error", "the last words of this sample", "noise noise"):
        assert words not in done.stdout + done.stderr
    logs = "".join(path.read_text(errors="replace") for path in made.only_run().glob("*.log"))
    assert "the last words of this sample" in logs


def test_torture_fails_the_items_that_it_should(torture):
    _, done, _ = torture
    failed = {
        line.split("samples")[0].split(":")[-5] for line in done.stdout.splitlines() if line.startswith("FAILED ")
    }
    assert failed == {f"do_{deed}" for deed in [*KILLED, *OTHERS] if deed not in SKIPPED}
    assert "Traceback" not in done.stdout
    assert f"reproduce: conformance repro '{sample('do_segfault', 1)}' --backend {BACKEND}" in done.stdout


def test_torture_in_junit(torture):
    made, _, _ = torture
    cases = {case.get("name"): case for case in ElementTree.parse(made.path / "junit.xml").getroot().iter("testcase")}
    assert len(cases) == len(KILLED) + len(OTHERS) + len(HARMLESS) + 20
    crash = cases["fake:do_segfault:float32:static:fwd:samples"]
    properties = {p.get("name"): p.get("value") for p in crash.iter("property")}
    assert properties["#0.outcome"] == "pass"
    assert properties["#0.kernels"] == "1"
    assert properties["#1.outcome"] == "crash"
    assert properties["#1.stage"] == "run"
    assert properties["#1.fingerprint"] == "crash:SIGSEGV in string_at@run:do_segfault"
    assert Counter(child.tag for case in cases.values() for child in case)["error"] == 0


def test_torture_names_its_run(torture):
    made, done, _ = torture
    run = made.only_run()
    assert run.name.endswith("-FakeBackend-smoke")
    assert f"results: {run}" in done.stdout
    manifest = store.read_manifest(run)
    assert (manifest.backend, manifest.suites) == ("fake", ["fake"])
    assert manifest.wall_s > 0
    assert manifest.cpu_s > 0


# ----------------------------------------------------------------------------------------------- killed from outside


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)
    return found


def announced(run: Path, text: str) -> Path | None:
    """The log of the worker that has announced a sample."""
    return next((path for path in run.glob("worker-*.jsonl") if text in path.read_text()), None)


def worker_that_writes(log: Path, root: int) -> int:
    for process in psutil.Process(root).children(recursive=True):
        if str(log) in {file.path for file in process.open_files()} and "child" not in " ".join(process.cmdline()):
            return process.pid
    raise AssertionError(f"nobody writes {log}")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_killed_from_outside(place, workers):
    made = place("Slow")
    run = made.path / "run"
    running = made.start("-n", str(workers), "--run-dir", str(run))
    log = until(lambda: announced(run, sample("slow_1", 2)))
    victim = psutil.Process(worker_that_writes(log, running.pid))
    family = [victim, *victim.children(recursive=True)]
    victim.kill()
    out, _ = running.communicate(timeout=100)
    assert running.returncode == pytest.ExitCode.TESTS_FAILED, out
    assert not psutil.wait_procs(family, timeout=5)[1]
    records = store.read(run)
    assert len(records) == 4 * 5
    infra = [record for record in records if record.outcome is not Outcome.PASS]
    name = log.stem.removeprefix("worker-")
    assert [(r.outcome, r.worker, r.message) for r in infra] == [
        (Outcome.INFRA, name, f"worker {name} was killed from outside while this sample ran")
    ]
    assert f"{infra[0].sample}: infra" in out
    assert "1 failed, 3 passed, 1 rescheduled" in out
    accounting = store.read_manifest(run).accounting
    assert (accounting.cases_run, accounting.cases_lost) == (4, [])
    assert accounting.samples_lost == [infra[0].sample]
    # What our environment failed is what --resume runs again.
    resumed = made.run("--resume", str(run))
    assert resumed.returncode == 0, resumed.stdout
    assert {record.outcome for record in store.read(run)} == {Outcome.PASS}
    assert store.read_manifest(run).complete


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "two workers"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_cut_short_is_resumed(place, how, workers):
    made = place("Slower")
    run = made.path / "run"
    running = made.start("--run-dir", str(run), *workers)
    until(lambda: announced(run, sample("slow_0", 2)))
    family = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(how)
    out, _ = running.communicate(timeout=60)
    assert not psutil.wait_procs(family, timeout=10)[1], "everything ends with the process that was cut short"
    before = store.read_log(run)
    assert 2 <= len(before.records) < 36
    assert workers or len(before.in_flight) == 1  # workers end the case that they are in
    if how is signal.SIGINT:
        assert running.returncode == pytest.ExitCode.INTERRUPTED
        assert "incomplete; go on with --resume" in out
    assert not store.read_manifest(run).complete
    for _ in range(1 if workers else 2):  # the second time there is nothing left to run
        done = made.run("--resume", str(run), *workers, backend=None)
        assert done.returncode == 0, done.stdout
        assert "12 passed" in done.stdout
        assert len(store.read(run)) == 36
        assert store.read_manifest(run).complete
    lines = [line for log in run.glob("worker-*.jsonl") for line in log.read_text().splitlines()]
    starts = Counter(line.split('"sample":"')[1].split('"')[0] for line in lines if '"event":"start"' in line)
    again = {name for name, times in starts.items() if times > 1}
    assert again == set(before.in_flight), "only what was in flight is run again"


# ------------------------------------------------------------------------------------------------------- expectations


def test_expected_failures_run_and_xfail(place):
    made = place("Mixed")
    made.expect(
        'case = "fake:wrong:*#1"\noutcome = "wrong"\nfingerprint = "fake:this sample is wrong"\nissue = "https://x.test/1"',
        'case = "fake:crash:*#0"\noutcome = "crash"\nissue = "https://x.test/2"',
    )
    done = made.run("-rx")
    assert done.returncode == 0, done.stdout
    assert "2 passed, 1 skipped, 2 xfailed" in done.stdout
    assert "1 of 2 samples: 1 wrong (https://x.test/1)" in done.stdout
    found = {record.sample: record.expectation for record in store.read(made.only_run())}
    assert found[sample("wrong", 1)] == "https://x.test/1"
    assert found[sample("wrong", 0)] == ""


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('case = "fake:fine:*"\noutcome = "wrong"', ["passes, but", "fake.toml:1", "narrow `case"]),
        ('case = "fake:wrong:*#1"\noutcome = "crash"', ["but", "expects `crash`", "[[expect]]", 'outcome = "wrong"']),
        ('case = "fake:wrong:*#1"\noutcome = "wrong"\nexpires = 2001-01-01', ["expired on 2001-01-01", "`expires`"]),
    ],
)
def test_what_is_not_as_expected_fails_with_the_edit_to_make(place, entry, words):
    made = place("Mixed")
    made.expect(entry)
    done = made.run("-k", "wrong or fine")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    for word in words:
        assert word in done.stdout


def test_many_failures_of_a_case_are_told_briefly(place):
    done = place("Bad").run()
    assert done.stdout.count("if it is known, add to") == 5
    assert done.stdout.count("wrong at run") == 30


# ---------------------------------------------------------------------------------------------------- mistakes, limits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dtype", "flota16"], "--dtype: 'flota16' is unknown; did you mean 'float16'?"),
        (["--expectations", "nowhere.toml"], "--expectations: there is no file nowhere.toml"),
        (["--expectations", "bad.toml"], "bad.toml:2: `case` is missing"),
        (["--resume", "nowhere", "-n", "2"], "no run 'nowhere'"),
        (["--run-dir", "used", "-n", "2"], "used holds a run already; --resume goes on with it"),
        (["--run-dir", "a", "--resume", "used"], "--run-dir and --resume exclude each other"),
    ],
)
def test_a_mistake_is_one_line(place, arguments, words):
    made = place("Mixed")
    (made.path / "bad.toml").write_text('# one\n[[expect]]\noutcome = "wrong"\n')
    (made.path / "used").mkdir()
    (made.path / "used" / session.PLAN).write_text("{}")
    done = made.run(*arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert words in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert not (made.path / "runs").exists()


def test_an_unknown_backend_is_one_line(place):
    done = place("Mixed").run(backend="inductro")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no backend 'inductro': did you mean 'inductor'?" in done.stderr


@pytest.mark.parametrize(
    ("backend", "suite", "arguments", "words"),
    [
        (f"{FAKES}:Unavailable", "Mixed", [], "is not available here: no such card in this machine"),
        (f"{FAKES}:Unimportable", "Mixed", ["-n", "2"], "ImportError: libfake.so"),
        (f"{FAKES}:DiesInSetup", "Mixed", [], "its process died of SIGSEGV while it was set up"),
        (BACKEND, "Broken", ["-n", "2"], "RuntimeError: this suite has no cases today"),
        (BACKEND, "Mixed", ["--op", "nothing*"], "--op nothing* selects no case of the suite 'fake'"),
        (BACKEND, "Mixed", ["--op", "nothing*", "-n", "2"], "--op nothing* selects no case of the suite 'fake'"),
        (BACKEND, "Mixed", ["--suite", "ops"], "--suite leaves out"),
        (BACKEND, "Mixed", ["--suite", "ops", "-n", "2"], "--suite leaves out"),
    ],
)
def test_what_cannot_start_is_one_error(place, backend, suite, arguments, words):
    done = place(suite).run(*arguments, backend=backend)
    assert done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert words in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("ERROR collecting") == 1


def test_a_selection_that_one_of_two_suites_has_is_no_mistake(place):
    made = place("Mixed")
    (made.path / "test_other.py").write_text(
        f"from conformance.plugin import SuiteItems\n\nother = SuiteItems({f'{FAKES}:Bad'!r})\n"
    )
    done = made.run("--op", "fine")
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "1 passed" in done.stdout


def test_resuming_with_other_options_is_refused(place):
    made = place("Mixed")
    made.run("--run-dir", "run", "--op", "fine")
    done = made.run("--resume", "run", "--op", "wrong")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--op: the run to resume was made with fine, not wrong; leave it out" in done.stderr


def test_a_run_of_which_nothing_passes_fails_even_if_expected(place):
    made = place("Bad")
    made.expect('case = "fake:*"\noutcome = "wrong"')
    done = made.run()
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "PROBLEM: nothing passes at all (30 wrong)" in done.stdout


# ----------------------------------------------------------------------------------------------- selecting, being inert


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (["-k", "innocent_1 and float32 and static and not slow"], 11),
        (["-k", "innocent_3 and float16"], 0),
        (["test_sweep.py::sweep::fake:innocent_7:float32:static:fwd:samples"], 1),
        (["--op", "innocent_*"], 20),
        (["--op", "innocent_1,innocent_2", "--op", "innocent_3"], 3),
        (["-m", "conformance", "--op", "innocent_5"], 1),
        (["-m", "not conformance"], 0),
    ],
)
def test_selecting(place, arguments, passed):
    done = place("Torture").run("-q", *arguments)
    expected = f"{passed} passed" if passed else "deselected"
    assert expected in done.stdout
    assert done.returncode == (0 if passed else pytest.ExitCode.NO_TESTS_COLLECTED)


def test_samples_can_be_capped(place):
    made = place("Torture")
    made.run("--op", "innocent_5", "--max-samples", "2", "--run-dir", "run")
    assert len(store.read(made.path / "run")) == 2


def test_collecting_runs_nothing(place):
    made = place("Torture")
    done = made.run("--collect-only", "-q")
    assert done.returncode == 0
    assert "test_sweep.py::sweep::fake:do_segfault:float32:static:fwd:samples" in done.stdout
    assert not (made.path / "runs").exists()


PLAIN_TEST = """
import sys

def test_nothing_of_ours_is_here():
    ours = {name for name in sys.modules if name.startswith("conformance.")}
    assert ours <= {"conformance.plugin", "conformance.options"}
    assert "torch" not in sys.modules
    assert "msgspec" not in sys.modules
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_other_test_runs_are_left_alone(tmp_path, place, workers):
    made = place("Mixed")
    (made.path / "test_sweep.py").write_text(PLAIN_TEST)
    done = made.run(*workers, backend=None)
    assert done.returncode == 0, done.stdout
    assert "conformance ==" not in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == [
        "pytest.ini",
        "test_sweep.py",
    ]


def test_options_of_others_come_first(place):
    made = place("Mixed")
    (made.path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--device', default='theirs')\n"
        "    parser.getgroup('x').addoption('--seed', default='7')\n"
    )
    (made.path / "test_theirs.py").write_text(
        "def test_theirs(pytestconfig):\n    assert pytestconfig.getoption('device') == 'cuda'\n"
    )
    done = made.run("--device", "cuda", "test_theirs.py", backend=None)
    assert done.returncode == 0, done.stdout + done.stderr
    done = made.run("--conformance-seed", "3", "--op", "fine", "test_sweep.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert store.read(made.only_run())[0].seed == 3


def test_auto_means_the_cores_that_we_may_use(place):
    made = place("Mixed")
    done = made.run("-n", "auto", "--op", "fine")
    assert f"{len(os.sched_getaffinity(0))} workers [" in done.stdout.replace("1 worker [", "1 workers [")


def test_quiet_means_quiet(place):
    done = place("Mixed").run("--op", "fine", "-q")
    assert "elapsed" not in done.stdout
