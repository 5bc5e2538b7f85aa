"""The conclusions as a table, and climbs of real failures of every kind."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance import ladder
from conformance.backends.compiled import CompiledBackend
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.judgement.judge import judge
from conformance.ladder import BACKEND, DEVICE_EAGER, UPSTREAM_RUNGS, Step, climb, conclude
from conformance.outcomes import Outcome, Owner, Stage
from conformance.reference import make_reference

PASS, WRONG, ERROR, REFUSED = Outcome.PASS, Outcome.WRONG, Outcome.ERROR, Outcome.UNSUPPORTED
RUNGS = [rung for rung, _, _ in UPSTREAM_RUNGS]


def steps(
    *ends: Outcome | tuple[Outcome, str], backend: Outcome | tuple[Outcome, str] | None, eager: Any = None
) -> list:
    """Upstream's rungs in order, then the backend's; an end is an outcome, or one and the error's class."""

    def step(rung: str, end: Any) -> Step:
        return Step(rung, *end) if isinstance(end, tuple) else Step(rung, end)

    made = [step(DEVICE_EAGER, eager)] if eager is not None else []
    made += [step(rung, end) for rung, end in zip(RUNGS, ends, strict=False)]
    return made if backend is None else [*made, step(BACKEND, backend)]


P4 = (PASS, PASS, PASS, PASS)
NO_GXX = (PASS, PASS, PASS, Outcome.INFRA)


@pytest.mark.parametrize(
    ("taken", "stage", "owner"),
    [
        (steps(*P4, backend=WRONG), Stage.COMPARE, Owner.BACKEND),
        (steps(*P4, backend=(ERROR, "KeyError")), Stage.RUN, Owner.BACKEND),
        (steps(WRONG, backend=WRONG), Stage.CAPTURE, Owner.UPSTREAM),
        (steps(PASS, WRONG, backend=WRONG), Stage.AUTOGRAD, Owner.UPSTREAM),
        (steps(PASS, PASS, WRONG, backend=WRONG), Stage.DECOMPOSE, Owner.UPSTREAM),
        (steps(PASS, PASS, PASS, WRONG, backend=WRONG), Stage.LOWER, Owner.UPSTREAM),
        (steps((ERROR, "Unsupported"), backend=(ERROR, "Unsupported")), Stage.CAPTURE, Owner.UPSTREAM),
        (steps((ERROR, "Unsupported"), backend=(ERROR, "KeyError")), Stage.CAPTURE, Owner.UNDETERMINED),
        (steps(PASS, (ERROR, "KeyError"), backend=WRONG), Stage.AUTOGRAD, Owner.UNDETERMINED),
        (steps(backend=WRONG, eager=WRONG), Stage.RUN, Owner.BACKEND),
        (steps(*P4, backend=WRONG, eager=PASS), Stage.COMPARE, Owner.BACKEND),
        (steps(*NO_GXX, backend=WRONG), Stage.COMPARE, Owner.UNDETERMINED),
        (steps(*P4, backend=PASS), None, Owner.UNDETERMINED),
        (steps(WRONG, backend=PASS), None, Owner.UNDETERMINED),
        (steps(WRONG, backend=None), Stage.CAPTURE, Owner.UNDETERMINED),
        (steps(*P4, backend=None), None, Owner.UNDETERMINED),
        (steps(*P4, backend=Outcome.CRASH), Stage.RUN, Owner.BACKEND),
        (steps(Outcome.CRASH, backend=Outcome.CRASH), Stage.CAPTURE, Owner.UPSTREAM),
    ],
)
def test_what_follows(taken: list[Step], stage: Stage | None, owner: Owner) -> None:
    found = conclude(taken)
    assert (found.stage, found.owner) == (stage, owner), found.reason
    assert found.reason


def test_a_dubious_reference_blames_nobody() -> None:
    assert conclude(steps(*P4, backend=WRONG), dubious=True).owner is Owner.UNDETERMINED


def test_inductor_is_no_witness_against_a_backend_that_does_not_use_it() -> None:
    taken = steps(PASS, PASS, PASS, WRONG, backend=WRONG)
    assert conclude(taken, on_inductor=False).owner is Owner.UNDETERMINED
    assert conclude(steps(*NO_GXX, backend=WRONG), on_inductor=False).owner is Owner.BACKEND


def test_the_error_of_the_backend_names_its_stage() -> None:
    taken = [*steps(*P4, backend=None), Step(BACKEND, ERROR, "KeyError", "", Stage.CODEGEN)]
    assert conclude(taken).stage is Stage.CODEGEN


outcomes = st.sampled_from([PASS, WRONG, ERROR, REFUSED, Outcome.CRASH, Outcome.INFRA])


@given(st.lists(outcomes, max_size=4), st.none() | outcomes, st.booleans(), st.booleans())
def test_nobody_is_blamed_without_evidence(ends: list, backend: Any, dubious: bool, on_inductor: bool) -> None:
    found = conclude(steps(*ends, backend=backend), dubious=dubious, on_inductor=on_inductor)
    if found.owner is Owner.UPSTREAM:
        assert backend in ends
        assert not dubious
    if found.owner is Owner.BACKEND:
        assert all(end is PASS for end in ends) or (not on_inductor and set(ends) <= {PASS, Outcome.INFRA})


# --- real climbs ------------------------------------------------------------------------------------------------------


class Adds(CompiledBackend):
    def compile(self, fn: Any, *, dynamic: Any, fullgraph: bool = False) -> Any:
        return lambda *args: fn(*args) + 1


class Dies(CompiledBackend):
    def compile(self, fn: Any, *, dynamic: Any, fullgraph: bool = False) -> Any:
        return lambda *args: os.kill(os.getpid(), signal.SIGSEGV)


class Hangs(CompiledBackend):
    def compile(self, fn: Any, *, dynamic: Any, fullgraph: bool = False) -> Any:
        return lambda *args: time.sleep(60)


class Refuses(CompiledBackend):
    def compile(self, fn: Any, *, dynamic: Any, fullgraph: bool = False) -> Any:
        def backend(gm: Any, inputs: Any) -> Any:
            raise NotImplementedError("sin")

        return torch.compile(fn, backend=backend)


def wrong_when_compiled(x: Any) -> Any:
    return x + 2 if torch.compiler.is_compiling() else x + 1


def dies_when_compiled(x: Any) -> Any:
    if torch.compiler.is_compiling():
        return torch.ops.test_ladder.dies(x)
    return x + 1


def climbed(backend: Any, fn: Any, direction: Direction = Direction.FORWARD, **options: Any) -> ladder.Climb:
    case = Case("op", "case", "float32", ShapeMode.STATIC, direction)
    sample = Sample(0, fn, (torch.randn(3, 4),), {}, NumericalClass.ELEMENTWISE, "", "")
    return climb(case, sample, make_reference(case, sample), backend, judge, **options)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rung that calls the C++ compiler, except where a test asks for it."""
    monkeypatch.setattr(ladder, "UPSTREAM_RUNGS", UPSTREAM_RUNGS[:3])


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("direction", list(Direction))
def test_a_wrong_backend(direction: Direction, isolate: bool) -> None:
    found = climbed(Adds("eager"), torch.sin, direction, isolate=isolate)
    assert (found.owner, found.stage) == (Owner.BACKEND, Stage.COMPARE)
    assert found.rungs == {
        "dynamo": "pass",
        "aot_eager": "pass",
        "aot_eager_decomp_partition": "pass",
        "backend": "wrong",
    }


@pytest.mark.usefixtures("quick")
def test_a_wrong_upstream() -> None:
    found = climbed(CompiledBackend("eager"), wrong_when_compiled)
    assert (found.owner, found.stage) == (Owner.UPSTREAM, Stage.CAPTURE)
    assert found.rungs == {"dynamo": "wrong", "backend": "wrong"}


@pytest.mark.usefixtures("quick")
def test_a_refusal() -> None:
    found = climbed(Refuses("eager"), torch.sin)
    assert (found.owner, found.stage, found.rungs[BACKEND]) == (Owner.BACKEND, Stage.LOWER, "unsupported")


@pytest.mark.usefixtures("quick")
def test_what_the_caller_saw_is_not_run_again() -> None:
    found = climbed(Dies("eager"), torch.sin, failed=Step("", ERROR, "KeyError", "", Stage.CODEGEN))
    assert (found.owner, found.stage, found.rungs[BACKEND]) == (Owner.BACKEND, Stage.CODEGEN, "error")


@pytest.mark.usefixtures("quick")
def test_a_crash_and_a_hang_are_rungs() -> None:
    torch.compile(torch.sin, backend="aot_eager_decomp_partition")(torch.ones(2))  # imports, which forks would each do
    assert climbed(Dies("eager"), torch.sin).rungs[BACKEND] == "crash"
    assert climbed(Hangs("eager"), torch.sin, seconds=10).rungs[BACKEND] == "timeout"


@pytest.mark.usefixtures("quick")
def test_rungs_do_not_wait_for_the_threads_of_the_parent() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = climbed(Adds("eager"), lambda x: torch.sin(x.repeat(100_000, 1)), seconds=20)  # enough for two threads
    finally:
        torch.set_num_threads(threads)
    assert found.rungs["dynamo"] == "pass"


@pytest.mark.usefixtures("quick")
def test_an_upstream_rung_that_crashes() -> None:
    library = torch.library.Library("test_ladder", "FRAGMENT")
    library.define("dies(Tensor x) -> Tensor")
    library.impl("dies", lambda x: os.kill(os.getpid(), signal.SIGABRT), "CPU")
    library.impl("dies", lambda x: torch.empty_like(x), "Meta")
    found = climbed(CompiledBackend("eager"), dies_when_compiled, failed=Step("", Outcome.CRASH))
    assert found.rungs == {"dynamo": "crash", "backend": "crash"}
    assert (found.owner, found.stage) == (Owner.UPSTREAM, Stage.CAPTURE)


def test_all_rungs_with_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "UPSTREAM_RUNGS", UPSTREAM_RUNGS)
    assert set(climbed(Adds("inductor"), torch.sin, seconds=None).rungs) == {*RUNGS, BACKEND}


@pytest.mark.parametrize(
    ("kind", "message", "outcome"),
    [
        ("InvalidCxxCompiler", "No working C++ compiler found", Outcome.INFRA),
        ("CppCompileError", "C++ compile error\n\nfatal error: Python.h: No such file or directory", Outcome.INFRA),
        ("CppCompileError", "C++ compile error\n\nerror: expected ';'", ERROR),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'g++'", Outcome.INFRA),
        ("KeyError", "g++", ERROR),
    ],
)
def test_a_missing_compiler_is_not_upstreams_bug(kind: str, message: str, outcome: Outcome) -> None:
    error = type(kind, (RuntimeError,), {})(message)
    assert ladder.step_of("inductor", error).outcome is outcome
