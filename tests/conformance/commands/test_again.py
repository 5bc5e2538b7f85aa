"""`repro`, `explain` and `sweep` from outside, on the real op suite and on a backend that has bugs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BACKEND = """
import os
import sys
import torch


class Buggy:
    name = "buggy"
    protocol_version = 1
    device = "cpu"
    imports = "import torch\\nimport buggy"
    compile_source = "buggy.compile(fn, dynamic={dynamic})"

    def availability(self):
        return True, "here"

    def capabilities(self):
        return {"device": "cpu"}

    def setup(self):
        pass

    def compile(self, fn, *, dynamic, fullgraph=False):
        return compile(fn, dynamic)


def compile(fn, dynamic):
    def run(*args, **kwargs):
        if fn is torch.sin:
            os.abort()
        out = fn(*args, **kwargs)
        return out * 1.5 if fn is torch.tanh and os.environ.get("REPAIRED") != "yes" else out

    return run
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "buggy.py").write_text(BACKEND)
    return tmp_path


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(cwd), "CONFORMANCE_RUNS": str(cwd / "runs"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


def conformance(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run("-m", "conformance", *arguments, "--backend", "buggy.py:Buggy", cwd=cwd)


def test_a_wrong_result(here: Path) -> None:
    done = conformance("repro", "op:tanh:float16:static:bwd:samples#0", "-o", "script.py", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "shows `wrong` of op:tanh:float16:static:bwd:samples#0 on buggy" in done.stderr
    text = (here / "script.py").read_text()
    assert len(text.splitlines()) <= 40
    assert "conformance" not in text
    assert "op_coverage" not in text
    assert run("script.py", cwd=here).returncode == 1
    assert run("script.py", cwd=here, REPAIRED="yes").returncode == 0


def test_a_crash(here: Path) -> None:
    done = conformance("repro", "op:sin:float16:static:fwd:samples", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "--child" in done.stdout
    done = conformance("explain", "op:sin:float16:static:fwd:samples", cwd=here)
    assert done.returncode == 1
    assert "torch.sin(" in done.stdout
    assert "the process ended: crash (SIGABRT)" in done.stdout


def test_what_cannot_be_shown_is_said(here: Path) -> None:
    done = conformance("repro", "op:cos:float16:static:fwd:samples", cwd=here)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "conformance: op:cos:float16:static:fwd:samples#0 passes on buggy: there is nothing to show\n"


@pytest.mark.parametrize("command", ["repro", "explain"])
def test_a_backend_that_cannot_be_set_up_says_why(here: Path, command: str) -> None:
    sick = BACKEND.replace("        pass\n", "        raise OSError('no driver')\n")
    (here / "buggy.py").write_text(sick)
    done = conformance(command, "op:sin:float16:static:fwd:samples", cwd=here)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "conformance: backend 'buggy' cannot be set up: OSError: no driver\n"


def test_sweep_runs_the_suite_and_shows_the_summary(here: Path) -> None:
    done = conformance("sweep", "ops", "-n", "0", "--op", "tanh,cos,sin", "--format", "github", cwd=here)
    assert done.returncode == 1, done.stdout + done.stderr  # what is wrong is not expected
    assert "| wrong     | wrong:values" in done.stdout or "| wrong | wrong:values" in done.stdout
    assert "crash:SIGABRT" in done.stdout
    assert "3 collected = 3 run" in done.stdout
    (made,) = (here / "runs").iterdir()
    assert {"manifest.json", "records.parquet"} <= {path.name for path in made.iterdir()}
