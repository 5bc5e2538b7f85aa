"""Real failures become scripts that exit with 1 while the bug is there, and with 0 once the backend is repaired."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import diagnosis, repro
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.judgement.findings import Check
from conformance.outcomes import Outcome

PACKAGE = """
import os
import time
import torch

def compile(fn, dynamic):
    def run(*args, **kwargs):
        if REPAIRED:
            return fn(*args, **kwargs)
        return BUGS[os.environ["BUG"]](fn, args, kwargs)
    return run

def values(fn, args, kwargs):
    return fn(*args, **kwargs) * 1.01

def special(fn, args, kwargs):
    return torch.full_like(fn(*args, **kwargs), float("nan"))

def dtype(fn, args, kwargs):
    return fn(*args, **kwargs).double()

def strides(fn, args, kwargs):
    return fn(*args, **kwargs).t().contiguous().t()

def mutation(fn, args, kwargs):
    out = fn(*args, **kwargs)
    args[0].data[0] += 1
    return out

def alias(fn, args, kwargs):
    return fn(*args, **kwargs).clone()

def error(fn, args, kwargs):
    raise NotImplementedError("no such op")

def crash(fn, args, kwargs):
    os.abort()

def second(fn, args, kwargs):
    seen.append(1)
    return fn(*args, **kwargs) + (len(seen) == 2)

def silent(fn, args, kwargs):
    return args[0]

def gradient(fn, args, kwargs):
    return Halved.apply(fn(*args, **kwargs))

class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / 2

seen = []
BUGS = {name: value for name, value in globals().items() if callable(value)}
REPAIRED = os.environ.get("REPAIRED") == "yes"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A third-party backend's package with one bug, chosen by the environment."""
    (tmp_path / "buggy.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("buggy", None)
    import buggy

    yield buggy
    sys.modules.pop("buggy", None)


class Buggy:
    name = "buggy"
    protocol_version = 1
    device = "cpu"
    imports = "import torch\nimport buggy"
    compile_source = "buggy.compile(fn, dynamic={dynamic})"

    def __init__(self, package: Any) -> None:
        self.package = package

    def capabilities(self) -> dict[str, Any]:
        return {"device": "cpu"}

    def compile(self, fn: Callable[..., Any], *, dynamic: bool | None, fullgraph: bool = False) -> Callable[..., Any]:
        return self.package.compile(fn, dynamic)


def status_here(script: str) -> int:
    """Exit status of a script that is run in this process: importing torch once is enough."""
    try:
        exec(compile(script, "script.py", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def exit_status(script: str, package_dir: Path, **environment: str) -> int:
    path = package_dir / "script.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(package_dir), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return done.returncode


MATRIX = torch.arange(6, dtype=torch.float32).reshape(2, 3) + 0.5
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD

BUGS = [
    # bug, callable and its source, arguments, direction, what is found
    ("values", torch.sin, "torch.sin", (MATRIX,), FORWARD, (Outcome.WRONG, Check.VALUES)),
    ("special", torch.sin, "torch.sin", (MATRIX,), FORWARD, (Outcome.WRONG, Check.SPECIAL)),
    ("dtype", torch.sin, "torch.sin", (MATRIX,), FORWARD, (Outcome.WRONG, Check.DTYPE)),
    ("strides", torch.sin, "torch.sin", (MATRIX,), FORWARD, (Outcome.WRONG, Check.STRIDES)),
    ("mutation", torch.sin, "torch.sin", (MATRIX,), FORWARD, (Outcome.WRONG, Check.MUTATION)),
    ("alias", torch.t, "torch.t", (MATRIX,), FORWARD, (Outcome.WRONG, Check.ALIAS)),
    ("gradient", torch.sin, "torch.sin", (MATRIX,), BACKWARD, (Outcome.WRONG, Check.VALUES)),
    ("error", torch.sin, "torch.sin", (MATRIX,), FORWARD, (Outcome.UNSUPPORTED, None)),
    ("second", torch.sin, "torch.sin", (MATRIX,), FORWARD, (Outcome.WRONG, Check.VALUES)),
    ("silent", torch.bmm, "torch.bmm", (MATRIX, MATRIX), FORWARD, (Outcome.WRONG, Check.EXCEPTION)),
    ("error", torch.select, "torch.select", (MATRIX, 5, 0), FORWARD, (Outcome.UNSUPPORTED, None)),
]


@pytest.mark.parametrize(("bug", "fn", "source", "args", "direction", "expected"), BUGS)
def test_a_script_shows_the_bug_and_then_its_absence(
    package: Any,
    monkeypatch: pytest.MonkeyPatch,
    bug: str,
    fn: Callable[..., Any],
    source: str,
    args: tuple[Any, ...],
    direction: Direction,
    expected: tuple[Outcome, Check | None],
) -> None:
    monkeypatch.setenv("BUG", bug)
    case = Case("op", source, "float32", ShapeMode.STATIC, direction)
    numerics = NumericalClass.EXACT if bug == "alias" else NumericalClass.ELEMENTWISE
    replays = (((MATRIX[:, :2],), {}),) if bug == "second" else ()
    sample = Sample(0, fn, args, {}, numerics, "digest", source, replays=replays)
    backend = Buggy(package)
    setting = diagnosis.setting_of(backend, case, sample)
    failure = diagnosis.failure_of(backend, case, sample)
    assert (failure.outcome, failure.check) == expected, failure.message
    script = repro.compose(setting, failure)
    package.seen.clear()
    assert status_here(script) == 1
    monkeypatch.setattr(package, "REPAIRED", True)
    assert status_here(script) == 0


def test_a_script_runs_on_its_own(package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUG", "values")
    case = Case("op", "sin", "float32", ShapeMode.STATIC, FORWARD)
    sample = Sample(0, torch.sin, (MATRIX,), {}, NumericalClass.ELEMENTWISE, "digest", "torch.sin")
    backend = Buggy(package)
    script = repro.compose(diagnosis.setting_of(backend, case, sample), diagnosis.failure_of(backend, case, sample))
    assert exit_status(script, tmp_path) == 1
    assert exit_status(script, tmp_path, REPAIRED="yes") == 0


def test_a_crash_is_shown_from_outside_the_process(
    package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUG", "crash")
    case = Case("op", "sin", "float32", ShapeMode.STATIC, FORWARD)
    sample = Sample(0, torch.sin, (MATRIX,), {}, NumericalClass.ELEMENTWISE, "digest", "torch.sin")
    setting = diagnosis.setting_of(Buggy(package), case, sample)
    script = repro.compose(setting, repro.Failure(outcome=Outcome.CRASH))
    assert exit_status(script, tmp_path) == 1
    assert exit_status(script, tmp_path, REPAIRED="yes") == 0


def test_what_passes_is_said_to_pass(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "REPAIRED", True)
    case = Case("op", "sin", "float32", ShapeMode.STATIC, BACKWARD)
    sample = Sample(0, torch.sin, (MATRIX,), {}, NumericalClass.ELEMENTWISE, "digest", "torch.sin")
    assert diagnosis.failure_of(Buggy(package), case, sample).outcome is Outcome.PASS
