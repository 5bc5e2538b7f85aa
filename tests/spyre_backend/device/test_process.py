"""What importing does to a process, and what other processes do to the build."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import spyre_backend
from spyre_backend.device import _C, build

IMPORT_AND_PRINT = "import torch, spyre_backend; print(torch.ones(2, device='spyre').sum().item())"


def test_import_is_light_and_starts_no_thread(run_python) -> None:
    out = run_python(
        """
import sys, threading, os, torch
before = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
import spyre_backend
after = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
heavy = [m for m in ("torch._dynamo", "torch._inductor", "sympy", "setuptools") if m in sys.modules]
torch.spyre.synchronize(); torch.spyre.current_device(); torch.manual_seed(0)
heavy += [m for m in ("torch._dynamo", "torch._inductor") if m in sys.modules]
print(heavy, after - before)
"""
    )
    assert out.strip() == "[] 0"


def test_torch_alone_is_undisturbed_and_the_cpu_compiles_beside_the_device(run_python) -> None:
    out = run_python(
        """
import torch
assert not hasattr(torch, "spyre")
assert torch._C._get_privateuse1_backend_name() == "privateuseone"
import spyre_backend
f = torch.compile(lambda x: (x.sin() + torch.spyre.device_count()).relu(), backend="aot_eager")
x = torch.randn(4, requires_grad=True)
f(x).sum().backward()
assert torch.equal(x.grad, x.detach().cos() * (x.detach().sin() + 1 > 0))
y = torch.randn(4, device="spyre", requires_grad=True)
f(y).sum().backward()
assert y.grad.device.type == "spyre"
assert torch.equal(f(y).detach().cpu(), (y.detach().cpu().sin() + 1).relu())
print(torch.get_default_device(), torch.ones(1).device)
"""
    )
    assert out.strip() == "cpu cpu"


@pytest.mark.parametrize(
    "before", ["torch.compile(lambda x: x + 1)(torch.ones(3))", "import torch._inductor.codegen.common"]
)
def test_the_device_compiles_where_inductor_was_there_first(run_python, before: str) -> None:
    out = run_python(
        f"""
import torch
{before}
import spyre_backend
f = torch.compile(lambda x: x.sin() + 1)
print(f(torch.zeros(3, device="spyre")).tolist(), f(torch.zeros(3)).tolist())
"""
    )
    assert out.strip() == "[1.0, 1.0, 1.0] [1.0, 1.0, 1.0]"


@pytest.mark.parametrize(
    ("before", "named"),
    [
        ("torch.utils.rename_privateuse1_backend('npu')", "npu"),
        ("torch.utils.rename_privateuse1_backend('spyre')", "spyre"),
        ("torch.spyre = types.ModuleType('torch_spyre.device')", "torch_spyre.device"),
    ],
)
def test_another_device_in_the_process_is_refused(run_python, before: str, named: str) -> None:
    out = run_python(
        f"""
import types, torch
{before}
name = torch._C._get_privateuse1_backend_name()
try:
    import spyre_backend
except RuntimeError as error:
    print(type(error).__name__, "|", error)
assert torch._C._get_privateuse1_backend_name() == name
"""
    )
    assert out.startswith("DeviceConflictError |")
    assert named in out


def test_a_forked_child_allocates_computes_and_compiles() -> None:
    # A fresh parent: one that has run a backward pass has threads, which no fork survives.
    script = """
import os, sys, torch, spyre_backend
child = os.fork()
if child == 0:
    x = torch.randn(4, 4, device="spyre", requires_grad=True)
    (x @ x).relu().sum().backward()
    f = torch.compile(lambda t: t.sin() * 2, backend="aot_eager")
    assert torch.equal(f(x).detach().cpu(), x.detach().cpu().sin() * 2)
    torch.manual_seed(0); a = torch.rand(2, device="spyre").cpu()
    torch.manual_seed(0); assert torch.equal(a, torch.rand(2))
    os._exit(7)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(spyre_backend.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "7"), done.stderr


def test_a_process_that_ran_a_backward_pass_exits_cleanly(run_python) -> None:
    script = """
import torch, spyre_backend
x = torch.randn(3, device="spyre", requires_grad=True)
(x * 2).sum().backward()
print("done")
"""
    for _ in range(2):
        assert run_python(script).strip() == "done"


@pytest.fixture
def counting_compiler(tmp_path: Path) -> tuple[Path, Path]:
    """A compiler that takes its time, logs each call and "links" the library that is loaded here."""
    log = tmp_path / "calls"
    compiler = tmp_path / "fake-c++"
    compiler.write_text(
        f"""#!/bin/sh
echo "$*" >> {log}
sleep 0.2
while [ $# -gt 1 ]; do [ "$1" = -o ] && target="$2"; shift; done
cp {_C.__file__} "$target"
"""
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    return compiler, log


def test_processes_that_start_together_build_once(tmp_path: Path, counting_compiler, monkeypatch) -> None:
    compiler, log = counting_compiler
    cache = tmp_path / "cache"
    monkeypatch.setenv("CXX", str(compiler))
    # What a killed builder leaves behind: a lock file that nobody holds and half a build.
    left_over = cache / build.build_key() / "build-killed"
    left_over.mkdir(parents=True)
    (cache / f"{build.build_key()}.lock").touch()
    environment = {
        **os.environ,
        "SPYRE_BACKEND_CACHE": str(cache),
        "PYTHONPATH": str(Path(spyre_backend.__file__).parents[1]),
    }
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", IMPORT_AND_PRINT],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for child in children:
        out, err = child.communicate(timeout=180)
        assert out.strip() == "2.0", err
    calls = log.read_text().splitlines()
    assert len(calls) == len(list(build.SOURCES.glob("*.cpp"))) + 1
    assert sum("-shared" in call for call in calls) == 1
    assert not left_over.exists()


def test_the_lock_of_a_killed_builder_is_free(tmp_path: Path) -> None:
    lock = tmp_path / "key.lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import fcntl, time; f = open({str(lock)!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
            "print('held', flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "held"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with build._locked(lock):
        pass


def test_a_builder_that_never_ends_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(build, "LOCK_TIMEOUT", 0.2)
    with (
        build._locked(tmp_path / "key.lock"),
        pytest.raises(spyre_backend.DeviceBuildError, match="another process"),
        build._locked(tmp_path / "key.lock"),
    ):
        pass


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CXX", "no-such-compiler", "CXX names 'no-such-compiler'"),
        ("PATH", "/nonexistent", "no C++ compiler: install one of"),
    ],
)
def test_a_missing_compiler_is_said_in_one_line(tmp_path: Path, monkeypatch, variable, value, message) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("SPYRE_BACKEND_CACHE", str(tmp_path))
    monkeypatch.setenv(variable, value)
    with pytest.raises(spyre_backend.DeviceBuildError) as caught:
        build.load()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch) -> None:
    compiler = tmp_path / "broken-c++"
    compiler.write_text("#!/bin/sh\necho 'x.cpp:1: error: no concepts here'\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("SPYRE_BACKEND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(spyre_backend.DeviceBuildError, match="no concepts here"):
        build.load()
    assert not list((tmp_path / "cache").glob("*/*"))


def test_the_key_names_the_sources_and_the_compiler(tmp_path: Path, monkeypatch) -> None:
    key = build.build_key()
    monkeypatch.setenv("CXX", "another-compiler")
    assert build.build_key() != key
    monkeypatch.delenv("CXX")
    (tmp_path / "a.cpp").write_text("int x;")
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    assert build.build_key() != key
