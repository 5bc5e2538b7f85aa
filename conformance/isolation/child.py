"""The zygote: imports torch, the backend and the suite once, and forks runners.

Started by the supervisor as `python -m conformance.isolation.child PLAN`. It forks a `runner` whenever it is asked to,
which takes milliseconds, where a fresh process takes seconds. It starts no thread and runs no sample.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib.metadata
import mmap
import os
import platform
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from conformance import suites
from conformance.isolation import frames, process, wire
from conformance.isolation.runner import STAGE_BYTES, Runner, executor_of

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

# One thread per process: the parallelism is that of the workers. A fixed hash seed: sets iterate alike in every
# process. glibc keeps what it frees, up to 128 MB: with each compilation Dynamo allocates and fills 32 MB, to measure
# its guards with a cold cache, and to map them anew costs 20 ms. A variable that the user has set, or that the backend
# asks for, wins.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}

GC_THRESHOLD = 10_000
"""Allocations between two collections in a runner. After Python's 700, collecting is a tenth of a compilation."""

FORK_SAFE_DEVICES = frozenset({"cpu"})
"""Devices whose runtime survives a fork after `setup`. For another device the backend says `fork_safe = True`, or its
`setup` runs in each runner."""


class Plan(msgspec.Struct, frozen=True):
    """What a zygote needs to know; travels as JSON in its argument vector."""

    backend: str
    backend_import: tuple[str, ...] = ()
    backend_options: dict[str, Any] | None = None
    device: str | None = None
    fork_safe: bool | None = None  # None: as the backend says
    control_fd: int = -1
    stage_fd: int = -1
    environment_is_set: bool = False


class CannotStart(Exception):
    """The backend or the suite cannot be used here; the message is one line for the user."""


# ---------------------------------------------------------------------------------------------------------- zygote


def main(argv: list[str]) -> int:
    """Serve the supervisor until it hangs up. `argv` holds the plan as JSON."""
    plan = msgspec.json.decode(argv[0], type=Plan)
    gc.disable()  # what is imported stays: looking through it again and again takes a fifth of the start; see `fork`
    process.die_with_parent(signal.SIGKILL)
    # A copy, so that a sample that redirects or closes its stderr still leaves a traceback when it crashes.
    faulthandler.enable(file=os.dup(2), all_threads=True)
    control = wire.Channel(socket.socket(fileno=plan.control_fd), sender="supervisor")
    try:
        backend, hello = _load_backend(plan)
    except CannotStart as error:
        control.send(wire.Failed(str(error), traceback.format_exc()))
        return 1
    for fd in (plan.control_fd, plan.stage_fd):
        os.set_inheritable(fd, False)
    control.send(hello)
    zygote = Zygote(plan, backend, control)
    signal.signal(signal.SIGTERM, zygote.terminate)
    process.die_with_parent(signal.SIGTERM)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    zygote.serve()
    os._exit(0)  # the interpreter's own way out takes half a second to take torch apart


class Zygote:
    """Answers one request at a time; holds what runners inherit."""

    def __init__(self, plan: Plan, backend: Any, control: wire.Channel) -> None:
        self.plan = plan
        self.backend = backend
        self.control = control
        self.suites: dict[str, Any] = {}
        self.stage = mmap.mmap(plan.stage_fd, STAGE_BYTES)
        self.runner: int | None = None

    def serve(self) -> None:
        answers: dict[type, Callable[[Any], wire.Message]] = {
            wire.ListCases: self.list_cases,
            wire.WarmUp: self.warm_up,
            wire.Fork: self.fork,
            wire.Reap: self.reap,
        }
        while True:
            try:
                request = self.control.receive()
            except EOFError:
                self.kill_descendants()
                return
            self.control.send(answers[type(request)](request))

    def list_cases(self, request: wire.ListCases) -> wire.Message:
        try:
            suite = self.suites.get(request.suite) or suites.find(request.suite)
            executor_of(suite)  # imported here so that runners inherit it
            self.suites[request.suite] = suite
            listed = wire.CaseList(
                suite=request.suite,
                name=suite.name,
                cases=tuple(suite.cases(request.options)),
                excluded=dict(suite.excluded(request.options)),
                facts=dict(suite.manifest(request.options)) if hasattr(suite, "manifest") else {},
                expectations_dir=str(getattr(suite, "expectations_dir", "") or ""),
                seconds=getattr(suite, "sample_timeout", None),
                memory=getattr(suite, "sample_memory", None),
            )
        except suites.SuiteNotFound as error:
            return wire.Failed(str(error))
        except Exception as error:
            return wire.Failed(
                f"suite {request.suite!r} cannot be used: {process.one_line(error)}", traceback.format_exc()
            )
        return listed

    def warm_up(self, request: wire.WarmUp) -> wire.Message:
        started = time.perf_counter()
        error = ""
        if "torch" in sys.modules and _fork_safe(self.plan, self.backend):
            try:
                _no_progress_bar_thread()
                _compile_something(self.backend)
            except Exception as failure:  # the backend's own cases will say what is wrong with it
                error = process.one_line(failure)
        return wire.WarmedUp(process.threads(), time.perf_counter() - started, error)

    def fork(self, request: wire.Fork) -> wire.Message:
        _, fds, _, _ = socket.recv_fds(self.control.sock, 1, 1)
        gc.freeze()  # a collection in the runner would write to, and so copy, every page with an object on it
        pid = os.fork()
        if pid == 0:
            gc.enable()
            gc.set_threshold(GC_THRESHOLD)
            channel = wire.Channel(socket.socket(fileno=fds[0]), sender="supervisor")
            try:
                os.close(self.control.sock.detach())
                must_set_up = not _fork_safe(self.plan, self.backend)
                runner = Runner(self.backend, self.suites, self.stage, channel, must_set_up=must_set_up)
                runner.prepare()
                frames.with_room(runner.serve)
            except BaseException as error:
                traceback.print_exc()
                channel.send(wire.Failed(process.one_line(error), traceback.format_exc()))
            finally:
                os._exit(0)  # no atexit handler or destructor of the zygote may run in a copy of it
        os.close(fds[0])
        self.runner = pid
        return wire.Forked(pid, process.rss())

    def reap(self, request: wire.Reap) -> wire.Message:
        _, status, usage = os.wait4(request.pid, 0)
        self.runner = None
        return wire.Reaped(request.pid, status, usage.ru_maxrss * 1024, self.kill_descendants())

    def kill_descendants(self) -> int:
        """Kill what a dead runner left behind (we are its subreaper) and count it."""
        import psutil

        strays = psutil.Process().children(recursive=True)
        for stray in strays:
            try:
                stray.kill()
            except psutil.NoSuchProcess:
                continue
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return len(strays)

    def terminate(self, *_: Any) -> None:
        """The supervisor is gone, or wants us gone: leave nothing behind."""
        self.kill_descendants()
        os._exit(0)


def _load_backend(plan: Plan) -> tuple[Any, wire.Hello]:
    """Find the backend, set its environment and, unless that must wait for the fork, set it up.

    Environment variables may have to be there before torch is imported or even before the process starts
    (`LD_LIBRARY_PATH`), and a backend's own module may import torch: so the process replaces itself once.
    """
    started = time.perf_counter()
    try:
        from conformance.backends import registry

        backend = registry.find(
            plan.backend,
            backend_import=plan.backend_import,
            backend_options=plan.backend_options,
            device=plan.device,
        )
        wanted = dict(getattr(backend, "environment", dict)())
    except Exception as error:
        raise CannotStart(f"backend {plan.backend!r} cannot be used: {process.one_line(error)}") from error
    if not plan.environment_is_set:
        missing = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
        if missing:
            os.environ.update(missing)
            replaced = msgspec.structs.replace(plan, environment_is_set=True)
            os.execv(sys.executable, interpreter_arguments(replaced))
    available, why = backend.availability()
    if not available:
        raise CannotStart(f"backend {plan.backend!r} is not available here: {why}")
    fork_safe = _fork_safe(plan, backend)
    try:
        if fork_safe:
            backend.setup()
        capabilities = dict(backend.capabilities())
    except Exception as error:
        raise CannotStart(f"backend {plan.backend!r} cannot be set up: {process.one_line(error)}") from error
    hello = wire.Hello(
        pid=os.getpid(),
        backend=backend.name,
        device=backend.device,
        version=str(getattr(backend, "version", "") or why),
        capabilities=msgspec.to_builtins(capabilities),
        versions=_versions(),
        environment={name: os.environ[name] for name in (*ENVIRONMENT, *wanted) if name in os.environ},
        threads=process.threads(),
        rss=process.rss(),
        seconds=time.perf_counter() - started,
    )
    return backend, hello


def interpreter_arguments(plan: Plan) -> list[str]:
    """The argument vector of a zygote. `-u`: what a sample printed before it crashed must be seen. `-P`: a user's
    directory named like one of our packages must not shadow it (`main` appends the current directory instead)."""
    return [sys.executable, "-u", "-P", "-m", "conformance.isolation.child", msgspec.json.encode(plan).decode()]


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a zygote before the backend adds to it."""
    return {**ENVIRONMENT, **inherited}


def _fork_safe(plan: Plan, backend: Any) -> bool:
    if plan.fork_safe is not None:
        return plan.fork_safe
    said = getattr(backend, "fork_safe", None)
    return backend.device.split(":")[0] in FORK_SAFE_DEVICES if said is None else bool(said)


def _no_progress_bar_thread() -> None:
    """AOTAutograd makes a disabled tqdm bar, which starts a monitor thread unless it is told not to."""
    with contextlib.suppress(ImportError):
        import tqdm

        tqdm.tqdm.monitor_interval = 0


def _compile_something(backend: Any) -> None:
    import torch

    compiled = backend.compile(lambda x: torch.softmax(x + 1, -1), dynamic=False)
    compiled(torch.ones(2, 3, device=backend.device))
    torch.compiler.reset()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", "numpy", "spyre-conformance", "triton", "openvino"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(torch.__version__)
    return versions


if __name__ == "__main__":
    sys.path.append(os.getcwd())
    # Imported under its own name as well, so that what runners pickle or compare is the same module.
    from conformance.isolation import child

    sys.exit(child.main(sys.argv[1:]))
