"""Runs a function in a forked child with limits, so that a crash, a hang or a runaway allocation costs only itself."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable

MEMORY = 6 << 30
"""Bytes that a child may allocate beyond what its parent has mapped."""


class Died(Exception):
    """The child ended without an answer; the message says how."""


def _mapped() -> int:
    """Bytes of address space of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def call(work: Callable[[], bytes], *, seconds: float, memory: int = MEMORY) -> bytes:
    """What `work` returns, run in a child. Raises Died where it is killed, takes longer than `seconds`, or fails.

    The child has one thread: pools of threads do not survive a fork.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            _limit(memory, seconds)
            answer = work()
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(answer)
            status = 0
        except MemoryError:
            status = 3
        finally:
            os._exit(status)
    os.close(writer)
    answer, in_time = _read(reader, time.monotonic() + seconds)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not in_time:
        raise Died(f"took more than {seconds:.0f} s")
    if os.WIFSIGNALED(status):
        raise Died(f"killed by {signal.Signals(os.WTERMSIG(status)).name}")
    if os.WEXITSTATUS(status) == 3:
        raise Died("ran out of memory")
    if os.WEXITSTATUS(status):
        raise Died(f"exited with {os.WEXITSTATUS(status)}")
    return answer


def _limit(memory: int, seconds: float) -> None:
    import torch

    torch.set_num_threads(1)
    used = _mapped()
    if used:
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 5, int(seconds) + 10))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def _read(pipe: int, deadline: float) -> tuple[bytes, bool]:
    """All that comes through a pipe, and whether its end came before the deadline. Closes it."""
    chunks: list[bytes] = []
    try:
        while (left := deadline - time.monotonic()) > 0:
            if select.select([pipe], [], [], left)[0]:
                chunk = os.read(pipe, 1 << 16)
                if not chunk:
                    return b"".join(chunks), True
                chunks.append(chunk)
        return b"", False
    finally:
        os.close(pipe)
