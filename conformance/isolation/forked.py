"""Runs something in a forked child that reports line by line, so that a crash or a hang costs no more than itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NoReturn

import msgspec

FAULT = 70  # EX_SOFTWARE of sysexits.h: the child raised
GRACE_S = 1.0  # for a child that has closed its pipe to end


class End(StrEnum):
    """How a child ended."""

    DONE = "done"
    CRASH = "crash"
    TIMEOUT = "timeout"
    FAULT = "fault"


class Report(msgspec.Struct, frozen=True):
    """What a child said before it ended; `detail` names the signal or the exit status."""

    lines: list[bytes]
    end: End
    detail: str = ""


def run(produce: Callable[[], Iterable[bytes]], seconds: float | None) -> Report:
    """The lines that `produce()` yields in a forked child, as far as it got within `seconds`. They contain no newline.

    The child shares nothing back but its lines, and dies with this process.
    """
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(read)
        _child(produce, write, parent)
    os.close(write)
    text, hung = b"", True
    try:
        text, hung = _read(read, seconds)
    finally:
        os.close(read)
        status = _end(child, grace=0.0 if hung else GRACE_S)
    lines = [line[:-1] for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
    if hung:
        return Report(lines, End.TIMEOUT, f"no answer in {seconds:g} s")
    if os.WIFSIGNALED(status):
        return Report(lines, End.CRASH, signal.Signals(os.WTERMSIG(status)).name)
    code = os.WEXITSTATUS(status)
    return Report(lines, End.DONE if code == 0 else End.FAULT if code == FAULT else End.CRASH, f"exit status {code}")


def _child(produce: Callable[[], Iterable[bytes]], write: int, parent: int) -> NoReturn:
    code = FAULT
    try:
        _die_with(parent)
        for line in produce():
            os.write(write, line + b"\n")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else FAULT
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _die_with(parent: int) -> None:
    # A supervisor that kills this process for taking too long must not leave the child behind.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of linux/prctl.h
        if os.getppid() != parent:
            os._exit(FAULT)


def _end(child: int, grace: float) -> int:
    """The wait status of the child, which is killed if it still runs after `grace` seconds."""
    end = time.monotonic() + grace
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if time.monotonic() >= end:
            break
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _read(descriptor: int, seconds: float | None) -> tuple[bytes, bool]:
    """Everything until the other end closes, and whether the time ran out first."""
    end = None if seconds is None else time.monotonic() + seconds
    parts: list[bytes] = []
    while True:
        left = None if end is None else max(0.0, end - time.monotonic())
        ready, _, _ = select.select([descriptor], [], [], left)
        if not ready:
            return b"".join(parts), True
        part = os.read(descriptor, 65536)
        if not part:
            return b"".join(parts), False
        parts.append(part)
