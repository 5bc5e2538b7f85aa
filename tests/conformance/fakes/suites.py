"""A backend and suites without torch, for tests of the isolation and of the plugin."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fnmatch
import os
import signal
import subprocess
import sys
import time
from typing import ClassVar

from conformance.cases import Case, Direction, NotBuildable, NumericalClass, Sample, ShapeMode
from conformance.outcomes import Outcome, Stage
from conformance.records import Record


class FakeBackend:
    """Runs nothing: the suites below bring their own `run_sample`."""

    name = "fake"
    protocol_version = 1
    device = "cpu"
    version = "1.0"
    imports = ""
    compile_source = "fn"

    def availability(self):
        return True, "1.0"

    def capabilities(self):
        return {"device": "cpu"}

    def setup(self):
        pass

    def compile(self, fn, *, dynamic, fullgraph=False):
        return fn

    def environment(self):
        return {"FAKE_BACKEND_VARIABLE": "set"}


class Unavailable(FakeBackend):
    def availability(self):
        return False, "no such card in this machine"


class Unimportable(FakeBackend):
    def setup(self):
        raise ImportError("libfake.so: cannot open shared object file")


class DiesInSetup(FakeBackend):
    def setup(self):
        ctypes.string_at(0)


class Threaded(FakeBackend):
    """Its setup starts a thread, so it must not be set up before the fork."""

    def setup(self):
        import threading

        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


class CannotFork(FakeBackend):
    def setup(self):
        def fork():
            raise BlockingIOError("Resource temporarily unavailable")

        os.fork = fork


class CrashesInReset(FakeBackend):
    def reset(self):
        ctypes.string_at(0)


class RaisesInReset(FakeBackend):
    def reset(self):
        raise RuntimeError("cannot forget")


class HangsInReset(FakeBackend):
    def reset(self):
        time.sleep(1000)


class FakeSuite:
    """`subjects` maps a subject to what its samples do: names of functions below."""

    name = "fake"
    kind = "fake"
    subjects: ClassVar[dict[str, tuple[str, ...]]] = {}
    left_out: ClassVar[dict[str, int]] = {}

    def cases(self, options):
        for subject in self.subjects:
            if not options.subjects or any(fnmatch.fnmatch(subject, glob) for glob in options.subjects):
                yield Case("fake", subject, "float32", ShapeMode.STATIC, Direction.FORWARD)

    def samples(self, case, options):
        for index, deed in enumerate(self.subjects[case.subject][: options.max_samples]):
            if deed.startswith("build_"):
                DEEDS[deed]()
            yield Sample(
                index=index,
                fn=DEEDS[deed],
                args=(),
                kwargs={},
                numerics=NumericalClass.EXACT,
                digest=f"digest-{deed}",
                source=deed,
            )

    def excluded(self, options):
        return self.left_out

    def run_sample(self, backend, case, sample, *, suite, seed, on_stage=None):
        on_stage(Stage.RUN)
        outcome, message = Outcome.PASS, ""
        try:
            given = sample.fn()
        except Exception as error:
            outcome, message = Outcome.ERROR, f"{type(error).__name__}: {error}"
        else:
            if isinstance(given, Outcome):
                outcome, message = given, f"this sample is {given}"
        return Record.of(
            case,
            sample.index,
            suite=suite,
            backend=backend.name,
            outcome=outcome,
            stage=None if outcome is Outcome.PASS else Stage.RUN,
            message=message,
            fingerprint=f"fake:{message}" if message else "",
            digest=sample.digest,
            seed=seed,
            kernels=1,
            run_s=0.001,
        )


def _fine():
    return 1


def _segfault():
    ctypes.string_at(0)


def _segfault_without_handler():
    faulthandler.disable()
    ctypes.string_at(0)


def _busy():
    while True:
        pass


def _hang_in_c_with_signals_blocked():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    ctypes.PyDLL(None).sleep(10_000)  # PyDLL keeps the GIL


def _stop():
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(10_000)


def _eat_private_memory():
    hoard = []
    while True:
        hoard.append(b"x" * 2**24)


LEFT_MAPPED = []


def _map_and_leave():
    """As the stacks and arenas of threads that a compiler starts and never ends."""
    import mmap

    LEFT_MAPPED.append(mmap.mmap(-1, 96 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _fill_and_leave():
    """All that a sample may map, less what the end of the sample itself takes; and no thread fits into what is kept of
    the stacks of ended ones."""
    import mmap
    import threading

    threading.stack_size(12 << 20)

    with contextlib.suppress(OSError):
        while True:
            LEFT_MAPPED.append(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    del LEFT_MAPPED[-4:]


POISONED = []


def _poison():
    """As a launch that fails and leaves the device unusable."""
    POISONED.append(True)
    raise RuntimeError("launch failed")


def _suffer():
    if POISONED:
        raise RuntimeError("semaphore already signalled")


def _point_to_output():
    os.write(2, b"compiling\nsource.mlir:3:10: error: failed to legalize operation 'torch.aten.take'\n")
    raise RuntimeError("JIT compilation failed. See diagnostics.")


def _eat_shared_memory():
    import mmap

    hoard = []
    while True:
        piece = mmap.mmap(-1, 2**25)
        piece.write(b"x" * 2**25)
        hoard.append(piece)
        if len(hoard) > 64:
            time.sleep(10_000)


def _bad_alloc():
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
    os.abort()


def _c10_allocation():
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to")


def _huge_output():
    line = b"noise " * 10_000 + b"\n"
    for _ in range(300):
        os.write(1, line)


def _noise_then_segfault():
    print("the last words of this sample")
    ctypes.string_at(0)


def _close_everything():
    os.closerange(0, 3)
    ctypes.string_at(0)


def _fork_and_return():
    os.fork()


def _leave_children():
    subprocess.Popen(["sleep", "3137"])
    subprocess.Popen(["sleep", "3138"], start_new_session=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _garbage_on_every_socket():
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(fd, b"\xff" * 64)
    time.sleep(1000)


def _build_not_possible():
    raise NotBuildable("needs the package natten")


def _build_raises():
    raise ValueError("no inputs for this")


def _recurse():
    def deeper(n):
        return deeper(n + 1)

    sys.setrecursionlimit(10**9)
    deeper(0)


DEEDS = {
    "fine": _fine,
    "slow": lambda: time.sleep(0.2),
    "raises": lambda: [][1],
    "wrong": lambda: Outcome.WRONG,
    "unsupported": lambda: Outcome.UNSUPPORTED,
    "skipped": lambda: Outcome.SKIPPED,
    "segfault": _segfault,
    "segfault_without_handler": _segfault_without_handler,
    "abort": os.abort,
    "exit3": lambda: os._exit(3),
    "exit0": lambda: os._exit(0),
    "sys_exit": lambda: sys.exit(4),
    "keyboard_interrupt": lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(1),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigterm": lambda: os.kill(os.getpid(), signal.SIGTERM) or time.sleep(1000),
    "sigfpe": lambda: os.kill(os.getpid(), signal.SIGFPE),
    "sigbus": lambda: os.kill(os.getpid(), signal.SIGBUS),
    "sigill": lambda: os.kill(os.getpid(), signal.SIGILL),
    "killpg": lambda: os.killpg(0, signal.SIGKILL),
    "kill_zygote": lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(1000)),
    "busy": _busy,
    "sleep": lambda: time.sleep(10_000),
    "hang_in_c_with_signals_blocked": _hang_in_c_with_signals_blocked,
    "stop": _stop,
    "eat_private_memory": _eat_private_memory,
    "fill_and_leave": _fill_and_leave,
    "poison": _poison,
    "suffer": _suffer,
    "point_to_output": _point_to_output,
    "map_and_leave": _map_and_leave,
    "eat_shared_memory": _eat_shared_memory,
    "bad_alloc": _bad_alloc,
    "c10_allocation": _c10_allocation,
    "huge_output": _huge_output,
    "noise_then_segfault": _noise_then_segfault,
    "close_everything": _close_everything,
    "fork_and_return": _fork_and_return,
    "leave_children": _leave_children,
    "garbage_on_every_socket": _garbage_on_every_socket,
    "recurse": _recurse,
    "build_raises": _build_raises,
    "build_not_possible": _build_not_possible,
    "build_segfault": _segfault,
    "build_hang": _busy,
    "build_fine": _fine,
}


class Torture(FakeSuite):
    """Every deed between two samples that must pass all the same; and cases in which nothing is wrong."""

    subjects = {f"do_{deed}": ("fine", deed, "fine") for deed in DEEDS} | {
        f"innocent_{n}": ("fine",) * 5 for n in range(20)
    }


class Poisoned(FakeSuite):
    subjects: ClassVar = {"first": ("fine", "poison", "suffer", "poison"), "second": ("suffer",)}


class Leaky(FakeSuite):
    subjects: ClassVar = {"leaky": ("map_and_leave",) * 5 + ("eat_private_memory", "fine")}


class Frugal(FakeSuite):
    sample_memory = 160 << 20
    subjects: ClassVar = {"hungry": ("eat_private_memory", "fine")}


class Broken(FakeSuite):
    def cases(self, options):
        raise RuntimeError("this suite has no cases today")


class Slow(FakeSuite):
    """Cases that take long enough to be interrupted."""

    subjects: ClassVar = {f"slow_{n}": ("slow",) * 5 for n in range(4)}


class Slower(FakeSuite):
    """More cases than workers are given at once."""

    subjects: ClassVar = {f"slow_{n}": ("slow",) * 3 for n in range(12)}


class Mixed(FakeSuite):
    subjects: ClassVar = {
        "fine": ("fine", "fine"),
        "wrong": ("fine", "wrong"),
        "crash": ("segfault", "fine"),
        "none": (),
        "good": ("fine",),
    }


class Bad(FakeSuite):
    subjects: ClassVar = {"bad": ("wrong",) * 30}
